"""Bars of several timeframes: no look-ahead, and what becomes of rows that cannot be used."""

import csv
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from worker.trainer.data.formats.window_files import WindowArray, read_windows
from worker.trainer.errors import DataError
from worker.trainer.tools import bars, sample_bars
from worker.trainer.tools.bad_rows import TOLD, Bad
from worker.trainer.tools.bars import convert
from worker.trainer.tools.rows.form import Form
from worker.trainer.tools.timeframes import Cut, timeframes_of

FRAMES = "M1:6,M5:4,M15:2"
HEADER = ["time", "open", "high", "low", "close", "volume"]
SECONDS = {"m1": 60, "m5": 300, "m15": 900}
BEGIN = 1_700_000_040  # in the midst of a quarter of an hour
GAPS = "10m"


def made_bars(count: int = 200, seed: int = 0) -> list[list[Any]]:
    """Rows of a file: a walk of prices, minute by minute, of which one in ten is missing."""
    random = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(random.normal(0, 1e-3, count)))
    high = close * (1 + random.uniform(1e-4, 1e-3, count))
    low = close * (1 - random.uniform(1e-4, 1e-3, count))
    opened = random.uniform(low, high)
    volume = random.integers(1, 100, count)
    minutes = np.flatnonzero(random.random(2 * count) < 0.9)[:count]
    times = BEGIN + 60 * minutes
    rows: list[list[Any]] = np.column_stack([times, opened, high, low, close, volume]).tolist()
    return rows


