"""The curves of a script, from whatever it writes anyway.

These are JSON lines, CSV tables, event files, its output, and what it posts to the status route;
all under the names that recipes use, where they have one.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from stoker.manifest import COUNTS
from stoker.script import METRICS
from worker.script.event_files import NoReader
from worker.script.points import CurvePoint, usual_name
from worker.script.sources import CsvTable, EventFileCurve, JsonLines, Output, Source, Warn
from worker.script.work import ScriptWork

MOST_SERIES = 200
LONGEST_NAME = 100
LARGEST_STEP = COUNTS["step"]
# Files that a script writes are looked for in its folder, so deep and among so many folders: the
# folder may hold a repository of 10,000 files, and its data.
SEARCH_SECONDS = 10.0
MOST_FOLDERS = 500
DEEPEST = 4
PASSED_OVER = {"node_modules", "site-packages", "__pycache__", "wandb", "mlruns"}


class Curves:
    """All sources of one attempt. `read` gives points under their final names."""

    def __init__(self, work: ScriptWork, began: float, warn: Warn) -> None:
        """`began`: unix seconds; older files are of earlier runs."""
        self._work, self._began, self._warn = work, began, warn
        self._sources: dict[Path, Source] = {}
        self._names: dict[str, str] = {}
        self._may_warn_of_steps = True
        self._search_at = 0.0
        self._may_read_events = True
        self._add(work.folder / METRICS, JsonLines)
        if work.metrics_file is not None:
            path = work.cwd / work.metrics_file
            self._add(path, self._table if path.suffix == ".csv" else JsonLines)
        if work.metrics_stdout is not None:
            pattern = work.metrics_stdout
            self._add(work.folder / "trainer.log", lambda path: Output(path, pattern))

    def _add(self, path: Path, source: Callable[[Path], Source]) -> None:
        if path not in self._sources:
            self._sources[path] = source(path)

    def _table(self, path: Path) -> CsvTable:
        return CsvTable(path, self._warn)

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
        """The point with the names of recipes; of too many series the later ones are left out. It
        is empty at a step that is none.
        """
        if point.step > LARGEST_STEP:
            self._warn_of_step(point.step)
            return point._replace(values={})
        values = {}
        for name, value in point.values.items():
            if (known := self._names.get(name)) is None:
                known = self._names[name] = self._new_name(name)
            if known:
                values[known] = value
        return point._replace(values=values)

    def _warn_of_step(self, step: int) -> None:
        if self._may_warn_of_steps:
            self._may_warn_of_steps = False
            self._warn(
                "step_too_large",
                f"The script reports numbers of step {step:.3g}; they are left out, and so are "
                f"others beyond {LARGEST_STEP:.0e}. Is something else logged as the step?",
            )

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
                self._add(path, self._table)
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
