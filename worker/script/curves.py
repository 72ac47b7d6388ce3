"""The curves of a script, from whatever it writes anyway.

These are JSON lines, CSV tables, event files, its output, and what it posts to the status route;
all under the names that recipes use, where they have one.
"""

import math
import os
import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from app.installing import pip_install
from stoker.manifest import COUNTS
from stoker.script import LOG, METRICS
from worker.script.event_files import NoReader
from worker.script.points import EPOCH, MEANS, CurvePoint, LastPoint, Places, usual_name
from worker.script.prints import Prints
from worker.script.restoring import last_points
from worker.script.saved import step_of
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
# At the end of a script its prints are read for so long, and so many points a look are kept.
PRINTS_SECONDS = 20.0
MOST_PRINTED = 1000
# Points of prints that wait for other sources: then the output is not read further.
MOST_WAITING = 100_000
PASSED_OVER = {"node_modules", "site-packages", "__pycache__", "wandb", "mlruns"}


class Numbers(NamedTuple):
    """What a run's curves get; `says_step`: whether the script said the step; `not_finite`: names
    whose value is none that a curve can have; `origin`: of what says no step, as its event has it.
    """

    step: int
    values: dict[str, float]
    says_step: bool
    not_finite: frozenset[str] = frozenset()
    origin: Mapping[str, Any] = MappingProxyType({})
    is_printed: bool = False
    """True if it was read from prints, without an option."""


