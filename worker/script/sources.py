"""What a script writes numbers into, read as it grows: JSON lines, CSV tables, output, events."""

import csv
import json
import os
import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from worker.script.event_files import EventFile, Scalar
from worker.script.points import CurvePoint, point_of

Warn = Callable[[str, str], None]

# Of a file, in one look; what is longer is read on the next time.
PIECE_BYTES = 2**20
LONGEST_LINE = 2**16
# By so many of its last bytes a file is known to be the one that was read.
KNOWN_BYTES = 2**10


class Lines:
    """Whole lines that were appended to a file. One that became shorter is read anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_behind = False
        """Whether there may be more than the last look has read."""
        self._offset = 0
        self._rest = self._known = b""
        self._passed_at: int | None = None
        """When the file was written of which nothing else was seen than `pass_over` did."""

    def pass_over(self) -> None:
        """Begin behind what lies there now, unless that is written anew."""
        with suppress(OSError), self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            file.seek(max(0, found.st_size - KNOWN_BYTES))
            self._known, self._rest = file.read(KNOWN_BYTES), b""
            self._offset, self._passed_at = found.st_size, found.st_mtime_ns

    def read(self) -> list[str]:
        """What is new, at most so much of it."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._begin_anew()
                file.seek(self._offset)
                data = file.read(PIECE_BYTES)
        except OSError:
            self.is_behind = False
            return []
        if data:
            self._passed_at = None
        self.is_behind = len(data) == PIECE_BYTES
        self._offset += len(data)
        self._known = (self._known + data)[-KNOWN_BYTES:]
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:  # no metrics: a progress bar, or something binary
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in lines if len(line) <= LONGEST_LINE]

    def is_written_anew(self) -> bool:
        """Whether something else lies where it has read, or the same that was written again. Then
        it reads from the start.
        """
        try:
            with self.path.open("rb") as file:
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
        for line in self._lines.read():
            with suppress(ValueError, RecursionError):
                document = json.loads(line)
                if isinstance(document, dict) and (point := point_of(document)) is not None:
                    yield point


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
        for line in self._lines.read():
            cells = self._cells(line)
            if not cells:
                continue
            if self._header is None:
                self._header = [name.strip() for name in cells]
                continue
            point = point_of(dict(zip(self._header, cells, strict=True)))
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
    """What the script prints, by a pattern of the user's with named groups."""

    def __init__(self, path: Path, pattern: str) -> None:
        self._lines = Lines(path)
        self._pattern = re.compile(pattern)

    @property
    def is_behind(self) -> bool:
        return self._lines.is_behind

    def read(self) -> Iterator[CurvePoint]:
        for line in self._lines.read():
            if (match := self._pattern.search(line[:LONGEST_LINE])) is not None:
                point = point_of({k: v for k, v in match.groupdict().items() if v is not None})
                if point is not None:
                    yield point


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