def write_csv(path: Path, rows: list[list[Any]], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def converted(tmp_path: Path, rows: list[list[Any]], **options: str) -> Path:
    path, out = write_csv(tmp_path / "bars.csv", rows), tmp_path / "bars.h5"
    given = {"timeframes": FRAMES, "horizon": "5", "max-gap": GAPS} | options
    arguments = [f"--{name}={value}" for name, value in given.items()]
    assert bars.main([str(path), str(out), *arguments]) == 0
    return out


def samples_of(path: Path) -> dict[str, np.ndarray]:
    """Every array, expanded."""
    with h5py.File(path) as file:
        names = [*SECONDS, "targets"]
        found = {n: WindowArray(file[n]["series"], read_windows(file[n], n))[:] for n in names}
        return {**found, "ends": file["ends"][:]}


def test_each_window_is_of_the_last_bars_that_had_closed(tmp_path: Path) -> None:
    """Against bars made one by one, of what was known when each sample ends."""
    rows = made_bars()
    found = samples_of(converted(tmp_path, rows))
    assert len(found["ends"]) > 100
    for sample, end in enumerate(found["ends"].tolist()):
        known = [row for row in rows if row[0] + 60 <= end]
        assert known[-1][0] + 60 == end
        for name, seconds in SECONDS.items():
            buckets: dict[int, list[list[float]]] = {}
            for row in known:
                buckets.setdefault(int(row[0]) // seconds * seconds, []).append(row)
            whole = [
                bars_of for begin, bars_of in buckets.items()
                if begin + seconds <= end and begin >= BEGIN
            ]  # fmt: skip
            expected = [
                [
                    some[0][1],
                    max(r[2] for r in some),
                    min(r[3] for r in some),
                    some[-1][4],
                    sum(r[5] for r in some),
                ]
                for some in whole[-len(found[name][sample]) :]
            ]
            np.testing.assert_allclose(found[name][sample][:, :5], expected, rtol=1e-6)
            high, low, close = np.array(expected)[:, 1:4].T
            ranges = np.log((high - low) / close)
            np.testing.assert_allclose(found[name][sample][:, 5], ranges, rtol=1e-5)
        coming = [row for row in rows if row[0] + 60 > end][:5]
        targets = [np.log((row[2] - row[3]) / row[4]) for row in coming]
        np.testing.assert_allclose(found["targets"][sample], targets, rtol=1e-5)


@pytest.mark.parametrize("moved", [50, 120, 170])
def test_another_future_changes_no_sample_of_the_past(tmp_path: Path, moved: int) -> None:
    rows = made_bars()
    before = samples_of(converted(tmp_path, rows))
    later = [[time, *(9 * price for price in rest)] for time, *rest in rows[moved:]]
    after = samples_of(converted(tmp_path, rows[:moved] + later))
    past = before["ends"] <= rows[moved][0]
    assert 0 < past.sum() < len(past)
    for name in SECONDS:
        np.testing.assert_array_equal(after[name][past], before[name][past])
        assert (after[name][~past] != before[name][~past]).any(axis=(1, 2))[-1]
    known = np.array([row[0] + 60 for row in rows])
    told = [known[np.searchsorted(known, end) + 5] <= rows[moved][0] for end in before["ends"]]
    np.testing.assert_array_equal(after["targets"][told], before["targets"][told])


def test_no_sample_reaches_over_a_gap(tmp_path: Path) -> None:
    rows = made_bars()
    for row in rows[100:]:
        row[0] += 3600
    path, out = write_csv(tmp_path / "gap.csv", rows), tmp_path / "gap.h5"
    bad, cut = Bad(skips=True), Cut(timeframes_of(FRAMES), 5)
    told = convert(path, out, cut, "range", bad, 600)
    assert (told["bad"], told["stretches"]) == ({"gaps": 1}, 2)
    assert "line 102, column time: 60 bars are missing before it." in told["told"][0]
    border = rows[100][0]
    ends = samples_of(out)["ends"]
    reach = 60 * 2 * 15  # the longest window
    assert not ((ends > border - 60 * 5) & (ends < border + reach)).any()
    assert (ends < border).any()
    assert (ends > border).any()
    joined = convert(path, out, cut, "range", Bad(skips=False), 86_400)
    assert (joined["stretches"], joined["bad"]) == (1, {})
    assert joined["samples"] > told["samples"]


ROW = made_bars()[50]


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        ("not_numbers", {1: "nan"}, "line 52, column open: 'nan' is no finite number"),
        ("not_numbers", {5: ""}, "line 52, column volume: '' is no finite number"),
        ("times", {0: "yesterday"}, "line 52, column time: 'yesterday' is no time"),
        ("duplicates", {0: made_bars()[49][0]}, "line 52, column time: 2023-11-14 23:05:00 is th"),
        ("unsorted", {0: made_bars()[48][0]}, "is before 2023-11-14 23:05:00, further up"),
        ("too_close", {0: ROW[0] - 30}, "is 30 s after 2023-11-14 23:05:00, further up, and"),
        ("prices", {3: 1e9}, "column low: 1e+09 is above the high"),
        ("prices", {4: -1.0}, "column close: -1 is no price above zero"),
    ],
)
def test_a_row_that_cannot_be_used_is_told_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, change: dict[int, object],
    told: str,
) -> None:  # fmt: skip
    rows = made_bars()
    for column, value in change.items():
        rows[50][column] = value
    path, out = write_csv(tmp_path / "bars.csv", rows), tmp_path / "out.h5"
    given = ["--timeframes", FRAMES, "--horizon", "5", "--max-gap", GAPS]
    assert bars.main([str(path), str(out), *given]) == 1
    refused = capsys.readouterr().err
    assert str(path) in refused
    assert told in refused
    assert "--on-bad skip" in refused
    assert not out.exists()
    assert bars.main([str(path), str(out), *given, "--on-bad", "skip"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bad"] == {kind: 1}
    assert told in answer["told"][0]
    assert answer["rows"] == 199


def test_of_many_bad_times_few_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To find the format of one takes milliseconds."""
    explained: list[str] = []

    def no_time(_: Form, text: str) -> str:
        explained.append(text)
        return "no time"

    monkeypatch.setattr(Form, "no_time", no_time)
    rows = made_bars()
    path = write_csv(tmp_path / "bars.csv", [*rows, *(["?", *row[1:]] for row in rows[:9])])
    made = convert(
        path, tmp_path / "out.h5", Cut(timeframes_of(FRAMES), 5), "range", Bad(skips=True), 600
    )
    assert (made["bad"]["times"], len(made["told"]), len(explained)) == (9, TOLD, TOLD)


def test_a_row_with_too_few_columns_is_told(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "bars.csv", [*made_bars(), [ROW[0] + 10**6]])
    with pytest.raises(DataError, match="line 202: 1 columns, fewer than the header has"):
        convert(path, tmp_path / "out.h5", Cut(timeframes_of(FRAMES), 5), "range", Bad(False), 600)


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_row_with_too_many_columns_is_told(tmp_path: Path, is_ended: bool) -> None:
    """A comma within a number would shift what follows; one at the end of a row does not."""
    rows = [[*row, *[""] * is_ended] for row in made_bars()]
    rows[50] = [*rows[50][:1], "100", *rows[50][1:]]
    rows[60] = [*rows[60], " "]
    path, out = write_csv(tmp_path / "bars.csv", rows), tmp_path / "out.h5"
    cut = Cut(timeframes_of(FRAMES), 5)
    with pytest.raises(DataError, match=f"line 52: {7 + is_ended} columns, and 6 have names"):
        convert(path, out, cut, "range", Bad(skips=False), 600)
    made = convert(path, out, cut, "range", Bad(skips=True), 600)
    assert (made["bad"]["long_rows"], made["rows"]) == (1, 199)


def test_months_before_days_are_no_seconds(tmp_path: Path) -> None:
    rows = [[f"01{day + 1:02}2024", *row[1:]] for day, row in enumerate(made_bars()[:31])]
    path, cut = write_csv(tmp_path / "bars.csv", rows), timeframes_of("D1:3")
    with pytest.raises(DataError, match="'01012024' is no time"):
        convert(path, tmp_path / "out.h5", Cut(cut, 2), "range", Bad(skips=False))
    form = Form(time_format="%m%d%Y")
    made = convert(path, tmp_path / "out.h5", Cut(cut, 2), "range", Bad(skips=False), form=form)
    assert made["rows"] == 31


def test_seconds_of_1970_have_to_be_said(tmp_path: Path) -> None:
    """They could be days, years or row numbers."""
    rows = [[60 * minute, *row[1:]] for minute, row in enumerate(made_bars())]
    path, cut = write_csv(tmp_path / "bars.csv", rows), Cut(timeframes_of(FRAMES), 5)
    with pytest.raises(DataError, match="takes the unit of other numbers"):
        convert(path, tmp_path / "out.h5", cut, "range", Bad(skips=False), 600)
    form = Form(time_format="seconds")
    made = convert(path, tmp_path / "out.h5", cut, "range", Bad(skips=False), 600, form)
    assert (made["rows"], made["times_read_as"]) == (200, "seconds since 1970")


def test_a_column_of_one_value_is_told_or_left_out(tmp_path: Path) -> None:
    rows = [[*row[:5], 0] for row in made_bars()]
    path, out = write_csv(tmp_path / "bars.csv", rows), tmp_path / "out.h5"
    cut = Cut(timeframes_of(FRAMES), 5)
    with pytest.raises(DataError, match="column volume: it is 0 in every row"):
        convert(path, out, cut, "range", Bad(skips=False), 600)
    made = convert(path, out, cut, "range", Bad(skips=True), 600)
    assert made["features"] == ["open", "high", "low", "close", "range"]
    assert made["bad"] == {"constant_columns": 1}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"timeframes": "M1:6,H1"}, "'H1' is no timeframe"),
        ({"timeframes": "M1:6,X1:3"}, "'X1:3' is no timeframe"),
        ({"timeframes": "M1:6,M60:2,H1:3"}, "M60 and H1 are the same timeframe"),
        ({"timeframes": "M4:6,M5:3"}, "M5 is no whole number of M4"),
        ({"timeframes": "M1:6,D1:30"}, "Not one sample fits: 30 bars of D1"),
        ({"timeframes": "M1:6,W1:30"}, "Not one sample fits: 30 bars of W1"),
        ({"timeframes": "MN1:12,MN3:4"}, "MN1 cannot be the fastest timeframe, because its bars"),
        ({"timeframes": "T5:4,MN1:2"}, "T5 cannot be the fastest timeframe"),
        ({"timeframes": "D1:4,T1:2"}, "D1 and T1 are the same timeframe"),
        ({"timeframes": "W1:4,MN1:2"}, "MN1 is no whole number of W1"),
        ({"timeframes": "H5:4,W1:2"}, "W1 is no whole number of H5"),
        ({"timeframes": "MN:4"}, "'MN:4' is no timeframe. Write a unit (M minutes"),
        ({"max-gap": "1mn"}, "write minutes, hours, days or weeks"),
        ({"target": "warmth"}, "no column 'warmth' to forecast; it has open, high"),
        ({"max-gap": "soon"}, "'soon' is no length of time"),
    ],
)
def test_what_cannot_be_cut_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, str], told: str
) -> None:
    path = write_csv(tmp_path / "bars.csv", made_bars())
    given = {"timeframes": FRAMES, "horizon": "5", "max-gap": GAPS} | options
    arguments = [f"--{name}={value}" for name, value in given.items()]
    assert bars.main([str(path), str(tmp_path / "out.h5"), *arguments]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"open,close\n1,2\n", "no column of times among open, close"),
        (b"time\n1\n", "no column beside 'time'"),
        (b"time,a,A\n1,2,3\n", "two columns of one name"),
        (b"time,close\n", "has 1 line, and one sample takes 11 rows"),
        (b"time,close\n" + b"\n" * 20, "no row that can be used"),
        (b"time,close\n1,\xff\xfe\n", "not written in UTF-8"),
    ],
)
def test_a_file_without_bars_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "bars.csv"
    path.write_bytes(content)
    cut = Cut(timeframes_of(FRAMES), 5)
    with pytest.raises(DataError, match=told):
        convert(path, tmp_path / "out.h5", cut, "close", Bad(skips=False), 600)


def test_times_are_iso_or_epoch_and_names_of_any_case(tmp_path: Path) -> None:
    rows = made_bars()
    plain = samples_of(converted(tmp_path, rows))
    for as_time in (
        lambda time: datetime.fromtimestamp(time, UTC).isoformat(),
        lambda time: datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        lambda time: 1000 * time,
    ):
        path, out = tmp_path / "other.csv", tmp_path / "other.h5"
        named = ["", "Open", "High", "Low", "Close", "Volume"]
        write_csv(path, [[as_time(row[0]), *row[1:]] for row in rows], named)
        convert(path, out, Cut(timeframes_of(FRAMES), 5), "range", Bad(skips=False), 600)
        for name, array in samples_of(out).items():
            np.testing.assert_array_equal(array, plain[name])
    # The row numbers that pandas writes, and a separator at the end of each row.
    write_csv(path, [[n, *row, ""] for n, row in enumerate(rows)], ["", *HEADER])
    made = convert(path, out, Cut(timeframes_of(FRAMES), 5), "range", Bad(skips=False), 600)
    assert (made["features"], made["left_out"]) == ([*HEADER[1:], "range"], [""])
    assert (samples_of(out)["m5"] == plain["m5"]).all()


def test_a_european_file_has_the_same_bars(tmp_path: Path, capsys: Any) -> None:
    plain = samples_of(converted(tmp_path, made_bars()))
    path, out = tmp_path / "european.csv", tmp_path / "european.h5"
    lines = ["Tag;Uhr;Open;High;Low;Close;Volume"]
    for time, *values in made_bars():
        when = datetime.fromtimestamp(time, UTC).strftime("%d.%m.%Y;%H:%M:%S")
        lines.append(";".join([when, *(str(value).replace(".", ",") for value in values)]))
    path.write_text("\n".join(lines))
    given = [str(path), str(out), "--horizon=5", f"--timeframes={FRAMES}", f"--max-gap={GAPS}"]
    for told, more in (
        ("european.csv has no column of times among tag, uhr", []),
        (
            "column tag and uhr: .* is no time: .* Pass --time-format '%d.%m.%Y %H:%M:%S'.",
            ["--time=tag", "--time=uhr"],
        ),
        ("is no finite number. It would be one with --decimal ','", ["--time-format=%d.%m.%Y %X"]),
    ):
        given += more
        assert bars.main(given) == 1
        assert re.search(told, capsys.readouterr().err)
    assert bars.main([*given, "--decimal=,"]) == 0
    assert json.loads(capsys.readouterr().out)["separated_by"] == "semicolons"
    for name, array in samples_of(out).items():
        np.testing.assert_array_equal(array, plain[name])


def test_files_of_a_folder_are_stretches_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    cut, one = Cut(timeframes_of(FRAMES), 5), tmp_path / "one.h5"
    write_csv(folder / "a.csv", made_bars())
    alone = convert(folder, one, cut, "range", Bad(skips=False), 600)
    write_csv(folder / "b.csv", made_bars())
    both = convert(folder, one, cut, "range", Bad(skips=False), 600)
    assert (both["samples"], both["stretches"]) == (2 * alone["samples"], 2)
    write_csv(folder / "c.csv", [row[:5] for row in made_bars()], HEADER[:5])
    with pytest.raises(DataError, match=r"c\.csv has the columns open, .*, and a\.csv"):
        convert(folder, one, cut, "range", Bad(skips=False), 600)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "bars.h5"
    assert sample_bars.main([str(path)]) == 0
    return path


def test_the_sample_has_means_of_the_hours_that_were_over(sample: Path) -> None:
    with h5py.File(sample) as file:
        hours, starts = file["h1"]["series"][:], file["h1"]["starts"][:]
        frames = {name: int(file[name].attrs["window_length"]) for name in ("h3", "h12", "d1")}
        for row in (0, 5, 419, 2000, 4883):
            now = starts[row] + 96  # hours that are over; each month begins at midnight
            assert (file["targets"]["starts"][row]) == now
            for name, window in frames.items():
                each = int(name[1:]) * (24 if name[0] == "d" else 1)
                first = file[name]["starts"][row]
                slow = file[name]["series"][first : first + window, sample_bars.COLUMN]
                over = now // each * each
                fast = hours[over - window * each : over, sample_bars.COLUMN]
                np.testing.assert_allclose(slow, fast.reshape(window, each).mean(1), rtol=1e-5)