class Curves:
    """All sources of one attempt. `read` gives points at steps, under their final names."""

    def __init__(self, work: ScriptWork, began: float, checkpoint: Path | None, warn: Warn) -> None:
        """`began`: unix seconds; older files are of earlier runs, and so is what lies in the file
        of `metrics_file` now. `checkpoint`: the folder of the one that the script goes on from.
        """
        self._work, self._began, self._warn = work, began, warn
        self._checkpoint = checkpoint
        before = 0 if checkpoint is None else step_of(checkpoint)
        self._sources: dict[Path, Source] = {}
        self._names: dict[str, str] = {}
        self._places = defaultdict[Path, Places](lambda: Places(before))
        self._not_finite = set[str]()
        self._may_warn_of_steps = True
        self._search_at = 0.0
        self._may_read_events = True
        self._is_cut = False
        """Whether the last search has left out folders."""
        self._sources[work.folder / METRICS] = JsonLines(work.folder / METRICS)
        self._silent = dict[Path, str]()
        """Sources that the user named and that gave no number yet, and the option."""
        if work.metrics_file is not None:
            path = work.metrics_file
            named = CsvTable(path, warn) if path.suffix == ".csv" else JsonLines(path)
            named.pass_over()
            self._sources[path], self._silent[path] = named, "--metrics-file"
        if work.metrics_stdout is not None:
            path = work.folder / LOG
            self._sources[path] = Output(path, work.metrics_stdout)
            self._silent[path] = "--metrics-stdout"
        self._log = work.folder / LOG
        self._prints: Prints | None = None if self._silent else Prints(self._log, before)
        self._printed: list[CurvePoint] = []
        """Points from prints that the next look gives."""
        self._has_printed = False
        self._awaits_table = False
        """True if Lightning has made the folder of a metrics.csv, which it writes later."""
        self._may_print_at = time.monotonic() + SEARCH_SECONDS
        self._is_offered = False

    def read(self, *, all_of_it: bool = False) -> Iterator[Numbers]:
        """What is new; `all_of_it`: to the end of every file, since nobody writes any more."""
        now = time.monotonic()
        if now >= self._search_at or all_of_it:
            self._search_at = now + SEARCH_SECONDS
            self._search()
        for path, source in list(self._sources.items()):
            while True:
                if points := list(source.read()):
                    self._silent.pop(path, None)
                yield from self.named(path, points)
                if not (all_of_it and source.is_behind):
                    break
            if all_of_it and isinstance(source, JsonLines) and (last := list(source.read_rest())):
                self._silent.pop(path, None)
                yield from self.named(path, last)
        yield from self._read_prints(all_of_it=all_of_it)
        if all_of_it:
            self._warn_of_silence()

    def _read_prints(self, *, all_of_it: bool) -> Iterator[Numbers]:
        """Points from prints, as long as no other source has any. They wait for files that exist
        and are empty, at the beginning for files that are yet to be found, and one look each for
        what was posted or written together with them.
        """
        if self._prints is None or not (all_of_it or self._may_read_prints()):
            return
        now, ready = time.monotonic(), self._printed
        is_early = now < self._may_print_at and not all_of_it
        self._printed = [*self._prints.read()]
        if is_early:
            self._printed, ready = ready + self._printed, []
        elif not self._has_printed and self._printed:
            self._search_at = 0.0
        while all_of_it and self._prints.is_behind:
            if time.monotonic() > now + PRINTS_SECONDS:
                self._warn(
                    "curve_cut",
                    "The output was too long to read to its end, so curves from it end early. Use "
                    "`stoker.init().log(…)`, or print less.",
                )
                break
            yield from self._of_prints(ready)
            ready, self._printed = self._printed, [*self._prints.read()]
        if all_of_it:
            ready = [*ready, *self._printed, *self._prints.read_rest()]
        yield from self._of_prints(ready)
        self._offer_pattern(self._prints)

    def _may_read_prints(self) -> bool:
        is_full = len(self._printed) >= MOST_WAITING and time.monotonic() < self._may_print_at
        waits = is_full or self._awaits_table
        return not waits and not any(path.exists() for path in self._sources)

    def _of_prints(self, points: list[CurvePoint]) -> Iterator[Numbers]:
        self._has_printed |= bool(points)
        for numbers in _thinned([*self.named(self._log, points)]):
            yield numbers._replace(is_printed=True)

    def _offer_pattern(self, prints: Prints) -> None:
        """Once, where the output may hold a curve that was not read."""
        if self._is_offered or self._names or prints.offer is None:
            return
        self._is_offered = True
        line, pattern = prints.offer
        self._warn(
            "curve_not_read",
            f"Lines such as {line[:200]!r} may be points of a curve. They are not read, because "
            "Stoker is not sure what all of their words mean. To read them, start the script with: "
            f"--metrics-stdout {shlex.quote(pattern)}",
        )

    def _warn_of_silence(self) -> None:
        """At the end of the script, of what was named and gave no number, or may be elsewhere."""
        for path, option in self._silent.items():
            if option == "--metrics-stdout":
                why = "matches no line of its output; `stoker logs` shows that"
            elif not self._is_new(path):
                why = f"names {path}, which this run has not written; what lies there is no curve"
            else:
                kind = "a CSV table" if path.suffix == ".csv" else "JSON lines"
                why = f"names {path}, which holds no numbers as {kind} have them"
            self._warn("no_metrics", f"{option} gave no curve: it {why}.")
        if self._is_cut and not self._names:
            self._warn(
                "no_metrics",
                f"No curve was found. {self._work.cwd} has more than {MOST_FOLDERS} folders, and "
                "only the nearest were searched for event files and metrics.csv: write them into "
                "$STOKER_RUN_DIR/tensorboard, or name a file with --metrics-file.",
            )

    def named(self, source: Path, points: Iterable[CurvePoint]) -> Iterator[Numbers]:
        """Points of a source with their steps and the names of recipes; of too many series the
        later ones are left out. Those of another source than prints end the reading of prints.
        """
        for point in points:
            if source != self._log:
                self._prints = None
            values = {self._known(name): value for name, value in point.values.items()}
            values.pop("", None)
            not_finite = {self._known(name): value for name, value in point.not_finite}
            not_finite.pop("", None)
            names = frozenset({*values, *not_finite} - {EPOCH})
            past = None if point.step is not None else self._past_of(names)
            step = self._places[source].step_of(point, names, past)
            if step > LARGEST_STEP:
                self._warn_of_step(step)
                continue
            self._warn_of_not_finite(step, not_finite)
            says_step, origin = point.step is not None, _origin_of(point, source)
            yield Numbers(step, values, says_step, frozenset(not_finite), origin)

    def _past_of(self, names: frozenset[str]) -> LastPoint | None:
        """The last point of these curves that the script goes on behind."""
        known = [self._past[name] for name in names if name in self._past]
        return max(known, key=lambda point: point.step, default=None)

    @cached_property
    def _past(self) -> dict[str, LastPoint]:
        """Looked up only for points that say no step."""
        return {} if self._checkpoint is None else last_points(self._checkpoint)

    def _warn_of_not_finite(self, step: int, numbers: dict[str, float]) -> None:
        """Once of each name."""
        for name in numbers.keys() - self._not_finite:
            self._not_finite.add(name)
            what = "NaN" if math.isnan(numbers[name]) else "infinite"
            self._warn(
                "not_finite",
                f"{name} is {what} at step {step}. Such values are left out of its curve, and are "
                "not told again; the script goes on.",
            )

    def _known(self, name: str) -> str:
        """What the name is called here; "" of one that is left out."""
        if (known := self._names.get(name)) is None:
            known = self._names[name] = self._new_name(name)
        return known

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
        return "" if printable in MEANS else usual_name(printable)[:LONGEST_NAME]

    def _search(self) -> None:
        places = [self._work.folder / "tensorboard", self._work.cwd]
        found = [_files_below(place) for place in places]
        self._is_cut = not all(is_all for _, is_all in found)
        for path in (path for paths, _ in found for path in paths):
            if path in self._sources or not self._is_new(path):
                continue
            if path.name == "metrics.csv":
                self._sources[path] = CsvTable(path, self._warn)
            elif self._may_read_events:
                self._add_events(path)
        self._awaits_table |= any(map(self._is_new, _folders_of_lightning(self._work.cwd)))

    def _add_events(self, path: Path) -> None:
        try:
            self._sources[path] = EventFileCurve(path, self._warn)
        except NoReader:
            self._may_read_events = False
            self._warn(
                "event_files_not_read",
                f"{path} is an event file of TensorBoard, and the package that reads it is not "
                f"installed here: {pip_install('stoker[scripts]')}. The script goes on without.",
            )

    def _is_new(self, path: Path) -> bool:
        with suppress(OSError):
            return path.stat().st_mtime >= self._began
        return False


