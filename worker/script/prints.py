"""Curves from what a script prints for people: `step 51 loss 0.9`, a progress bar, a dictionary."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from worker.script.grammar import (
    MOVE,
    Report,
    Reports,
    has_needle,
    has_split,
    is_telling,
    without_escapes,
)
from worker.script.points import EPOCH, CurvePoint, usual_name
from worker.script.sources import Lines

MOST_SHAPES = 500
MOST_WAITING = 100
OFFERED_AT = 5
"""An unsure line has to come so often before a pattern is offered."""
NO_NAME = re.compile(r"\W")
SPACES = re.compile(r"(?:\\?\s)+")
COUNT = re.compile(r"(\d{1,12}) ?/ ?(\d{1,12})")
Key = tuple[object, ...]


@dataclass
class _Counter:
    """The count of one kind of line. `offset`: the steps before the current epoch's first."""

    first: int
    last: int
    epoch: float | None
    line: int
    has_steps: bool
    offset: int = 0
    told: frozenset[str] = frozenset()
    """The names that were told at the last count."""

    def begins_again(self, report: Report, *, is_new_bar: bool) -> bool:
        """`is_new_bar`: true if the state is of another bar than the last one."""
        count = report.count or 0
        if self._epochs_to(report) > 0:
            return count <= self.last
        if count == self.last:
            return report.is_bar and is_new_bar and count == report.total
        return count < self.last and (report.is_bar or count <= self.first)

    def begin_again(self, report: Report) -> None:
        if report.total is None:
            self.offset += self.last + (report.count == 0)
        else:
            self.offset += report.total * max(1, self._epochs_to(report))
        self.told = frozenset()

    def _epochs_to(self, report: Report) -> int:
        if report.epoch is None or self.epoch is None:
            return 0
        return int(report.epoch - self.epoch)


