"""Which columns of a table say when its rows were: named by the user, by their names, or none.

A table whose times nobody reads would have its gaps in samples, unseen: what looks like times is
refused until the user names it, or says that there are none.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worker.trainer.data.formats.arrow_index import arrow
from worker.trainer.errors import DataError
from worker.trainer.tools.bad_rows import DAY, TIME_NAMES, time_of
from worker.trainer.tools.row_times import (
    NO_TIME,
    ColumnTimes,
    is_number,
    is_text,
    times_of,
)
from worker.trainer.tools.rows.form import (
    PLAIN,
    Form,
    formats_of,
    is_like_time,
    is_number_of_any,
    offered,
    time_place,
)
from worker.trainer.tools.rows.text_columns import numbers_of, sampled

# Beside a column of days, those say at what time of the day a row is: it is no time by itself.
TIMES_OF_DAY = ("time", "hour", "hours", "hr", "minute", "minutes")
PARTS = ("year", "month", "day", "hour", "minute", "second")
# Such a column of 8 digits may have days, written in any order.
DAY_NAMES, DIGITS = ("timestamp", "datetime", "date"), r"\d{8}"
MANY = 2  # times by which an order is known
USUAL = "`time`, `timestamp`, `datetime` or `date`"
WITHOUT = "--no-time if gaps between rows need not be seen"


def read_times(batch: Any, columns: Sequence[str], form: Form) -> ColumnTimes | None:
    """The times of the rows of a record batch; None where it holds none."""
    return times_of(_joined(batch, columns), arrow(), form)


def _joined(batch: Any, columns: Sequence[str]) -> Any:
    """One column as it is; of several the texts, with spaces between."""
    if len(columns) == 1:
        return batch[columns[0]]
    library = arrow()
    from pyarrow import compute  # late, as pyarrow itself

    return compute.binary_join_element_wise(
        *(batch[name].cast(library.string()) for name in columns), " "
    )


def find_time(path: Path, batch: Any, form: Form) -> tuple[str, ...]:
    """The columns of the time, by the first rows; empty: there is none. Raises DataError where
    there is one and it cannot be read, or goes back.
    """
    columns = _columns_of_time(path, batch, form)
    times = read_times(batch, columns, form) if columns else None
    if times is not None:
        known = times.microseconds[times.microseconds != NO_TIME]
        if len(known) > MANY and (np.diff(known) < 0).all():
            raise DataError(
                f"{path} begins with its newest row and goes back in time. Sort its rows, the"
                " oldest first."
            )
    return columns


def _columns_of_time(path: Path, batch: Any, form: Form) -> tuple[str, ...]:
    low = {name.strip().lower(): name for name in batch.schema.names}
    if not form.has_time:
        return ()
    if form.time:
        names = batch.schema.names
        columns = tuple(names[time_place(path, name, names)] for name in form.time)
        _require_times(path, batch, columns, form)
        return columns
    usual = [low[name] for name in TIME_NAMES if _may_be_time(batch, low, name)]
    for name in usual:
        if _holds(batch, name):
            _require_whole(path, batch, name, low, form)
            _require_times(path, batch, (name,), form)
            return (name,)
    _require_none(path, batch, low)
    for name in usual:
        _require_no_days(path, batch, name, form)
    if form.time_format is not None:
        if not usual:
            raise DataError(
                f"{path} has no column called {USUAL}. Name the one of --time-format: --time."
            )
        _require_times(path, batch, (usual[0],), form)
    return tuple(usual[:1])


def _may_be_time(batch: Any, low: Mapping[str, str], name: str) -> bool:
    """Whether there is such a column. Of none without a name, which pandas makes of its index, if
    that is numbers.
    """
    if name not in low:
        return False
    column = batch[low[name]]
    return bool(name) or not _has_numbers(column)


def _has_numbers(column: Any) -> bool:
    return is_number(column, arrow()) or all(map(is_number_of_any, sampled(column)))


def _holds(batch: Any, name: str) -> bool:
    """Whether the values of a column are times, or were meant as such."""
    column, library = batch[name], arrow()
    if library.types.is_temporal(column.type):
        return not library.types.is_duration(column.type)
    if is_text(column, library):
        texts = sampled(column)
        if not all(map(is_number_of_any, texts)):
            times = times_of(column, library)
            read = 0 if times is None else int((times.microseconds != NO_TIME).sum())
            alike = sum(map(is_like_time, texts))
            return 2 * alike >= len(texts) > 0 or 2 * read >= len(column) - column.null_count > 0
        column = library.array(numbers_of(column, PLAIN))
    return is_number(column, library) and times_of(column, library) is not None


def _require_times(path: Path, batch: Any, columns: tuple[str, ...], form: Form) -> None:
    """DataError where most rows of what should be the time have none, or all are written in one
    other way.
    """
    joined = _joined(batch, columns)
    unread = _unread(joined, form)
    formats = _formats(joined, unread) if form.time_format is None else []
    if not formats and not _is_most(joined, unread):
        return
    named = " ".join(f"--time {shlex.quote(name)}" for name in columns) if form.time else ""
    raise DataError(
        f"{path}, row {unread[0] + 1}, column {' and '.join(columns)}:"
        f" {str(joined[unread[0]].as_py())!r} {form.is_no_time}."
        f" Pass {f'{named} {offered(formats)}'.strip()}, or {WITHOUT}."
    )


def _unread(column: Any, form: Form) -> list[int]:
    """Which rows have something there that is no time."""
    times = times_of(column, arrow(), form)
    none = np.ones(len(column), bool) if times is None else times.microseconds == NO_TIME
    known = column.is_valid().to_numpy(zero_copy_only=False)
    return [int(place) for place in np.flatnonzero(none & known)]


def _is_most(column: Any, unread: list[int]) -> bool:
    """Whether most of the values that are there are unread."""
    return 2 * len(unread) > len(column) - int(column.null_count)


def _formats(column: Any, unread: list[int]) -> list[str]:
    """Ways to write that read a column of which rows are unread. Where these are few, they have to
    read those too: else those are no times at all, and the others need no format.
    """
    if not unread:
        return []
    texts = sampled(column)
    if not _is_most(column, unread):
        texts += sampled(column.take(arrow().array(unread)))
    return formats_of(texts)


def _require_whole(path: Path, batch: Any, usual: str, low: Mapping[str, str], form: Form) -> None:
    """DataError where a column holds days alone, or times of day, and another one the rest."""
    times = times_of(batch[usual], arrow(), form)
    if usual == low.get("time") and times is not None:
        return
    days = low.get("date") if usual == low.get("time") else usual
    clock = next((low[name] for name in TIMES_OF_DAY if name in low and low[name] != days), None)
    if days is None or clock is None or any(":" in text for text in sampled(batch[days])):
        return
    if days == usual and times is not None:
        known = times.microseconds[times.microseconds != NO_TIME]
        if (known % DAY).any() or (np.diff(known) > 0).all():
            return  # more than days, or another day in each row
    raise DataError(_to_join(path, batch, (days, clock), f"{days} and {clock} are the time of"))


def _to_join(path: Path, batch: Any, columns: Sequence[str], what: str) -> str:
    return f"{path}: {what} a row together. Pass {_to_name(batch, columns)}, or {WITHOUT}."


def _to_name(batch: Any, columns: Sequence[str]) -> str:
    """The options that make these the columns of the time."""
    given = " ".join(f"--time {shlex.quote(name)}" for name in columns)
    joined = _joined(batch, columns)
    unread = _unread(joined, PLAIN)
    formats = _formats(joined, unread)
    if _is_most(joined, unread) or formats:
        return f"{given} {offered(formats)}"
    return given


def _require_none(path: Path, batch: Any, low: Mapping[str, str]) -> None:
    """DataError where a column of another name has times."""
    if "year" in low and "month" in low:
        parts = [low[name] for name in PARTS if name in low]
        raise DataError(_to_join(path, batch, parts, f"{', '.join(parts)} are the time of"))
    for name in batch.schema.names:
        if _holds(batch, name) and _can_be_times(batch[name]):
            _require_whole(path, batch, name, low, PLAIN)
            told = f"the column {name!r} looks" if name else "the column without a name looks"
            texts = sampled(batch[name])
            shown = next((text for text in texts if is_like_time(text)), texts[0])
            raise DataError(
                f"{path}: {told} like times, such as {shown!r}, and none is called {USUAL}. Pass"
                f" {_to_name(batch, [name])}, or {WITHOUT}."
            )


def _require_no_days(path: Path, batch: Any, name: str, form: Form) -> None:
    """DataError where a column whose name says so has days in another order, as in 01312024."""
    texts = sampled(batch[name])
    is_days = name.strip().lower() in DAY_NAMES and all(re.fullmatch(DIGITS, t) for t in texts)
    if is_days and form.time_format is None and formats_of(texts):
        _require_times(path, batch, (name,), form)


def _can_be_times(column: Any) -> bool:
    """Of numbers whether they can be times of rows: most are one, later than the one before, and
    hardly any is earlier. Repeated ones and empty cells are what should be told of such a table.
    """
    if not _has_numbers(column):
        return True
    numbers = numbers_of(column, PLAIN) if is_text(column, arrow()) else column.to_numpy(False)
    known = np.asarray(numbers, np.float64)
    known = known[np.isfinite(known)]
    are_times = [_is_time(one) for one in known[:100].tolist()]
    steps = np.diff(known)
    rise, fall = int((steps > 0).sum()), int((steps < 0).sum())
    if not len(steps) or 2 * rise < len(steps) or 10 * fall > len(steps):
        return False
    return 2 * sum(are_times) > len(are_times)


def _is_time(number: float) -> bool:
    try:
        time_of(f"{number:.0f}")
    except ValueError:
        return False
    return True
