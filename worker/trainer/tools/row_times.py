"""The times of a table's rows: which rows are in order, and where time is missing between two.

Rows whose time repeats, goes back or cannot be read end the conversion, or are left out and
counted (`Bad`). A gap ends it too, or begins a new stretch, out of which no sample reaches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.source import Rows
from worker.trainer.tools.bad_rows import (
    MILLISECONDS_FROM,
    TIME_NAMES,
    Bad,
    Time,
    compact_time,
    time_of,
)

# Beside a column of days, those say at what time of the day a row is: it is no time by itself.
TIMES_OF_DAY = {"time", "hour", "hours", "hr", "minute", "minutes"}
# From here on (1973) a number in a column that is called a time is one, in seconds since 1970.
LEAST_EPOCH = 1e8
NO_TIME = np.iinfo(np.int64).min
MICROSECONDS = 1_000_000
# Clocks are not exact: what comes so much later than its turn is late, and no gap.
LATE = 1.5
LATEST = 253_402_300_800  # the year 10000, which no datetime reaches
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_column(schema: Any, types: Any) -> str | None:
    """The column that says when each row was; None where there is none. Both are Arrow's."""
    low = {field.name.strip().lower(): field for field in schema}
    for name in TIME_NAMES:
        field = low.get(name) if name else None
        if field is None:
            continue
        kind = field.type
        if types.is_timestamp(kind) or types.is_string(kind) or _is_number(types, kind):
            return str(field.name)
        if types.is_date(kind) and TIMES_OF_DAY.isdisjoint(low):
            return str(field.name)
    return None


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


class ColumnTimes(NamedTuple):
    """The times of some rows, in microseconds since 1970, NO_TIME where there is none, and as what
    the first was read.
    """

    microseconds: Rows
    read_as: str


def times_of(column: Any, library: Any) -> ColumnTimes | None:
    """Of an Arrow column; None where none of its texts is a time, or its first number is none."""
    types = library.types
    if types.is_timestamp(column.type) or types.is_date(column.type):
        exact = column.cast(library.timestamp("us"), safe=False).cast(library.int64())
        found = np.asarray(exact.fill_null(NO_TIME).to_numpy(zero_copy_only=False), np.int64)
        return ColumnTimes(found, "timestamps")
    if types.is_string(column.type):
        return _of_texts(column.to_pylist())
    numbers = column.cast(library.float64(), safe=False).to_numpy(zero_copy_only=False)
    known = np.isfinite(numbers)
    if not known.any() or (first := numbers[known][0]) < LEAST_EPOCH:
        return None
    if compact_time(f"{first:.0f}") is not None:
        return _of_texts([f"{number:.0f}" for number in numbers])
    known &= numbers >= LEAST_EPOCH
    in_milliseconds = numbers >= MILLISECONDS_FROM
    seconds = np.where(in_milliseconds, numbers / 1000, np.where(known, numbers, 0.0))
    exact = np.where(known, np.round(seconds * MICROSECONDS), NO_TIME).astype(np.int64)
    return ColumnTimes(exact, time_of(f"{first:.0f}").read_as)


def _of_texts(texts: Iterable[str | None]) -> ColumnTimes | None:
    found = [_of_text(text) for text in texts]
    if not any(found):
        return None
    exact = [NO_TIME if time is None else time.seconds * MICROSECONDS for time in found]
    read_as = next(time.read_as for time in found if time is not None)
    return ColumnTimes(np.array(exact, np.int64), read_as)


def _of_text(text: str | None) -> Time | None:
    try:
        time = None if text is None else time_of(text, LEAST_EPOCH)
    except (ValueError, OverflowError):
        return None
    return time if time is not None and time.seconds < LATEST else None


