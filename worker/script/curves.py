"""The curves of a script, from whatever it writes anyway.

These are JSON lines, CSV tables, event files, its output, and what it posts to the status route;
all under the names that recipes use, where they have one.
"""

import csv
import io
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from stoker.script import METRICS
from worker.script.event_files import EventFile, NoReader, Scalar
from worker.script.work import ScriptWork

Warn = Callable[[str, str], None]

# What other trainers call the curves that recipes have.
USUAL_NAMES = {
    "loss": "train_loss", "train/loss": "train_loss", "train_loss_step": "train_loss",
    "eval_loss": "val_loss", "eval/loss": "val_loss", "val/loss": "val_loss",
    "validation_loss": "val_loss", "learning_rate": "lr", "train/learning_rate": "lr",
    "train/grad_norm": "grad_norm",
}  # fmt: skip
STEP_NAMES = ("step", "global_step", "current_step", "iteration", "iter")
MOST_SERIES = 200
LONGEST_NAME = 100
# Of a file, in one look; what is longer is read on the next time.
PIECE_BYTES = 2**20
LONGEST_LINE = 2**16
# Files that a script writes are looked for in its folder, so deep and among so many folders: the
# folder may hold a repository of 10,000 files, and its data.
SEARCH_SECONDS = 10.0
MOST_FOLDERS = 500
DEEPEST = 4
PASSED_OVER = {"node_modules", "site-packages", "__pycache__", "wandb", "mlruns"}


class CurvePoint(NamedTuple):
    """Numbers of one step."""

    step: int
    t: float
    values: dict[str, float]


class Lines:
    """Whole lines that were appended to a file. One that became shorter is read anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_behind = False
        """Whether there may be more than the last look has read."""
        self._offset = 0
        self._rest = b""

    def read(self) -> list[str]:
        """What is new, at most so much of it."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = file.read(PIECE_BYTES)
        except OSError:
            self.is_behind = False
            return []
        self.is_behind = len(data) == PIECE_BYTES
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:  # no metrics: a progress bar, or something binary
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in lines if len(line) <= LONGEST_LINE]


