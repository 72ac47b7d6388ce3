"""Rows of a table that cannot be used, how a time is read, and what such a column is called."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.trainer.errors import DataError
from worker.trainer.tools.timeframes import UNIT_SECONDS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_NAMES = ("time", "timestamp", "datetime", "date", "gmt time", "")
# Times in digits: since 1970, of the years from 1973 on, until 2286. What lies between two units is
# taken for neither: read as the smaller one it would be of a far future.
FIRST_SECOND, LAST_SECOND = 10**8, 10**10
UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
IS_NO_TIME = (
    "is no time: neither ISO 8601 nor, since 1970, seconds (9 or 10 digits), milliseconds (13),"
    " microseconds (16) or nanoseconds (19); nor 20240131 or 202401311200 of a day that there is."
    " --time-format reads other ways to write it, and takes the unit of other numbers"
)
YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800  # seconds since 1970; a datetime lies between
MICROSECONDS = 1_000_000
DAY = 86_400 * MICROSECONDS
COMPACT = {len(form): form for form in ("YYYYMMDD", "YYYYMMDDHHMM", "YYYYMMDDHHMMSS")}
FIRST_YEAR, LAST_YEAR = "1900", "2100"
# Hours that are named by their end go from 1:00 to 24:00, as in TMY3.
END_OF_DAY = re.compile(r"(?<![\d:.])24(:00(?::00(?:\.0+)?)?)(?![\d:.])")
LENGTH_OF_TIME = re.compile(r"([1-9][0-9]{0,4})([mhdw])")
TOLD = 5
LEFT_OUT = "such rows are left out and counted"


@dataclass
class Bad:
    """What to do with what cannot be used, and how much of it there was."""

    skips: bool
    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    firsts: dict[str, str] = field(default_factory=dict)
    """The first sentence of each kind."""

    @property
    def tells(self) -> bool:
        """Whether the next sentence is told; else it is only counted, and need not be made."""
        return not self.skips or len(self.told) < TOLD

    def add(self, kind: str, sentence: str, instead: str) -> None:
        """Raises DataError, unless such are skipped. `instead`: what skipping would do."""
        if not self.skips:
            raise DataError(f"{sentence} Mend the file, or pass --on-bad skip: {instead}.")
        self.counts[kind] += 1
        self.firsts.setdefault(kind, sentence)
        if self.tells:
            self.told.append(sentence)

    def finite(
        self,
        where: str,
        before: int,
        names: Sequence[str],
        rows: NDArray[Any],
        told: Callable[[int, int], str] | None = None,
        misfits: Mapping[int, tuple[str, str]] = MappingProxyType({}),
    ) -> NDArray[np.bool_]:
        """Which rows (rows, columns) hold finite numbers alone. `before`: how many rows came before
        these; `told`: what is wrong with the text at such a place, empty where there is none;
        `misfits`: rows that are wrong as a whole, by kind and in words. Raises DataError for
        others, unless such are skipped.
        """
        usable = _finite(rows)
        for place in np.flatnonzero(~usable).tolist():
            if place in misfits:
                kind, said = misfits[place]
                self.add(kind, f"{where} {before + place + 1:,}: {said}", LEFT_OUT)
                continue
            column = int(np.flatnonzero(~np.isfinite(rows[place]))[0])
            is_missing = bool(np.isnan(rows[place, column]))
            what = "no number (missing, or NaN)" if is_missing else "infinite as a 32-bit number"
            said = told(place, column) if told is not None and is_missing else ""
            self.add(
                "not_numbers",
                f"{where} {before + place + 1:,}, column {names[column]}: "
                + (said or f"it is {what}."),
                LEFT_OUT,
            )
        return usable

    def require_order(self, path: Path, kept: int) -> None:
        """DataError where more rows go back in time than are kept: nobody means that by a row to
        skip. One time that is far ahead leaves out all rows behind it.
        """
        if (count := self.counts["unsorted"]) > kept:
            raise DataError(
                f"{path}: {count:,} rows would be left out because they go back in time, and"
                f" only {kept:,} kept. Sort the rows by time; if they are sorted, a time is too far"
                f" ahead: mend it. {self.firsts['unsorted']}"
            )

    def left_out(self) -> str:
        """What was skipped, as a part of a sentence."""
        kinds = ", ".join(f"{kind.replace('_', ' ')} {n:,}" for kind, n in self.counts.items())
        return f" (left out: {kinds})" if kinds else ""


class Time(NamedTuple):
    """When something was, in microseconds since 1970, and as what its text was read."""

    microseconds: int
    read_as: str

    @property
    def seconds(self) -> int:
        return round(self.microseconds / MICROSECONDS)


@dataclass
class NotFinite:
    """Samples with NaN or infinity, in arrays that are written as they are."""

    found: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By array how many there are, and the place of the first."""

    def look(self, name: str, begin: int, rows: NDArray[Any]) -> None:
        """At samples of an array, which begin at this place."""
        if rows.dtype.kind != "f" or not len(rows):
            return
        places = begin + np.flatnonzero(~_finite(rows))
        if len(places):
            count, first = self.found.get(name, (0, int(places[0])))
            self.found[name] = count + len(places), min(first, int(places[0]))

    def sentences(self) -> list[str]:
        """A warning for each array that has some."""
        return [_warning(name, *found) for name, found in self.found.items()]


