"""`stoker data convert` as a newcomer meets it: own files, and what others have written in them."""

import shlex
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pytest
from pyarrow import csv as pyarrow_csv
from pyarrow import parquet

pytestmark = pytest.mark.usefixtures("converter_here")

CUT = ("--window", "10", "--horizon", "2", "--target", "warmth")
ROWS = [f"{hour},{hour * 0.5}" for hour in range(100)]


def csv(path: Path, *heads: str, rows: list[str] = ROWS) -> Path:
    path.write_text("\n".join([*heads, *rows]) + "\n")
    return path


def test_the_file_goes_to_data_root_and_the_line_that_is_shown_registers_it(cli, up, tmp_path):
    path = csv(tmp_path / "My Rows.csv", "hour,warmth")
    made = cli("data", "convert", str(path), *CUT)
    assert made.code == 0, made.err
    assert (up / "data" / "My Rows.h5").is_file()
    line = made.out.splitlines()[-1].removeprefix("Then: stoker ")
    assert line == "data register my-rows 'My Rows.h5'"
    registered = cli(*shlex.split(line))
    assert (registered.code, "my-rows is ready: 89 samples" in registered.out) == (0, True)
    assert "gaps between them cannot be seen" in registered.err


def test_a_folder_is_named_by_itself_also_from_inside(cli, home, tmp_path, monkeypatch):
    (tmp_path / "stations").mkdir()
    csv(tmp_path / "stations" / "rows.csv", "hour,warmth")
    monkeypatch.chdir(tmp_path / "stations")
    made = cli("data", "convert", ".", *CUT)
    assert (made.code, (home / "data" / "stations.h5").is_file()) == (0, True), made.err


def test_of_a_file_elsewhere_the_line_moves_it_first(cli, home, tmp_path):
    path, out = csv(tmp_path / "rows.csv", "hour,warmth"), tmp_path / "out.h5"
    made = cli("data", "convert", str(path), str(out), *CUT)
    assert made.out.splitlines()[-1] == (
        f"Then: mv {out} {home / 'data'}/ && stoker data register out out.h5"
    )


def test_a_target_that_is_given_twice_is_refused(cli, home, tmp_path):
    path = csv(tmp_path / "rows.csv", "hour,warmth")
    refused = cli("data", "convert", str(path), *CUT, "--target", "hour")
    assert refused.code == 5
    assert "--target is given 2 times (warmth, hour)" in refused.err
    assert not (home / "data").exists()


def test_a_column_without_a_name_and_one_of_text_are_left_out_and_named(cli, home, tmp_path):
    rows = [f"{row},{text}" for row, text in zip(ROWS, ["fair"] * 100, strict=True)]
    made = cli("data", "convert", str(csv(tmp_path / "rows.csv", ",warmth,sky", rows=rows)), *CUT)
    assert made.code == 0, made.err
    assert "The column without a name" in made.err
    assert "sky holds no numbers and is left out" in made.err
    assert "89 samples of 1 features" in made.out


def test_a_line_before_the_names_is_told(cli, home, tmp_path):
    path = csv(tmp_path / "723170TYA.CSV", '723170,"GREENSBORO",NC,-5.0,36.1', "hour,warmth")
    refused = cli("data", "convert", str(path), *CUT)
    assert refused.code == 5
    assert "Line 1 of" in refused.err
    assert "has 5 fields and line 2 has 2" in refused.err