class JsonLines:
    """A JSON object a line: `step`, and numbers by name."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path)

    @property
    def is_behind(self) -> bool:
        return self._lines.is_behind

    def read(self) -> Iterator[CurvePoint]:
        for line in self._lines.read():
            with suppress(ValueError, RecursionError):
                document = json.loads(line)
                if isinstance(document, dict) and (point := point_of(document)) is not None:
                    yield point


class CsvTable:
    """A table with a header, such as Lightning's metrics.csv. It may be written anew with more
    columns, so rows that were told before are passed over by their place.
    """

    is_behind = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._told = 0

    def read(self) -> Iterator[CurvePoint]:
        try:
            found = self._path.stat()
            if (found.st_size, found.st_mtime_ns) == self._seen or found.st_size > 64 * PIECE_BYTES:
                return
            text = self._path.read_text(errors="replace")
        except OSError:
            return
        self._seen = found.st_size, found.st_mtime_ns
        whole = text[: text.rfind("\n") + 1]
        rows = list(csv.DictReader(io.StringIO(whole)))
        for row in rows[self._told :]:
            point = point_of({name: value for name, value in row.items() if name})
            if point is not None:
                yield point
        self._told = len(rows)


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


class Curves:
    """All sources of one attempt. `read` gives points under their final names."""

    def __init__(self, work: ScriptWork, began: float, warn: Warn) -> None:
        """`began`: unix seconds; older files are of earlier runs."""
        self._work, self._began, self._warn = work, began, warn
        self._sources: dict[Path, Source] = {}
        self._names: dict[str, str] = {}
        self._search_at = 0.0
        self._may_read_events = True
        self._add(work.folder / METRICS, JsonLines)
        if work.metrics_file is not None:
            path = work.cwd / work.metrics_file
            self._add(path, CsvTable if path.suffix == ".csv" else JsonLines)
        if work.metrics_stdout is not None:
            pattern = work.metrics_stdout
            self._add(work.folder / "trainer.log", lambda path: Output(path, pattern))

    def _add(self, path: Path, source: Callable[[Path], Source]) -> None:
        if path not in self._sources:
            self._sources[path] = source(path)

    def read(self, *, all_of_it: bool = False) -> Iterator[CurvePoint]:
        """What is new; `all_of_it`: to the end of every file, since nobody writes any more."""
        now = time.monotonic()
        if now >= self._search_at or all_of_it:
            self._search_at = now + SEARCH_SECONDS
            self._search()
        for source in list(self._sources.values()):
            while True:
                points = list(source.read())
                yield from (named for point in points if (named := self.named(point)).values)
                if not (all_of_it and source.is_behind):
                    break

    def named(self, point: CurvePoint) -> CurvePoint:
        """The point with the names of recipes; of too many series the later ones are left out."""
        values = {}
        for name, value in point.values.items():
            if (known := self._names.get(name)) is None:
                known = self._names[name] = self._new_name(name)
            if known:
                values[known] = value
        return point._replace(values=values)

    def _new_name(self, name: str) -> str:
        if len(self._names) == MOST_SERIES:
            self._warn(
                "too_many_series",
                f"The script reports more than {MOST_SERIES} series; from {name[:LONGEST_NAME]!r} "
                "on, new ones are left out. Log fewer names.",
            )
        if len(self._names) >= MOST_SERIES:
            return ""
        printable = "".join(char if char.isprintable() else "_" for char in name.strip())
        return usual_name(printable)[:LONGEST_NAME]

    def _search(self) -> None:
        places = [self._work.folder / "tensorboard", self._work.cwd]
        for path in (path for place in places for path in _files_below(place)):
            if path in self._sources or not self._is_new(path):
                continue
            if path.name == "metrics.csv":
                self._add(path, CsvTable)
            elif self._may_read_events:
                self._add_events(path)

    def _add_events(self, path: Path) -> None:
        try:
            self._sources[path] = EventFileCurve(path, self._warn)
        except NoReader:
            self._may_read_events = False
            self._warn(
                "event_files_not_read",
                f"{path} is an event file of TensorBoard, and the package that reads it is not "
                "installed here: pip install 'stoker[scripts]'. The script goes on without.",
            )

    def _is_new(self, path: Path) -> bool:
        with suppress(OSError):
            return path.stat().st_mtime >= self._began
        return False


def usual_name(name: str) -> str:
    """What recipes call it, where they have it."""
    return USUAL_NAMES.get(name, name)


def point_of(document: Mapping[str, Any]) -> CurvePoint | None:
    """The numbers of a document; None where none is finite. Texts that are numbers count."""
    step, values, t = 0, dict[str, float](), time.time()
    for name, value in document.items():
        number = number_of(value)
        if number is None:
            continue
        if name in STEP_NAMES:
            step = max(step, int(number))
        elif name == "t" and number > 10**9:
            t = number
        else:
            values[name] = number
    return CurvePoint(step, t, values) if values else None


def number_of(value: Any) -> float | None:
    """A finite number; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _of_scalar(scalar: Scalar) -> CurvePoint:
    return CurvePoint(max(0, scalar.step), scalar.t, {scalar.name: scalar.value})


def _files_below(folder: Path) -> Iterator[Path]:
    """Event files and metrics.csv in a folder and those below, the nearest first."""
    level, looked_at = [folder], 0
    for _ in range(DEEPEST + 1):
        below: list[Path] = []
        for place in level:
            looked_at += 1
            if looked_at > MOST_FOLDERS:
                return
            with suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in PASSED_OVER and not entry.name.startswith("."):
                            below.append(Path(entry.path))
                    elif entry.name == "metrics.csv" or ".tfevents." in entry.name:
                        yield Path(entry.path)
        level = below
