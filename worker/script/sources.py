"""What a script writes numbers into, read as it grows: JSON lines, CSV tables, output, events."""

import csv
import json
import os
import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from worker.script.event_files import EventFile, Scalar
from worker.script.points import CurvePoint, PointOrigin, point_of

Warn = Callable[[str, str], None]

# Of a file, in one look; what is longer is read on the next time.
PIECE_BYTES = 2**20
LONGEST_LINE = 2**16
# By so many of its last bytes a file is known to be the one that was read.
KNOWN_BYTES = 2**10


def opened(path: Path) -> BinaryIO:
    """A file to read. OSError, also for a pipe, which would hold up whoever opens it."""
    if not path.is_file():
        raise OSError(f"{path} is no file")
    return path.open("rb")


class Lines:
    """Whole lines that were appended to a file. One that became shorter is read anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_behind = False
        """Whether there may be more than the last look has read."""
        self._offset = 0
        self._rest = self._known = b""
        self._written = 0.0
        self._passed_at: int | None = None
        """When the file was written of which nothing else was seen than `pass_over` did."""

    def pass_over(self) -> None:
        """Begin behind what lies there now, unless that is written anew."""
        with suppress(OSError), opened(self.path) as file:
            found = os.fstat(file.fileno())
            file.seek(max(0, found.st_size - KNOWN_BYTES))
            self._known, self._rest = file.read(KNOWN_BYTES), b""
            self._offset, self._passed_at = found.st_size, found.st_mtime_ns

    def read(self) -> list[tuple[str, int]]:
        """What is new, at most so much of it, and of each line the byte behind it."""
        try:
            with opened(self.path) as file:
                found = os.fstat(file.fileno())
                if found.st_size < self._offset:
                    self._begin_anew()
                file.seek(self._offset)
                # No more than had been written when the time was looked up that goes with it.
                data = file.read(max(0, min(PIECE_BYTES, found.st_size - self._offset)))
        except OSError:
            self.is_behind = False
            return []
        if data:
            self._passed_at = None
        self.is_behind = len(data) == PIECE_BYTES
        begin, self._written = self._offset - len(self._rest), found.st_mtime
        self._offset += len(data)
        self._known = (self._known + data)[-KNOWN_BYTES:]
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._rest = _kept(self._rest)
        ends = accumulate((len(line) + 1 for line in whole), initial=begin)
        next(ends)
        return [
            (line.decode("utf-8", "replace"), end)
            for line, end in zip(map(_kept, whole), ends, strict=True)
        ]

    def take_rest(self) -> tuple[str, int]:
        """The line under way, and the byte behind it."""
        rest, self._rest = self._rest, b""
        return rest.decode("utf-8", "replace"), self._offset

    def take_states(self) -> tuple[str, int]:
        """Of the line under way, the whole states of a progress bar, and the byte behind them."""
        states, _, self._rest = self._rest.rpartition(b"\r")
        return states.decode("utf-8", "replace"), self._offset - len(self._rest)

    def origin(self, end: int) -> PointOrigin:
        """Of a point in a line of the last look, by the byte behind it."""
        return PointOrigin(end, self._written)

    def is_written_anew(self) -> bool:
        """Whether something else lies where it has read, or the same that was written again. Then
        it reads from the start.
        """
        try:
            with opened(self.path) as file:
                found = os.fstat(file.fileno())
                file.seek(self._offset - len(self._known))
                is_longer = found.st_size > self._offset
                is_again = self._passed_at not in (None, found.st_mtime_ns) and not is_longer
                if file.read(len(self._known)) == self._known and not is_again:
                    return False
        except OSError:
            return False
        self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        self._offset, self._rest, self._known, self._passed_at = 0, b"", b"", None


def _kept(line: bytes) -> bytes:
    """Of one that is too long the last states of a progress bar; nothing of what is no metrics."""
    if len(line) <= LONGEST_LINE:
        return line
    return line[-LONGEST_LINE:].partition(b"\r")[2]


class JsonLines:
    """A JSON object a line: `step`, and numbers by name."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)

    @property
    def is_behind(self) -> bool:
        return self._lines.is_behind

    def pass_over(self) -> None:
        """Begin behind what lies there now, unless that is written anew."""
        self._lines.pass_over()

    def read(self) -> Iterator[CurvePoint]:
        self._lines.is_written_anew()
        yield from filter(None, map(self._point, self._lines.read()))

    def read_rest(self) -> Iterator[CurvePoint]:
        """Of a last line that nobody ends any more; one that was cut is no JSON."""
        yield from filter(None, [self._point(self._lines.take_rest())])

    def _point(self, read: tuple[str, int]) -> CurvePoint | None:
        line, end = read
        with suppress(ValueError, RecursionError):
            document = json.loads(line)
            if isinstance(document, dict):
                return point_of(document, self._lines.origin(end))
        return None


