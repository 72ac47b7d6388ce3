"""How a table of text is written: decimal mark, names, and which columns say the time.

Only its user knows: they are options of `stoker data convert`.
"""

import argparse
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import product
from pathlib import Path

from app.suggest import closest, did_you_mean
from worker.trainer.errors import DataError
from worker.trainer.tools.bad_rows import (
    IS_NO_TIME,
    UNITS,
    Time,
    microseconds_of,
    since_1970,
    time_of,
)

# What is a number as somebody writes it, with either mark.
ANY_NUMBER = r"^[+-]?(\d+|\d{1,3}([.,' ]\d{3})+)?([.,]\d*)?([eE][+-]?\d+)?$"
WORDS = ("true", "false", "nan", "inf", "-inf")
# (decimal mark, mark of thousands), the usual ways to write.
WAYS = ((".", ""), (",", ""), (".", ","), (",", "."), (".", " "), (",", " "), (".", "'"))


# Ways to write a time that are offered where they read all that is seen.
DATES = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y"),
    *("%Y-%m-%d", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%Y-%m", "%Y/%m", "%m/%Y", "%d-%b-%Y"),
    *("%d %b %Y", "%b %d, %Y", "%b %Y", "%Y %m %d", "%Y %m"),
)
DIGIT_DATES = ("%Y%m%d", "%m%d%Y", "%d%m%Y")  # of 8 digits: with fewer, a day may be read wrongly
CLOCKS = (
    *("", " %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p", " %H", "T%H:%M"),
    " %H:%M:%S.%f",
)


@dataclass(frozen=True)
class Form:
    """What the user says of a table."""

    time: tuple[str, ...] = ()
    """Columns that together say when a row was; empty: the one of a usual name."""
    time_format: str | None = None
    """As `datetime.strptime` takes it, or one of UNITS; None: as `time_of` reads."""
    has_time: bool = True
    decimal: str = "."
    thousands: str = ""
    has_names: bool = True

    @cached_property
    def is_plain(self) -> bool:
        return (self.decimal, self.thousands) == (".", "")

    @cached_property
    def number_pattern(self) -> str:
        """What is a number; for Python and Arrow."""
        mark = re.escape(self.decimal)
        whole = rf"\d+|\d{{1,3}}({re.escape(self.thousands)}\d{{3}})+" if self.thousands else r"\d+"
        return rf"^[+-]?(({whole})({mark}\d*)?|{mark}\d+)([eE][+-]?\d+)?$"

    def number(self, text: str) -> float:
        """NaN where it is none, and where it says so."""
        if self.is_plain and "_" not in text:  # which Python alone reads
            try:
                return float(text)
            except ValueError:
                return math.nan
        text = text.strip()
        if re.match(self.number_pattern, text):
            text = text.replace(self.thousands, "") if self.thousands else text
            return float(text.replace(self.decimal, "."))
        return float(text) if text.lower().lstrip("+-") in ("inf", "infinity") else math.nan

    def advice(self, text: str, separator: str = ",") -> str:
        """By which options the text would be a number; a sentence with a space before it. Where
        columns are not separated by commas, a comma is taken for the decimal mark if it can be one.
        """
        ways = [Form(decimal=decimal, thousands=thousands) for decimal, thousands in WAYS]
        ways = [way for way in ways if way.thousands in text]
        others = [way for way in ways if not math.isnan(way.number(text))]
        if not text.strip() or not math.isnan(self.number(text)) or not others:
            return ""
        if separator != ",":
            others = [way for way in others if way.decimal == ","] or others
        return f" It would be one with {' or with '.join(way.options for way in others)}."

    @property
    def options(self) -> str:
        """That say how numbers are written."""
        thousands = [f"--thousands {_quoted(self.thousands)}"] if self.thousands else []
        decimal = (
            [] if thousands and self.decimal == "." else [f"--decimal {_quoted(self.decimal)}"]
        )
        return " ".join([*decimal, *thousands])

    def moment(self, text: str) -> Time:
        """Raises ValueError where it is no time."""
        if self.time_format is None:
            return time_of(text)
        if self.time_format in UNITS:
            return since_1970(text, self.time_format)
        exact = microseconds_of(text.strip(), self._of_format)
        return Time(exact, repr(self.time_format))

    def _of_format(self, text: str) -> datetime:
        return datetime.strptime(text, self.time_format or "")  # noqa: DTZ007  the caller adds UTC

    def no_time(self, text: str) -> str:
        """Why a text is no time, and how it would be one; sentences."""
        formats = formats_of([text]) if self.time_format is None else []
        return f"{text!r} {self.is_no_time}." + (f" Pass {offered(formats)}." if formats else "")

    @property
    def time_column(self) -> str:
        """What to call it."""
        return " and ".join(self.time) or "time"

    @property
    def is_no_time(self) -> str:
        """Said of a text."""
        return IS_NO_TIME if self.time_format is None else f"is no time as {self.time_format!r}"


