"""`stoker data convert` and CSV as it comes: separators, decimal marks, names, times."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.cli.data.test_convert import CUT, skipped

pytestmark = pytest.mark.usefixtures("converter_here")

BEGIN = datetime(2024, 1, 30, tzinfo=UTC)  # 100 hours, over the end of a month
HEAD = "time,hour,warmth"
ISO = "%Y-%m-%d %H:%M:%S"


def rows(form: str = ISO, line: str = "{},{},{}", mark: str = ".", base: float = 0.0) -> list[str]:
    """Of 100 hours; warmth is half of the hour, from this on."""
    times = [(BEGIN + timedelta(hours=hour)).strftime(form) for hour in range(100)]
    warmth = [f"{base + hour / 2:,.1f}".replace(".", mark) for hour in range(100)]
    return [line.format(*row) for row in zip(times, range(100), warmth, strict=True)]


def with_gap(given: list[str]) -> list[str]:
    return [*given[:40], *given[43:]]


def changed(row: int, text: str, column: int = 2) -> list[str]:
    """Rows with another text at one place, counted from 1."""
    given = rows()
    fields = given[row - 1].split(",")
    fields[column] = text
    given[row - 1] = ",".join(fields)
    return given


def write(path: Path, lines: list[str], end: str = "\n", encoding: str = "utf-8") -> Path:
    path.write_bytes(end.join([*lines, ""]).encode(encoding))
    return path


EUROPE = ("%d.%m.%Y %H:%M", "{};{};{}", ",")
UCI = ("%d/%m/%Y;%H:%M:%S", "{};{};{}")
PARTS = "%Y,%m,%d,%H"
NAMED = ("--time", "year", "--time", "month", "--time", "day", "--time", "hour")


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        (["when,hour,warmth", *rows()], (), "'when' looks like times, such as '2024-01-30 "),
        (["when,hour,warmth", *changed(9, "n/a", 0)], (), "Pass --time when, or --no-time"),
        ([HEAD, *rows("%d.%m.%Y %H:%M")], (), "Pass --time-format '%d.%m.%Y %H:%M', or --no-time"),
        (["when,hour,warmth", *rows("%s")], (), "'when' looks like times, such as '17065"),
        (["unix,hour,warmth", *[*rows("%s")[:9], *rows("%s")[8:]], ",100,50"], (), "'unix' looks"),
        (["when,hour,warmth", *rows("%Y%m%d%H%M")], (), "Pass --time when, or --no-time"),
        (["Gmt time,hour,warmth", *rows("%d.%m.%Y %H:%M:%S.000")], (),
         "Pass --time-format '%d.%m.%Y %H:%M:%S.%f', or"),
        ([HEAD, *rows("%H:%M")], (), "'00:00' is no time"),
        ([HEAD, *rows("%d%m%y")], ("--time-format", "%d.%m.%y"), "is no time as '%d.%m.%y'"),
        (["date,hour,warmth", *rows("%Y-%m-%d")], (), "date and hour are the time of a row"),
        (["dteday,hr,warmth", *rows("%Y-%m-%d")], (), "dteday and hr are the time of a row"),
        ([HEAD, *reversed(rows())], ("--on-bad", "skip"), "begins with its newest row"),
        (["Date;Time;hour;warmth", *rows(*UCI)], (),
         "Pass --time Date --time Time --time-format '%d/%m/%Y %H:%M:%S', or"),
        (["year,month,day,hour,n,warmth", *rows(PARTS)], (),
         f"Pass {' '.join(NAMED)} --time-format '%Y %m %d %H'"),
        ([HEAD, *rows()], ("--time", "tmie"), "no column 'tmie' for --time; it has time, hour"),
        ([HEAD, *rows()], ("--time", "warmth"), "column warmth: '0.0' is no time"),
        (["a,hour,warmth", *rows("x")], ("--time-format", "%Y"), "no column called `time`, `time"),
        ([HEAD, *rows()], ("--time-format", "%H %H"), "--time-format '%H %H' cannot be read"),
        ([HEAD, *rows()], ("--time-format", "%d.%m.%Y"), "is no time as '%d.%m.%Y'"),
        ([HEAD, *changed(41, "noon", 0)], (), "row 41, column time: 'noon' is no time"),
        (["time;hour;warmth", *rows(ISO, *EUROPE[1:])], (),
         "row 1, column warmth: '0,0' is no number. It would be one with --decimal ','."),
        (["Datum;hour;warmth", *rows("%d.%m.%Y %H:%M", "{};{};{}126", ",")], (),
         "none is called `time`, `timestamp`, `datetime` or `date`. Pass --time Datum --time-format"
         " '%d.%m.%Y %H:%M', or --no-time if gaps between rows need not be seen. Also row 1"),
        (["Datum;hour;warmth", *rows("%d.%m.%Y %H:%M", "{};{};{}26", ",")], (),
         "'0,026' is no number. It would be one with --decimal ','.\n"),
        ([HEAD, *rows(line='{},{},"{}"', base=1000)], (), "--thousands ','"),
        ([HEAD, *rows()], ("--target", "hour,warmth"), "'hour,warmth' names 2. Convert once"),
        ([HEAD, *rows()], ("--target", "time"), "The column 'time' says when each row was"),
        ([HEAD, *changed(61, "?")], (), "row 61, column warmth: '?' is no number"),
        ([HEAD, *changed(1, "°C")], (), "row 1, column warmth: '°C' is no number"),
        ([HEAD, *changed(61, "1_0")], (), "'1_0' is no number"),
        (["sep=;", "time;hour;warmth", *rows(ISO, "{};{};{}")], (), "which Excel alone reads"),
        (rows(), (), "Pass --no-header, which calls them c0, c1, …"),
        ([HEAD], (), "the names of columns (time, hour, warmth) and no rows"),
        ([""], (), "is empty"),
        (["time,warmth,warmth", *rows()], (), "two columns of the name 'warmth'"),
        ([HEAD, *rows(), "2024-02-05 00:00:00,1"], (), "row 101: it has 2 fields and 3 columns"),
        ([HEAD, f"{rows()[0]},7", *rows()[1:]], (), "row 1: it has 4 fields and 3 columns"),
        ([HEAD, *rows()[:60], '2024-01-05,"7,1', *rows()[60:]], (), "lines into one row. Close it"),
        (["date,hour,warmth", *rows("%m%d%Y")], (), "Pass --time-format %m%d%Y"),
    ],
)  # fmt: skip
def test_what_would_be_wrong_unseen_is_refused_with_what_to_do(
    cli, home, tmp_path, lines, options, said
):
    path = write(tmp_path / "rows.csv", lines)
    cut = CUT[:4] if "--target" in options else CUT
    refused = cli("data", "convert", str(path), *cut, *options)
    assert (refused.code, refused.out) == (5, "")
    assert said in refused.err
    assert refused.err.count("\n") == 1


@pytest.mark.parametrize(
    ("head", "form", "options"),
    [
        ("when,hour,warmth", (), ("--time", "When")),
        (",hour,warmth", (), ()),  # the index of pandas
        ("unix,hour,warmth", ("%s",), ("--time", "unix")),
        (HEAD, ("%d.%m.%Y %H:%M",), ("--time-format", "%d.%m.%Y %H:%M")),
        (HEAD, ("%s",), ("--time-format", "seconds")),
        ("time;hour;warmth", (ISO, "{};{};{}"), ()),
        ("time\thour\twarmth", (ISO, "{}\t{}\t{}"), ()),
        ("time|hour|warmth", (ISO, "{}|{}|{}"), ()),
        ("time;hour;warmth", EUROPE, ("--decimal", ",", "--time-format", EUROPE[0])),
        ("Date;Time;hour;warmth", UCI,
         ("--time", "Date", "--time", "Time", "--time-format", "%d/%m/%Y %H:%M:%S")),
        ("year,month,day,hour,n,warmth", (PARTS,), (*NAMED, "--time-format", "%Y %m %d %H")),
        (HEAD, ("%Y-%m-%dT%H:%M:%S+01:00",), ()),
        ("time, hour, warmth", (ISO, "{}, {}, {}"), ()),
        (HEAD, (ISO, "{},{},{},"), ()),
        (f"{HEAD},,", (ISO, "{},{},{},,"), ()),  # Excel's empty columns
        ("\n" + HEAD, (ISO, "{},{},{}"), ()),
        ('"time\n(UTC)",hour,warmth,"a\nb"', (ISO, '{},{},{},"c\nd"'), ("--time", "time (UTC)")),
        (HEAD, (ISO, '{},{},"{}"', ".", 1000.0), ("--thousands", ",")),
        (HEAD, (ISO, "{},{},1\u202f0{:0>4}"), ("--thousands", "\u202f")),  # of French
        (None, (), ("--no-header", "--time", "c0", "--target", "c2")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_whole", [True, False])
def test_times_and_numbers_of_any_form_are_read_and_their_gaps_seen(
    cli, home, tmp_path, head, form, options, is_whole
):
    lines = rows(*form) if is_whole else with_gap(rows(*form))
    suffix = ".tsv" if head and "\t" in head else ".txt" if head and "|" in head else ".csv"
    path = write(tmp_path / f"rows{suffix}", lines if head is None else [head, *lines])
    cut = CUT[:4] if "--target" in options else CUT
    given = ("data", "convert", str(path), str(tmp_path / "out.h5"), *cut, *options)
    made = cli(*given)
    if not is_whole:
        assert (made.code, "row 41, column" in made.err) == (5, True), made.err
        assert "3 rows are missing between" in made.err
        return
    assert made.code == 0, made.err
    assert made.out.startswith("89 samples of")
    assert "No column of times" not in made.out
    assert ("unix is the time and a feature too" in made.err) is ("unix" in options)
    assert ("separated by" in made.out) is (head is not None and "," not in head)
    with h5py.File(tmp_path / "out.h5") as file:
        warmth = np.arange(100) / 2 + (1000 if "--thousands" in options else 0)
        np.testing.assert_array_equal(file["targets/series"][:], warmth.astype("float32"))


@pytest.mark.parametrize("skip", [(), ("--on-bad", "skip")])
def test_a_european_file_is_written_in_marks_of_its_own(cli, home, tmp_path, skip):
    """Its points separate thousands: they are never taken for decimal marks, and the reverse."""
    lines = ["time;warmth", *(f"{row};1.{n:03},5" for n, row in enumerate(rows(line="{}")))]
    path, out = write(tmp_path / "rows.csv", lines), tmp_path / "out.h5"
    refused = cli("data", "convert", str(path), str(out), *CUT, *skip, "--decimal", ",")
    assert (
        "'1.000,5' is no number. It would be one with --decimal ',' --thousands '.'." in refused.err
    )
    made = cli("data", "convert", str(path), str(out), *CUT, "--decimal", ",", "--thousands", ".")
    assert made.code == 0, made.err
    with h5py.File(out) as file:
        assert file["targets/series"][3] == 1003.5


@pytest.mark.parametrize(
    ("end", "encoding", "command"),
    [
        ("\r\n", "utf-8-sig", None),
        ("\n", "cp1252", "iconv -f WINDOWS-1252"),
        ("\n", "utf-16", "iconv -f UTF-16"),
    ],
)
def test_encodings_and_ends_of_lines(cli, home, tmp_path, end, encoding, command):
    path = write(tmp_path / "rows.csv", ["time,wärme,warmth", *rows(), "", ""], end, encoding)
    made = cli("data", "convert", str(path), *CUT)
    assert made.code == (5 if command else 0), made.err
    assert "89 samples of 2 features" in made.out or command in made.err


def test_rows_without_times_are_told_whenever_they_are_looked_at(cli, home, tmp_path):
    path = write(tmp_path / "rows.csv", ["when,hour,warmth", *rows()])
    made = cli("data", "convert", str(path), str(tmp_path / "out.h5"), *CUT, "--no-time")
    assert (made.code, "No column of times: gaps between rows" in made.out) == (0, True), made.err
    looked = cli("data", "inspect", str(tmp_path / "out.h5"))
    assert (looked.code, "gaps between them cannot be seen" in looked.err) == (0, True)
    timed = ("--time", "when", "--force")
    assert cli("data", "convert", str(path), str(tmp_path / "out.h5"), *CUT, *timed).code == 0
    assert "gaps" not in cli("data", "inspect", str(tmp_path / "out.h5")).err


def test_rows_of_what_is_no_number_or_time_are_skipped_and_counted(cli, home, tmp_path):
    lines = changed(61, "?")
    lines += [f"{BEGIN + timedelta(hours=hour):{ISO}},0,0" for hour in range(100, 600)]
    lines[300] = "oops,0,0"  # not one of the texts that are looked at for their form
    path = write(tmp_path / "rows.csv", [HEAD, *lines])
    made = cli("data", "convert", str(path), *CUT, "--on-bad", "skip")
    assert made.code == 0, made.err
    assert skipped(made.out) == ["not numbers 1", "times 1", "gaps 2"]


def test_a_clock_that_is_set_back_is_told(cli, home, tmp_path):
    local = [datetime(2024, 10, 27, hour, tzinfo=UTC) for hour in (0, 1, 2, 2, *range(3, 24))]
    lines = [HEAD, *(f"{time:%Y-%m-%d %H:%M},{n},{n}" for n, time in enumerate(local))]
    refused = cli("data", "convert", str(write(tmp_path / "rows.csv", lines)), *CUT)
    assert "row 4, column time: 2024-10-27 02:00:00 is there already. If this is a" in refused.err
    assert "write the times in UTC" in refused.err


def test_all_wrong_arguments_are_told_at_once_and_before_a_file_that_is_there(cli, home, tmp_path):
    path, out = write(tmp_path / "rows.csv", [HEAD, *rows()]), tmp_path / "out.h5"
    out.write_bytes(b"mine")
    given = ("--window", "200", "--horizon", "2", "--target", "wamth")
    refused = cli("data", "convert", str(path), str(out), *given)
    assert "Did you mean warmth?" in refused.err
    assert "has 100 rows, and one sample takes 202" in refused.err
    assert "exists already" not in refused.err
    marks = ("--decimal", "x", "--thousands", "..", "--no-time", "--time", "a")
    wrong = cli("data", "convert", str(path), *CUT, *marks)
    assert all(f"{option} " in wrong.err for option in ("--decimal", "--thousands", "--no-time"))


def test_what_says_how_text_is_read_is_refused_elsewhere(cli, home, tmp_path):
    path = tmp_path / "rows.parquet"
    table = {"when": [BEGIN + timedelta(hours=n) for n in range(100)], "warmth": np.arange(100.0)}
    parquet.write_table(pyarrow.table(table), path)
    assert "'when' looks like times" in cli("data", "convert", str(path), *CUT).err
    for option in (("--decimal", ","), ("--no-header",)):
        refused = cli("data", "convert", str(path), *CUT, *option)
        assert f"{path} is no CSV file: --decimal" in refused.err
    assert cli("data", "convert", str(path), *CUT, "--time", "when").code == 0
    np.savez(tmp_path / "x.npz", x=np.zeros((9, 2)))
    refused = cli("data", "convert", str(tmp_path / "x.npz"), "--no-header")
    assert "--no-header goes with --window, --timeframes or --rows" in refused.err
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros((99, 2))
    named = cli("data", "convert", str(tmp_path / "x.h5"), *CUT, "--time", "when")
    assert "has an array and no columns, so --time names nothing there" in named.err
    bars = ("--timeframes", "H1:10", "--horizon", "2", "--no-time")
    assert "bars and panels need times" in cli("data", "convert", str(path), *bars).err
    for of_text in (bars[:-1], ("--entity", "a", *CUT)):
        refused = cli("data", "convert", str(path), *of_text)
        assert f"{path} is no CSV file, of which bars and panels are made" in refused.err