class CsvTable:
    """A table with a header and a row a line, such as Lightning's metrics.csv. It may be written
    anew with more columns: rows that were told, at their place and with these numbers, are not told
    again.
    """

    def __init__(self, path: Path, warn: Warn) -> None:
        self._lines = Lines(path)
        self._warn: Warn | None = warn
        self._header: list[str] | None = None
        self._row = 0
        self._told = array("q")
        """A hash of each row's numbers."""
        self._is_old = False
        """Whether nothing but what was passed over has been read."""

    @property
    def is_behind(self) -> bool:
        return self._lines.is_behind

    def pass_over(self) -> None:
        """Begin behind what lies there now, unless that is written anew."""
        warn, self._warn = self._warn, None
        while [*self.read()] or self.is_behind:
            continue
        self._warn = warn
        self._lines.pass_over()
        self._is_old = True

    def read(self) -> Iterator[CurvePoint]:
        if self._lines.is_written_anew():
            self._header, self._row = None, 0
            if self._is_old:
                self._told = array("q")
        for line, end in self._lines.read():
            cells = self._cells(line)
            if not cells:
                continue
            if self._header is None:
                # Behind the mark that some programs put before UTF-8.
                self._header = [name.lstrip("\ufeff").strip() for name in cells]
                continue
            numbers = dict(zip(self._header, cells, strict=True))
            point = point_of(numbers, self._lines.origin(end))
            if self._is_news(point) and point is not None:
                self._is_old = False
                yield point

    def _cells(self, line: str) -> list[str]:
        """[] of a line that is no row, which is told once."""
        with suppress(csv.Error):
            cells = next(csv.reader([line]), [])
            if not cells or self._header is None or len(cells) == len(self._header):
                return cells
        if self._warn is not None:
            self._warn(
                "metrics_file_damaged",
                f"A line after row {self._row} of {self._lines.path} is no row of its table, which "
                f"has {len(self._header or ())} columns: {line[:100]!r}. Such lines are left out; "
                "the others are read.",
            )
            self._warn = None
        return []

    def _is_news(self, point: CurvePoint | None) -> bool:
        """Whether the next row was not told before."""
        numbers = 0 if point is None else hash((point.step, *point.values.items()))
        self._row += 1
        if self._told[self._row - 1 : self._row] == array("q", [numbers]):
            return False
        self._told[self._row - 1 :] = array("q", [numbers])
        return True


class Output:
    """What the script prints, by a pattern of the user's with named groups. Of a progress bar the
    last state of each look counts, if it says its step; else that in which its line ends.
    """

    def __init__(self, path: Path, pattern: str) -> None:
        self._lines = Lines(path)
        self._pattern = re.compile(pattern)
        self._state: re.Match[str] | None = None
        """Of the line under way, the last that tells something and was not told."""

    @property
    def is_behind(self) -> bool:
        return self._lines.is_behind

    def read(self) -> Iterator[CurvePoint]:
        for line, end in self._lines.read():
            match, self._state = self._last_of(line) or self._state, None
            if match is not None and (point := self._point(match, end)) is not None:
                yield point
        states, end = self._lines.take_states()
        if (match := self._last_of(states)) is not None:
            point = self._point(match, end)
            is_told = point is not None and point.step is not None
            self._state = None if is_told else match
            if point is not None and is_told:
                yield point

    def _last_of(self, line: str) -> re.Match[str] | None:
        """Where the pattern matches: of a progress bar, in its last state that tells something."""
        if "\r" not in line:
            return self._pattern.search(line)
        parts = map(self._pattern.search, reversed(line.split("\r")))
        return next(filter(None, parts), None) or self._pattern.search(line)

    def _point(self, match: re.Match[str], end: int) -> CurvePoint | None:
        named = {k: v for k, v in match.groupdict().items() if v is not None}
        return point_of(named, self._lines.origin(end))


class EventFileCurve:
    """An event file of TensorBoard."""

    def __init__(self, path: Path, warn: Warn) -> None:
        """NoReader."""
        self._file = EventFile(path)
        self._warn: Warn | None = warn

    @property
    def is_behind(self) -> bool:
        return self._file.is_behind

    def read(self) -> Iterator[CurvePoint]:
        for scalar in self._file.read():
            yield _of_scalar(scalar)
        if self._file.is_damaged and self._warn is not None:
            self._warn(
                "event_file_damaged",
                f"{self._file.path} holds a damaged record, so curves from it end there. What came "
                "before it is kept, and the script goes on.",
            )
            self._warn = None


Source = JsonLines | CsvTable | Output | EventFileCurve


def _of_scalar(scalar: Scalar) -> CurvePoint:
    return CurvePoint.of(max(0, scalar.step), {scalar.name: scalar.value})