def _folders_of_lightning(cwd: Path) -> list[Path]:
    try:
        return list((cwd / "lightning_logs").glob("version_*"))
    except OSError:
        return []


def _thinned(points: list[Numbers]) -> Iterator[Numbers]:
    """At most so many points of one look for each set of names; the last one is kept."""
    counts = Counter(frozenset(point.values) for point in points)
    seen = Counter[frozenset[str]]()
    for point in points:
        names = frozenset(point.values)
        seen[names] += 1
        left = counts[names] - seen[names]
        if left % (1 + counts[names] // MOST_PRINTED) == 0:
            yield point


def _is_known(name: str) -> bool:
    return name == "metrics.csv" or ".tfevents." in name


def _origin_of(point: CurvePoint, source: Path) -> dict[str, Any]:
    """By which `last_points` knows whether it came before a checkpoint."""
    if point.step is not None or point.origin is None:
        return {}
    return {"source": str(source), **point.origin._asdict()}


def _files_below(folder: Path) -> tuple[list[Path], bool]:
    """Event files and metrics.csv in a folder and those below, the nearest first; and whether all
    folders were looked at that are not too deep.
    """
    found, level, looked_at = list[Path](), [folder], 0
    for _ in range(DEEPEST + 1):
        below: list[Path] = []
        for place in level:
            looked_at += 1
            if looked_at > MOST_FOLDERS:
                return found, False
            with suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in PASSED_OVER and not entry.name.startswith("."):
                            below.append(Path(entry.path))
                    elif _is_known(entry.name) and entry.is_file():
                        found.append(Path(entry.path))
        level = below
    return found, True