def _warning(name: str, count: int, first: int) -> str:
    have = f"1 sample of {name} has" if count == 1 else f"{count:,} samples of {name} have"
    return (
        f"{have} NaN or infinite values; the first is {name}[{first}]. They are written as they "
        "are, and a run that reads them fails: leave them out, or put numbers there."
    )


def _finite(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Of each row whether all of its numbers are finite."""
    return np.asarray(np.isfinite(rows.reshape(len(rows), -1)).all(axis=1))


def time_of(text: str) -> Time:
    """Of ISO 8601 (UTC where no zone is said), of digits alone (`is_compact`), or of a number since
    1970 (`unit_of`). Raises ValueError.
    """
    text = text.strip()
    if text.endswith(".0") and text[:-2].isdecimal():
        text = text[:-2]  # as pandas writes whole numbers of a column that has gaps
    if is_compact(text):
        return Time(_of_iso(f"{text[:8]}T{text[8:]}" if text[8:] else text), COMPACT[len(text)])
    try:
        number = float(text)
    except ValueError:
        return Time(_of_iso(text), "ISO 8601")
    if (unit := unit_of(number)) is None:
        raise ValueError(text)
    return since_1970(text, unit)


def since_1970(text: str, unit: str) -> Time:
    """Of a number in one of UNITS, also before 1970. Raises ValueError."""
    each, exact = UNITS[unit], float(text)
    if not YEAR_1 * each <= exact < LAST_SECOND * each:
        raise ValueError(text)
    whole = int(text) if text.strip().isdecimal() else None
    found = round(exact * (MICROSECONDS / each)) if whole is None else whole * MICROSECONDS // each
    return Time(found, f"{unit} since 1970")


def unit_of(number: float) -> str | None:
    """The one of UNITS in which a number is a time; None where it is none, or could be two."""
    for unit, each in UNITS.items():
        if FIRST_SECOND * each <= number < LAST_SECOND * each:
            return unit
    return None


def is_compact(text: str) -> bool:
    """Whether it is written as 20240131, 202401311200 or 20240131120000, of the years 1900 to 2100,
    though there may be no such day. As a number it would be a time of 1970 or of a far future.
    """
    return len(text) in COMPACT and text.isdecimal() and FIRST_YEAR <= text[:4] <= LAST_YEAR


def _of_iso(text: str) -> int:
    return microseconds_of(text, datetime.fromisoformat)


def microseconds_of(text: str, read: Callable[[str], datetime]) -> int:
    """Returns microseconds since 1970 of a text that `read` takes, in UTC where it names no zone.

    24:00 is the next day's midnight, which neither `fromisoformat` nor `strptime` reads. Raises
    ValueError.
    """
    by_0, hours_24 = END_OF_DAY.subn(r"00\1", text)
    when = read(by_0)
    moment = when if when.tzinfo else when.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1) + hours_24 * DAY


def told_time(seconds: int) -> str:
    """Seconds since 1970, for people."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def gap_of(text: str) -> int:
    """Seconds of a length such as 90m, 6h, 3d or 2w. Raises DataError."""
    found = LENGTH_OF_TIME.fullmatch(text.lower())
    if found is None:
        raise DataError(
            f"{text!r} is no length of time; write minutes, hours, days or weeks: 90m, 6h, 3d, 2w."
        )
    return int(found[1]) * UNIT_SECONDS[found[2].upper()]