def _quoted(mark: str) -> str:
    """As it is typed; a shell needs no quotes for some, but a reader does."""
    return f'"{mark}"' if mark == "'" else f"'{mark}'"


PLAIN = Form()


def is_number_of_any(text: str) -> bool:
    """Whether it is a number with some decimal mark, or a word for one."""
    text = text.strip()
    return text.lower() in WORDS or bool(
        re.match(ANY_NUMBER, text) and any(character.isdigit() for character in text)
    )


_DATE = r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{4}[-/.]\d{1,2}|\d{4} ?-?[QqWw]\d{1,2}"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_NAMED = rf"(\d{{1,2}}[-/ .]+)?{_MONTH}[-/ ,.]+(\d{{1,2}},? )?\d{{2,4}}"
LIKE_TIME = re.compile(rf"({_DATE}|{_NAMED}|\d{{1,2}}:\d{{2}}(:\d{{2}})?)(?![\d.])", re.IGNORECASE)


def is_like_time(text: str) -> bool:
    """Whether somebody may have meant a date or a time of day."""
    text = text.strip()
    return not re.fullmatch(r"[+-]?\d+\.\d*", text) and LIKE_TIME.match(text) is not None


def time_place(path: Path, name: str, names: Sequence[str]) -> int:
    """Where the column of a name is that --time has. DataError with those there are."""
    low, wanted = [one.strip().lower() for one in names], name.strip().lower()
    if wanted not in low:
        raise DataError(
            f"{path} has no column {name!r} for --time; it has {', '.join(names)}."
            f"{did_you_mean(closest(name, names))}"
        )
    return low.index(wanted)


def formats_of(texts: Sequence[str]) -> list[str]:
    """Ways to write a time that read all of these."""
    dates: tuple[str, ...] = DATES
    if all(re.match(r"\d{8}(?!\d)", text.strip()) for text in texts):
        dates = DIGIT_DATES
    ways = (*map("".join, product(dates, CLOCKS)), "%Y %m %d %H %M")
    return [one for one in ways if texts and _reads(Form(time_format=one), texts)]


def _reads(form: Form, texts: Sequence[str]) -> bool:
    try:
        return all(form.moment(text) for text in texts)
    except ValueError:
        return False


def offered(formats: Sequence[str]) -> str:
    """The options that read a time so."""
    told = " or ".join(f"--time-format {shlex.quote(one)}" for one in formats)
    return told or "--time-format FORMAT (as Python's strptime takes it)"


def add_form(parser: argparse.ArgumentParser) -> None:
    """The options that `form_of` reads."""
    parser.add_argument("--time", action="append", default=[])
    parser.add_argument("--time-format")
    parser.add_argument("--no-time", dest="has_time", action="store_false")
    parser.add_argument("--decimal", default=".")
    parser.add_argument("--thousands", default="")
    parser.add_argument("--no-header", dest="has_names", action="store_false")


def form_of(options: argparse.Namespace) -> Form:
    """Raises DataError for a format that is none."""
    form = Form(
        tuple(options.time),
        options.time_format,
        options.has_time,
        options.decimal,
        options.thousands,
        options.has_names,
    )
    if form.time_format is not None and form.time_format not in UNITS:
        try:
            form.moment(datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC).strftime(form.time_format))
        except (ValueError, re.error) as error:
            raise DataError(
                f"--time-format {form.time_format!r} cannot be read: {error}. It is written as"
                " Python's strptime takes it, such as '%d.%m.%Y %H:%M', or is the unit of numbers"
                f" since 1970: {', '.join(UNITS)}."
            ) from None
    return form