@dataclass
class RowTimes:
    """Follows the times of the rows of a file. `max_gap`: seconds from one row to the next that are
    no gap; default: half as many again as rows usually lie apart.
    """

    path: Path
    column: str
    bad: Bad
    max_gap: int | None = None
    period: int | None = None
    """Microseconds from one row to the next, as most rows of the first piece have it."""
    read_as: str | None = None
    """What the first time was read as; None before there was one."""
    row: int = 0
    """How many rows have been taken."""
    _last: int | None = None
    _last_row: int = 0

    def take(
        self, times: ColumnTimes | None, usable: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], list[int]]:
        """Which of the next rows are kept, of those that are `usable` otherwise; and which of the
        kept ones, by number, begin a stretch. `times` None: none of them has one, and all are kept
        where no row before had one either. Raises DataError where bad ones are not left out.
        """
        rows = self.row + 1 + np.flatnonzero(usable)
        self.row += len(usable)
        if times is None and self.period is None and self._last is None:
            return usable, self._after_missing(rows)
        if times is not None and self.read_as is None:
            self.read_as = times.read_as
        moments = np.full(len(rows), NO_TIME) if times is None else times.microseconds[usable]
        in_order, gaps = self._in_order(moments, rows)
        kept = usable.copy()
        kept[usable] = in_order
        return kept, gaps

    def _after_missing(self, rows: Rows) -> list[int]:
        """Which of these come after a row that is left out, where no time says so."""
        if not len(rows):
            return []
        before = np.concatenate(([self._last_row or rows[0] - 1], rows[:-1]))
        self._last_row = int(rows[-1])
        begins: list[int] = np.flatnonzero(rows - before > 1).tolist()
        return begins

    def _in_order(self, times: Rows, rows: Rows) -> tuple[NDArray[np.bool_], list[int]]:
        """Which of the rows of these times and numbers are in order, and before which of those time
        is missing.
        """
        first = self._last if self._last is not None else NO_TIME
        latest = np.maximum.accumulate(np.concatenate(([first], times)))[:-1]
        usable = times > latest  # also false of NO_TIME
        places = np.flatnonzero(usable)
        kept = times[places]
        begins = kept[:1] if self._last is None else np.array([self._last])
        steps = np.diff(np.concatenate((begins, kept)))
        if self.period is None and (steps > 0).any():
            self.period = int(np.median(steps[steps > 0]))
        gaps: list[int] = np.flatnonzero(steps > self._longest()).tolist()
        # The order first: out of order, a row leaves a gap where it should be.
        for place in np.flatnonzero(~usable).tolist():
            self._add(int(rows[place]), int(times[place]), int(latest[place]))
        for gap in gaps:
            self._add_gap(int(rows[places[gap]]), int(kept[gap]), int(steps[gap]))
        self._last = int(kept[-1]) if len(kept) else self._last
        return usable, gaps

    def _longest(self) -> float:
        period = self.period or 0
        return LATE * period if self.max_gap is None else max(self.max_gap * MICROSECONDS, period)

    def _add(self, row: int, time: int, latest: int) -> None:
        at, instead = self._at(row), "such rows are left out and counted"
        if time == NO_TIME:
            what = "it is no time (ISO 8601, or seconds since 1970)."
            self.bad.add("times", f"{at}: {what}", instead)
        elif time == latest:
            self.bad.add("duplicates", f"{at}: {_shown(time)} is there already.", instead)
        else:
            what = f"{_shown(time)} is before {_shown(latest)}, which came earlier."
            self.bad.add("unsorted", f"{at}: {what}", instead)

    def _add_gap(self, row: int, time: int, step: int) -> None:
        missing = round(step / self.period) - 1 if self.period else 0
        rows = "1 row is" if missing == 1 else f"{missing:,} rows are"
        what = f"{rows} missing between {_shown(time - step)} and {_shown(time)}."
        instead = (
            "no sample then reaches over a gap; --max-gap allows longer ones, such as 3d for"
            " weekends"
        )
        self.bad.add("gaps", f"{self._at(row)}: {what}", instead)

    def _at(self, row: int) -> str:
        return f"{self.path}, row {row:,}, column {self.column}"


def _shown(time: int) -> str:
    return str((EPOCH + timedelta(microseconds=time)).replace(tzinfo=None))
