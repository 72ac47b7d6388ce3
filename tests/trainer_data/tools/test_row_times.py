"""What is a time in a column, and in which unit."""

from datetime import UTC, datetime

import numpy as np
import pyarrow
import pytest

from worker.trainer.tools.bad_rows import time_of
from worker.trainer.tools.row_times import NO_TIME, ColumnTimes, times_of
from worker.trainer.tools.rows.form import Form

NOON = int(datetime(2024, 2, 29, 12, tzinfo=UTC).timestamp())
EXACT = NOON * 1_000_000
NO_DATETIME = 2**62


def read(column: pyarrow.Array) -> ColumnTimes:
    found = times_of(column, pyarrow)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("unit", "digits", "each"),
    [("seconds", 10, 1), ("milliseconds", 13, 10**3), ("microseconds", 16, 10**6),
     ("nanoseconds", 19, 10**9)],
)  # fmt: skip
def test_the_number_of_digits_is_the_unit(unit, digits, each):
    number = NOON * each + each // 2
    assert len(str(number)) == digits
    half = EXACT + (500_000 if each > 1 else 0)
    for column in ([number], [str(number)], [float(number)]):
        found = read(pyarrow.array(column))
        assert (found.microseconds.tolist(), found.read_as) == ([half], f"{unit} since 1970")
    assert time_of(str(number)) == (half, f"{unit} since 1970")


@pytest.mark.parametrize("number", [10**10, 10**13, 10**16, 20_240_229_120_000_123, 10**19])
def test_what_lies_between_two_units_is_no_time(number):
    """Read as the smaller one it would be of a year from 2286 on."""
    numbers = pyarrow.array([number, NOON], pyarrow.uint64())
    for column in (numbers, pyarrow.array([str(number), str(NOON)])):
        found = read(column)
        assert found.microseconds.tolist() == [NO_TIME, EXACT]
        assert found.read_as == "seconds since 1970"
    alone = read(pyarrow.array([str(number)]))
    assert (alone.microseconds.tolist(), alone.read_as) == ([NO_TIME], None)
    with pytest.raises(ValueError, match=str(number)):
        time_of(str(number))


@pytest.mark.parametrize(
    "text",
    [
        *("nan", "inf", "-1e30", "1e300", "10000-01-01", "noon"),
        *("20240230", "202402301200", "20240230120000", "202413011200"),  # there is no such day
        *("01312024", "31012024", "1312024", "0", "60"),  # seconds of 1970, or month, day and year
    ],
)
def test_what_no_calendar_has_is_no_time(text):
    with pytest.raises(ValueError, match=r".*"):
        time_of(text)


def test_a_day_that_there_is_not_is_no_time_among_others():
    midnight = EXACT - 12 * 3600 * 10**6
    for column, first in (
        ([20240229, 20240230], midnight),
        ([202402291200, 202402301200], EXACT),
        (["20240229", "20240230"], midnight),
        (["202402291200.0", "202402301200.0"], EXACT),
    ):
        assert read(pyarrow.array(column)).microseconds.tolist() == [first, NO_TIME]


@pytest.mark.parametrize("unit", ["seconds", "milliseconds", "microseconds", "nanoseconds"])
def test_a_unit_that_is_said_reads_what_could_be_something_else(unit):
    """Of 1970, of before, and of 1976, whose milliseconds look like a day of 1905."""
    each = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}[unit]
    seconds = [0, 60, -157_766_400, 40_000_000, 190_598_400, NOON]
    for column in ([each * one for one in seconds], [f"{each * one}.0" for one in seconds]):
        found = times_of(pyarrow.array(column), pyarrow, Form(time_format=unit))
        assert found is not None
        assert found.microseconds.tolist() == [one * 10**6 for one in seconds]
        assert found.read_as == f"{unit} since 1970"
    too_far = times_of(pyarrow.array(["1e30", "noon"]), pyarrow, Form(time_format=unit))
    assert too_far is None


@pytest.mark.parametrize(
    ("text", "time_format"),
    [
        ("2024-02-29 24:00", None),
        ("2024-02-29T24:00:00", None),
        ("2024-02-29 24:00:00.000", None),
        ("2024-02-29T24:00Z", None),
        ("2024-03-01T01:30+01:30", None),
        ("02/29/2024 24:00", "%m/%d/%Y %H:%M"),
        ("29.02.2024 24:00:00", "%d.%m.%Y %H:%M:%S"),
    ],
)
def test_the_end_of_a_day_is_the_next_days_midnight(text, time_format):
    found = times_of(pyarrow.array([text]), pyarrow, Form(time_format=time_format))
    assert found is not None
    assert found.microseconds.tolist() == [EXACT + 12 * 3600 * 10**6]


@pytest.mark.parametrize("text", ["2024-02-29 24:01", "2024-02-29 24:00:01", "2024-02-29T24"])
def test_no_other_time_begins_with_24(text):
    with pytest.raises(ValueError, match=r".*"):
        time_of(text)


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([NO_DATETIME, NOON], pyarrow.timestamp("s")),
        pyarrow.array([NO_DATETIME, EXACT], pyarrow.timestamp("us", "UTC")),
        pyarrow.array([-NO_DATETIME, NOON * 1000], pyarrow.date64()),
        pyarrow.array([None, NOON], pyarrow.timestamp("s")),
    ],
)
def test_a_timestamp_of_no_year_is_no_time(column):
    assert read(column).microseconds.tolist() == [NO_TIME, EXACT]


def test_days_that_wrap_around_are_no_times():
    days = pyarrow.array([2**31 - 1, NOON // 86_400], pyarrow.date32())
    assert read(days).microseconds.tolist() == [NO_TIME, EXACT - 43_200 * 10**6]


def test_parts_of_a_second_are_kept_in_texts_of_either_width():
    texts = ["2024-02-29T12:00:00.25", "2024-02-29T13:00:00.5+01:00"]
    for kind in (pyarrow.string(), pyarrow.large_string()):
        found = read(pyarrow.array(texts, kind))
        assert np.subtract(found.microseconds, EXACT).tolist() == [250_000, 500_000]
