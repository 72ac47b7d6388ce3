"""The times of a table's rows: which rows are in order, and where time is missing between two.

Rows whose time repeats, goes back or cannot be read end the conversion, or are left out and
counted (`Bad`). A gap ends it too, or begins a new stretch, out of which no sample reaches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.source import Rows
from worker.trainer.tools.bad_rows import (
    EPOCH,
    FIRST_SECOND,
    LAST_SECOND,
    LEFT_OUT,
    MICROSECONDS,
    UNITS,
    YEAR_1,
    YEAR_10000,
    Bad,
    Time,
    is_compact,
    unit_of,
)
from worker.trainer.tools.rows.form import PLAIN, Form
from worker.trainer.tools.rows.quotes import require_one_line

NO_TIME = np.iinfo(np.int64).min
# Clocks are not exact: what comes so much later than its turn is late, and no gap.
LATE = 1.5
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of Arrow's timestamps
DAY_SECONDS = 86_400
HOUR = 3_600 * MICROSECONDS


def is_text(column: Any, library: Any) -> bool:
    """Of an Arrow column."""
    kind, types = column.type, library.types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_number(column: Any, library: Any) -> bool:
    """Of an Arrow column."""
    kind, types = column.type, library.types
    return bool(types.is_integer(kind) or types.is_floating(kind))


class ColumnTimes(NamedTuple):
    """The times of some rows, in microseconds since 1970, NO_TIME where there is none, and as what
    the first was read; None: there is none at all.
    """

    microseconds: Rows
    read_as: str | None
    texts: Any = None
    """The Arrow column of text that they were read from."""


def times_of(column: Any, library: Any, form: Form = PLAIN) -> ColumnTimes | None:
    """Of an Arrow column; None where it holds words, or numbers too small for times: its first one
    is before 1973.
    """
    types = library.types
    if form.time_format is not None:
        column = column.cast(library.string())
    if types.is_timestamp(column.type) or types.is_date(column.type):
        return ColumnTimes(_of_timestamps(column, library), "timestamps")
    if is_text(column, library):
        times = _of_iso_texts(column, library) if form.time_format is None else None
        times = times or _of_texts(column.to_pylist(), form)
        return None if times is None else times._replace(texts=column)
    if not is_number(column, library):
        return None
    numbers = column.cast(library.float64(), safe=False).to_numpy(zero_copy_only=False)
    known = numbers[np.isfinite(numbers)]
    if len(known) and is_compact(f"{known[0]:.0f}"):
        return _of_texts([f"{number:.0f}" for number in numbers], PLAIN)
    return _of_numbers(numbers) if len(known) and known[0] >= FIRST_SECOND else None


def _of_timestamps(column: Any, library: Any) -> Rows:
    """Years that no datetime has are no times: they would wrap around."""
    is_32_bits = library.types.is_date32(column.type)
    ticks = column.cast(library.int32() if is_32_bits else library.int64())
    per_second = PER_SECOND[getattr(column.type, "unit", "ms")]
    rough = ticks.cast(library.float64(), safe=False).to_numpy(zero_copy_only=False)
    rough = rough * DAY_SECONDS if is_32_bits else rough / per_second
    exact = column.cast(library.timestamp("us"), safe=False).cast(library.int64())
    found = exact.fill_null(NO_TIME).to_numpy(zero_copy_only=False)
    return np.where((rough >= YEAR_1) & (rough < YEAR_10000), found, NO_TIME)


def _of_numbers(numbers: NDArray[np.float64]) -> ColumnTimes:
    """Each in the unit in which it is a time (`bad_rows.unit_of`)."""
    exact = np.full(len(numbers), NO_TIME, np.int64)
    for each in UNITS.values():
        inside = (numbers >= FIRST_SECOND * each) & (numbers < LAST_SECOND * each)
        exact[inside] = np.round(numbers[inside] * (MICROSECONDS / each)).astype(np.int64)
    times = numbers[exact != NO_TIME]
    return ColumnTimes(exact, f"{unit_of(times[0])} since 1970" if len(times) else None)


def _of_iso_texts(column: Any, library: Any) -> ColumnTimes | None:
    """Where all of them are ISO 8601, and all with a zone or none; Arrow reads these fast."""
    for zone in (None, "UTC"):
        try:
            read = column.cast(library.timestamp("us", zone))
        except library.ArrowInvalid:
            continue
        if read.null_count == len(read):
            return None
        return ColumnTimes(_of_timestamps(read, library), "ISO 8601")
    return None


def _of_texts(texts: Sequence[str | None], form: Form) -> ColumnTimes | None:
    found = [_of_text(text, form) for text in texts]
    if not any(found) and not _begins_with_digits(texts):
        return None
    exact = [NO_TIME if time is None else time.microseconds for time in found]
    read_as = next((time.read_as for time in found if time is not None), None)
    return ColumnTimes(np.array(exact, np.int64), read_as)


def _begins_with_digits(texts: Sequence[str | None]) -> bool:
    """Whether the first is a number that is large enough for a time, though it may be none."""
    first = next((text.strip() for text in texts if text), "")
    return first.isdecimal() and int(first) >= FIRST_SECOND


def _of_text(text: str | None, form: Form) -> Time | None:
    try:
        return None if text is None else form.moment(text)
    except ValueError:
        return None


@dataclass
class RowTimes:
    """Follows the times of the rows of a file. `max_gap`: seconds from one row to the next that are
    no gap; default: half as many again as rows usually lie apart.
    """

    path: Path
    column: str
    bad: Bad
    form: Form = PLAIN
    max_gap: int | None = None
    period: int | None = None
    """Microseconds from one row to the next, as most rows of the first piece have it."""
    read_as: str | None = None
    """What the first time was read as; None before there was one."""
    row: int = 0
    """How many rows have been taken."""
    _last: int | None = None
    """The time of the last kept row, and which that was."""
    _last_row: int = 0
    _left_out: int = 0
    """How many rows have been left out whose time is not known, or not looked at; and how many of
    them came before the last kept one; None: there was no kept one.
    """
    _left_out_before: int | None = None
    _texts: Any = None
    """Of the rows that are taken now, and how many came before those."""
    _before: int = 0

    def take(
        self, times: ColumnTimes | None, usable: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], list[int]]:
        """Which of the next rows are kept, of those that are `usable` otherwise; and which of the
        kept ones, by number, begin a stretch. `times` None: none of them has one, and all are kept
        where no row before had one either. Raises DataError where bad ones are not left out.
        """
        self._texts, self._before = (None if times is None else times.texts), self.row
        rows = self.row + 1 + np.flatnonzero(usable)
        self.row += len(usable)
        if times is None and self.period is None and self._last is None:
            return usable, self._after_left_out(usable, ~usable)
        if times is not None and self.read_as is None:
            self.read_as = times.read_as
        moments = np.full(len(rows), NO_TIME) if times is None else times.microseconds[usable]
        in_order, begins = self._in_order(moments, rows)
        kept, left_out = usable.copy(), ~usable
        kept[usable], left_out[usable] = in_order, moments == NO_TIME
        return kept, sorted({*begins, *self._after_left_out(kept, left_out)})

    def _after_left_out(self, kept: NDArray[np.bool_], left_out: NDArray[np.bool_]) -> list[int]:
        """Which of the kept rows, by number, come after one that is left out: no gap in time may
        say so, as with --max-gap.
        """
        before = self._left_out + np.cumsum(left_out)[kept]
        self._left_out += int(left_out.sum())
        if not len(before):
            return []
        first = before[0] if self._left_out_before is None else self._left_out_before
        self._left_out_before = int(before[-1])
        begins: list[int] = np.flatnonzero(np.diff(before, prepend=first)).tolist()
        return begins

    def _in_order(self, times: Rows, rows: Rows) -> tuple[NDArray[np.bool_], list[int]]:
        """Which of the rows of these times and numbers are in order, and before which of those time
        is missing, or a row that came too late would have been.
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
            behind = int(np.searchsorted(places, place))  # of the kept, the last is the latest
            before = int(rows[places[behind - 1]]) if behind else self._last_row
            self._add(int(rows[place]), int(times[place]), int(latest[place]), before)
        for gap in gaps:
            self._add_gap(int(rows[places[gap]]), int(kept[gap]), int(steps[gap]))
        late = times[~usable & (times > (begins[0] if len(begins) else first))]
        late = late[~np.isin(late, kept)]
        if len(kept):
            self._last, self._last_row = int(kept[-1]), int(rows[places[-1]])
        return usable, [*gaps, *np.searchsorted(kept, late).tolist()]

    def _longest(self) -> float:
        period = self.period or 0
        return LATE * period if self.max_gap is None else max(self.max_gap * MICROSECONDS, period)

    def _add(self, row: int, time: int, latest: int, latest_row: int) -> None:
        at = self._at(row)
        if time == NO_TIME:
            text = self._text(row)
            require_one_line(at, text or "")
            shown = "it" if text is None else repr(text)
            self.bad.add("times", f"{at}: {shown} {self.form.is_no_time}.", LEFT_OUT)
        elif time == latest:
            what = f"{_shown(time)} is there already.{clock_changed(time)}"
            self.bad.add("duplicates", f"{at}: {what}", LEFT_OUT)
        else:
            what = f"{_shown(time)} is before {_shown(latest)} of row {latest_row:,}."
            self.bad.add("unsorted", f"{at}: {what}{clock_changed(time)}", LEFT_OUT)

    def _text(self, row: int) -> str | None:
        text = None if self._texts is None else self._texts[row - 1 - self._before].as_py()
        return None if text is None else str(text)

    def _add_gap(self, row: int, time: int, step: int) -> None:
        missing = round(step / self.period) - 1 if self.period else 0
        rows = "1 row is" if missing == 1 else f"{missing:,} rows are"
        what = f"{rows} missing between {_shown(time - step)} and {_shown(time)}."
        if step - (self.period or 0) == HOUR:
            what += clock_changed(time)
        instead = (
            "no sample then reaches over a gap; --max-gap allows longer ones, such as 3d for"
            " weekends"
        )
        self.bad.add("gaps", f"{self._at(row)}: {what}", instead)

    def _at(self, row: int) -> str:
        return f"{self.path}, row {row:,}, column {self.column}"


def clock_changed(time: int) -> str:
    """A sentence where the time, in microseconds, is one at which clocks are changed: a Sunday
    before four.
    """
    when = EPOCH + timedelta(microseconds=time)
    if when.weekday() != 6 or (when.hour, when.minute) > (3, 0):
        return ""
    return (
        " If this is a clock that was changed to or from summer time: write the times in UTC, or"
        " with their offset."
    )


def _shown(time: int) -> str:
    return str((EPOCH + timedelta(microseconds=time)).replace(tzinfo=None))