def test_parquet_is_a_table_too(cli, home, tmp_path):
    columns = {"hour": list(range(100)), "warmth": [hour * 0.5 for hour in range(100)]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
    made = cli("data", "convert", str(tmp_path / "rows.parquet"), *CUT)
    assert (made.code, "89 samples of 2 features" in made.out) == (0, True), made.err


def test_arrays_of_numpy_are_written_as_they_are(cli, home, tmp_path):
    x, y = np.random.rand(50, 6, 2).astype("float32"), np.arange(50)
    words = np.array(["a"] * 50)
    np.savez(tmp_path / "both.npz", x=x, y=y, words=words)
    made = cli("data", "convert", str(tmp_path / "both.npz"))
    assert made.code == 0, made.err
    assert "x 50 × 6 × 2, y 50" in made.out
    assert "words holds no numbers and is left out" in made.err
    with h5py.File(home / "data" / "both.h5") as file:
        assert sorted(file) == ["x", "y"]
        assert np.array_equal(file["x"][:], x)
        assert file["y"].dtype == y.dtype
    np.save(tmp_path / "one.npy", x)
    assert cli("data", "convert", str(tmp_path / "one.npy")).code == 0
    with h5py.File(home / "data" / "one.h5") as file:
        assert np.array_equal(file["one"][:], x)


# NumPy leaves the file open that it could not read; a child's end closes it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["broken.npz", "broken.npy", "pickled.npy"])
def test_what_numpy_cannot_read_without_unpickling_is_refused(cli, home, tmp_path, name):
    path = tmp_path / name
    if name == "pickled.npy":
        np.save(path, np.array([{"a": 1}], object))
    else:
        path.write_bytes(b"PK\x03\x04 and no more")
    refused = cli("data", "convert", str(path))
    assert (refused.code, "cannot be read as NumPy's" in refused.err) == (5, True), refused.err


def hourly(count: int = 100) -> list[str]:
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    times = [f"{begin + timedelta(hours=hour):%Y-%m-%d %H:%M:%S}" for hour in range(count)]
    return [f"{time},{hour},{hour * 0.5}" for hour, time in enumerate(times)]


def spoilt(how: str) -> list[str]:
    rows = hourly()
    if how == "sorted":
        return rows
    if how == "duplicate":
        return [*rows[:40], rows[39], *rows[40:]]
    if how == "unsorted":
        return [*rows[:40], rows[41], rows[40], *rows[42:]]
    if how == "gap":
        return [*rows[:40], *rows[43:]]
    return [*rows[:40], f",{rows[40].partition(',')[2]}", *rows[41:]]


BAD = [
    ("duplicate", "row 41, column time: 2024-01-02 15:00:00 is there already"),
    ("unsorted", "row 42, column time: 2024-01-02 16:00:00 is before 2024-01-02 17:00:00"),
    ("gap", "row 41, column time: 3 rows are missing between 2024-01-02 15:00:00 and"),
    ("no time", "row 41, column time: it is no time"),
]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(("how", "said"), BAD)
def test_a_row_out_of_its_time_ends_it_and_is_named(cli, home, tmp_path, how, said, kind):
    path = csv(tmp_path / "rows.csv", "time,hour,warmth", rows=spoilt(how))
    if kind == "parquet":
        table = pyarrow_csv.read_csv(path)
        path = tmp_path / "rows.parquet"
        parquet.write_table(table, path)
    out = tmp_path / "new" / "out.h5"
    refused = cli("data", "convert", str(path), str(out), *CUT)
    assert refused.code == 5
    assert f"{path}, {said}" in refused.err
    assert "--on-bad skip" in refused.err
    assert not out.parent.exists()


@pytest.mark.parametrize(
    ("how", "counted", "samples"),
    [
        ("duplicate", "duplicates 1", 89),
        ("unsorted", "unsorted 1, gaps 1", 77),
        ("gap", "gaps 1", 75),
        ("no time", "times 1, gaps 1", 77),
    ],
)
def test_such_rows_are_skipped_and_counted_where_that_is_asked(
    cli, home, tmp_path, how, counted, samples
):
    path, out = tmp_path / "rows.csv", tmp_path / "out.h5"
    csv(path, "time,hour,warmth", rows=spoilt(how))
    made = cli("data", "convert", str(path), str(out), *CUT, "--on-bad", "skip")
    assert made.code == 0, made.err
    assert set(counted.split(", ")) <= set(skipped(made.out))
    assert f"{samples} samples of 2 features" in made.out
    assert_no_sample_reaches_over_what_is_missing(out)
    longer = ("--max-gap", "3d", "--on-bad", "skip", "--force")
    made = cli("data", "convert", str(path), str(out), *CUT, *longer)
    assert f"{86 if how == 'gap' else samples} samples" in made.out, "a row that is left out"


def assert_no_sample_reaches_over_what_is_missing(out: Path) -> None:
    with h5py.File(out) as file:
        hours = file["features/series"][:, 0]
        starts = file["features/starts"][:]
    windows = np.stack([hours[start : start + 12] for start in starts])
    assert (np.diff(windows, axis=1) == 1).all()


def skipped(told: str) -> list[str]:
    (line,) = [one for one in told.splitlines() if one.startswith("Skipped: ")]
    return line.removeprefix("Skipped: ").rstrip(".").split(", ")


def test_a_longer_gap_is_none_where_that_is_said(cli, home, tmp_path):
    path = csv(tmp_path / "rows.csv", "time,hour,warmth", rows=spoilt("gap"))
    made = cli("data", "convert", str(path), *CUT, "--max-gap", "6h")
    assert made.code == 0, made.err
    assert "86 samples" in made.out


@pytest.mark.parametrize(
    ("head", "first"),
    [
        ("time,hour,warmth", "7"),
        ("time,hour,warmth", "morning"),
    ],
)
def test_what_is_no_time_of_a_row_is_not_taken_for_one(cli, home, tmp_path, head, first):
    rows = [f"{first},{hour % 24},{hour * 0.5}" for hour in range(100)]
    made = cli("data", "convert", str(csv(tmp_path / "rows.csv", head, rows=rows)), *CUT)
    assert made.code == 0, made.err
    assert "89 samples" in made.out
    assert "No column of times: gaps between rows cannot be seen." in made.out


@pytest.mark.parametrize(
    ("texts", "counted"),
    [
        ([f"{date(2020, 1, 1) + timedelta(day):%Y%m%d}" for day in range(100)], None),
        ([f"{number}" for number in (*range(50), *range(60, 110))], None),
        ([f"{1_700_000_000 + 60 * n}" for n in range(99)] + ["7"], "times 1"),
    ],
    ids=["compact days", "counted rows", "one that is none"],
)
def test_numbers_in_text_are_read_as_what_they_are(cli, home, tmp_path, texts, counted):
    path = tmp_path / "rows.parquet"
    warmth = np.arange(100.0)
    parquet.write_table(pyarrow.table({"time": texts, "warmth": warmth}), path)
    made = cli("data", "convert", str(path), *CUT, *(["--on-bad", "skip"] if counted else []))
    assert made.code == 0, made.err
    assert f"{89 - bool(counted)} samples" in made.out
    assert counted is None or skipped(made.out) == [counted]


@pytest.mark.parametrize("kind", ["text", "numbers"])
def test_a_later_piece_without_a_time_is_not_kept_unseen(cli, home, tmp_path, kind):
    """Each file of a folder is a piece at least."""
    (tmp_path / "all").mkdir()
    seconds = [1_700_000_000 + 60 * minute for minute in range(100)]
    texts = [str(one) for one in seconds]
    for number, times in enumerate(
        [seconds, [7] * 100] if kind == "numbers" else [texts, ["noon"] * 100]
    ):
        table = pyarrow.table({"time": times, "warmth": np.arange(100.0)})
        parquet.write_table(table, tmp_path / "all" / f"{number}.parquet")
    refused = cli("data", "convert", str(tmp_path / "all"), *CUT)
    assert refused.code == 5
    assert "1.parquet, row 1, column time: it is no time" in refused.err


def test_seconds_since_1970_are_times(cli, home, tmp_path):
    rows = [f"{1_700_000_000 + 60 * minute},{minute}" for minute in range(100)]
    rows[50], rows[51] = rows[51], rows[50]
    refused = cli(
        "data", "convert", str(csv(tmp_path / "x.csv", "timestamp,warmth", rows=rows)), *CUT
    )
    assert "row 52, column timestamp: 2023-11-14 23:03:20 is before" in refused.err


@pytest.mark.parametrize(
    ("head", "more", "said"),
    [
        ("hour,warmth", "", "has no column of times"),
        ("hour,warmth,time", ",noon", "holds no times"),
    ],
)
def test_without_times_there_are_no_gaps_to_allow(cli, home, tmp_path, head, more, said):
    path = csv(tmp_path / "rows.csv", head, rows=[f"{row}{more}" for row in ROWS])
    refused = cli("data", "convert", str(path), *CUT, "--max-gap", "3d")
    assert refused.code == 5
    assert said in refused.err


@pytest.mark.parametrize(
    ("cut", "head"),
    [(CUT[:4], "time,hour,warmth"), (("--timeframes", "H1:10", "--horizon", "2"), "time,a,warmth")],
)
def test_a_target_that_is_misspelt_is_told_before_anything_is_written(
    cli, home, tmp_path, cut, head
):
    path, out = csv(tmp_path / "rows.csv", head, rows=hourly()), tmp_path / "new" / "out.h5"
    refused = cli("data", "convert", str(path), str(out), *cut, "--target", "wamth")
    assert refused.code == 5
    assert "Did you mean warmth?" in refused.err
    assert not out.parent.exists()


def test_what_has_not_one_sample_leaves_no_folder(cli, home, tmp_path):
    out = tmp_path / "new" / "deep" / "out.h5"
    path = csv(tmp_path / "rows.csv", "hour,warmth", rows=ROWS[:5])
    assert cli("data", "convert", str(path), str(out), *CUT).code == 5
    assert not (tmp_path / "new").exists()


PRICES = [
    f"2024-{1 + day // 28:02}-{1 + day % 28:02},{name},{100 + (day * step) % 7}"
    for day in range(200)
    for name, step in (("AA", 3), ("BB", 5))
]


def test_rows_of_many_entities_become_a_panel(cli, up, tmp_path):
    path = csv(tmp_path / "prices.csv", "date,ticker,close", rows=PRICES)
    of_each = ("--entity", "ticker", "--window", "20", "--horizon", "2", "--horizon", "5")
    made = cli("data", "convert", str(path), *of_each)
    assert made.code == 0, made.err
    assert "samples of 2 entities and 5 features, cut out of 200 dates" in made.out
    assert "Target: volatility over 2, 5 dates." in made.out
    line = made.out.splitlines()[-1].removeprefix("Then: stoker ")
    assert "prices is ready" in cli(*shlex.split(line)).out
    again = cli("data", "convert", str(path), *of_each)
    assert (again.code, "exists already; --force replaces it" in again.err) == (5, True)


def test_what_goes_with_entities_alone_is_told(cli, home, tmp_path):
    path = str(csv(tmp_path / "prices.csv", "date,ticker,close", rows=PRICES))
    for given, told in (
        (("--entity", "ticker", "--horizon", "2"), "--entity needs --window"),
        (("--entity", "ticker", "--window", "20"), "--entity needs --horizon"),
        ((*CUT, "--horizon", "5"), "goes with --entity alone"),
    ):
        refused = cli("data", "convert", path, *given)
        assert (refused.code, told in refused.err) == (5, True), refused.err