class Prints:
    """The output as a source of curves. Each name belongs to the kind of line that told it first,
    so that two bars are never mixed.
    """

    def __init__(self, path: Path, before: int) -> None:
        """`before`: the step that the script goes on from, 0 for none."""
        self._lines, self._before = Lines(path), before
        self._reports = Reports()
        self._line = 0
        self._has_bars = self._has_moves = False
        """True if states were written over each other, and on several lines at a time."""
        self._heading: float | None = None
        """The epoch that the last heading named."""
        self._counters: dict[Key, _Counter] = {}
        self._owners: dict[str, Key] = {}
        self._lone: dict[Key, list[CurvePoint] | None] = {}
        """Waiting points of lines without a place, by shape; None once they were told."""
        self._shown: dict[str, float] = {}
        self._last_step: int | None = None
        self._unsure: dict[tuple[str, ...], tuple[int, dict[str, float]]] = {}
        self.offer: tuple[str, str] | None = None
        """A line that may be a point, and the pattern that reads it."""

    @property
    def is_behind(self) -> bool:
        return self._lines.is_behind

    def read(self) -> Iterator[CurvePoint]:
        for line, end in self._lines.read():
            if has_needle(line):
                yield from self._points(line, end)
            self._line += 1
        states, end = self._lines.take_states()
        if has_needle(states):
            yield from self._points(states, end)

    def read_rest(self) -> list[CurvePoint]:
        """The points of a last line that nobody ends any more."""
        line, end = self._lines.take_rest()
        return self._points(line, end) if has_needle(line) else []

    def _points(self, line: str, end: int) -> list[CurvePoint]:
        """The points of a line: of a progress bar, those of its last state."""
        text = without_escapes(line)
        if "\r" not in text.rstrip("\r"):
            return self._of_state(text.rstrip("\r"), end)
        self._has_bars = True
        self._has_moves |= MOVE.search(line) is not None
        return [
            point
            for state, is_new in _telling(text)
            for point in self._of_state(state, end, is_new_bar=is_new)
        ]

    def _of_state(self, state: str, end: int, *, is_new_bar: bool = False) -> list[CurvePoint]:
        """The points of a line or of a bar's state."""
        report = self._reports.of(state)
        if report is None:
            return []
        if not report.is_clean or (report.has_other_count and _is_lone(report, self._heading)):
            self._consider(report, state)
            return []
        if not report.values:
            self._heading = report.epoch
            return []
        if report.epoch is None:
            report.epoch = self._heading
        key = _key_of(report)
        step = self._step(report, key, is_new_bar=is_new_bar)
        values = self._own_values(report, key)
        if not values:
            return []
        if report.epoch is not None:
            values[EPOCH] = report.epoch
        point = CurvePoint.of(step, values)._replace(origin=self._lines.origin(end))
        return self._once_repeated(key, point) if key[0] == "lone" else [point]

    def _step(self, report: Report, key: Key, *, is_new_bar: bool) -> int | None:
        """The step of a report; None if it names only an epoch, or nothing."""
        counter = self._counters.get(key)
        if report.count is None:
            if report.has_whole_epoch and (counter is None or counter.epoch != report.epoch):
                self._counters[key] = _Counter(0, 0, report.epoch, self._line, has_steps=False)
            return self._last_step
        if counter is None:
            if len(self._counters) == MOST_SHAPES:
                self._counters.clear()
            has_steps = not report.is_batch and self._is_sure(report)
            counter = _Counter(report.count, report.count, report.epoch, self._line, has_steps)
            self._counters[key] = counter
        elif counter.begins_again(report, is_new_bar=is_new_bar or self._is_below(counter)):
            counter.begin_again(report)
        elif report.count != counter.last:
            counter.told = frozenset()
        counter.last, counter.epoch, counter.line = report.count, report.epoch, self._line
        if not counter.has_steps:
            return None
        self._last_step = counter.offset + report.count
        return self._last_step

    def _is_below(self, counter: _Counter) -> bool:
        """True if a bar is on another line than its last state, and none moves between lines."""
        return self._has_bars and not self._has_moves and counter.line != self._line

    def _is_sure(self, report: Report) -> bool:
        """False for a count that may begin anew with each epoch, where earlier ones are unknown."""
        if report.total is None:
            return True
        if self._before:
            return report.count is not None and report.count > self._before
        return report.epoch is None or report.epoch <= 1

    def _own_values(self, report: Report, key: Key) -> dict[str, float]:
        """The numbers of this kind of line, without those that a bar only shows again."""
        owners, counter = self._owners, self._counters.get(key)
        told = frozenset() if counter is None else counter.told
        is_other = any(
            not has_split(name) and owners.get(usual_name(name), key) != key
            for name in report.values
        )
        values = dict[str, float]()
        for raw, value in report.values.items():
            name = usual_name(raw)
            if is_other and not has_split(raw):
                continue
            if len(owners) > MOST_SHAPES or owners.setdefault(name, key) != key or name in told:
                continue
            if not (report.is_bar and self._is_shown_again(name, value)):
                values[name] = value
        if counter is not None:
            counter.told = told | values.keys()
        return values

    def _is_shown_again(self, name: str, value: float) -> bool:
        """True for a number of an earlier evaluation or epoch, which a bar goes on showing."""
        is_old = _is_of_an_epoch(name) and self._shown.get(name) == value
        self._shown[name] = value
        return is_old

    def _once_repeated(self, key: Key, point: CurvePoint) -> list[CurvePoint]:
        """The points of lines without a place, once such a line has come again with other numbers;
        then with those before it.
        """
        if not any(map(is_telling, point.values)):
            return []
        if key not in self._lone and len(self._lone) == MOST_SHAPES:
            self._lone.clear()
        waiting = self._lone.setdefault(key, [])
        if waiting is None:
            return [point]
        if len(waiting) < MOST_WAITING:
            waiting.append(point)
        if point.values == waiting[0].values:
            return []
        self._lone[key] = None
        return waiting

    def _consider(self, report: Report, state: str) -> None:
        """Offer a pattern for lines that come again with other numbers."""
        if self.offer is not None or not any(map(is_telling, report.values)):
            return
        if len(self._unsure) == MOST_SHAPES:
            self._unsure.clear()
        times, first = self._unsure.get(report.shape, (0, report.values))
        self._unsure[report.shape] = times + 1, first
        if times + 1 >= OFFERED_AT and first != report.values:
            pattern = pattern_of(report, state)
            self.offer = (state.strip(), pattern) if pattern else None


def _key_of(report: Report) -> Key:
    """The kind of a line."""
    if report.is_bar:
        return ("bar", report.total, report.title, report.labels)
    if report.count is not None:
        return ("count", report.labels)
    if report.epoch is not None:
        return ("epoch", report.labels)
    return ("lone", report.shape, report.labels)


def _is_lone(report: Report, heading: float | None) -> bool:
    return report.count is None and report.epoch is None and heading is None


def _is_of_an_epoch(name: str) -> bool:
    return name.startswith(("val_", "test_")) or name.endswith("_epoch")


def _telling(text: str) -> list[tuple[str, bool]]:
    """The states of bars that count: of each total the last one, and each before it begins again.
    True for those of a bar that has begun again.
    """
    chosen = list[tuple[str, bool]]()
    newest = dict[str, tuple[str, int, bool]]()
    for state in text.split("\r"):
        if not has_needle(state):
            continue
        match = COUNT.search(state)
        total, count = ("", 0) if match is None else (match[2], int(match[1]))
        before, last, is_new = newest.get(total, ("", -1, False))
        if before and count < last:
            chosen.append((before, is_new))
            is_new = True
        newest[total] = state, count, is_new
    return [*chosen, *((state, is_new) for state, _, is_new in newest.values())]


def pattern_of(report: Report, state: str) -> str:
    """Returns a pattern for `--metrics-stdout` that reads lines like this one; "" if none does."""
    pieces = [
        SPACES.sub(r"\\s+", re.escape(text)) + f"(?P<{NO_NAME.sub('_', name)}>[-+.0-9eE]+)"
        for name, text in report.names.items()
    ]
    pattern = ".*?".join(pieces)
    try:
        return pattern if pieces and re.search(pattern, state) else ""
    except re.error:  # two names became the same
        return ""
