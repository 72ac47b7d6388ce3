"""Bars of weeks, calendar months and trading days, compared with pandas."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from tests.trainer_data.tools.test_bars import write_csv
from worker.trainer.data.formats.window_files import STEP_SECONDS, WindowArray, read_windows
from worker.trainer.tools import bars, sample_bars
from worker.trainer.tools.timeframes import NEVER, Bars, combined, timeframes_of

HOW = {"open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum"}
DAY = 86_400
HOUR = 3_600
RULES = {"D1": "D", "W1": "W-MON", "MN1": "MS", "MN3": "QS", "MN12": "YS"}


def market(days: int = 400, hours: tuple[int, ...] = (0, 9, 10, 15)) -> pd.DataFrame:
    """Prices of weekdays, from Monday, 2018-01-01 on; the first of May and Christmas are free."""
    dates = pd.bdate_range("2018-01-01", periods=days, tz="UTC")
    dates = dates[~dates.strftime("%m-%d").isin(["05-01", "12-25", "12-26"])]
    times = pd.DatetimeIndex([day + pd.Timedelta(hours=hour) for day in dates for hour in hours])
    random = np.random.default_rng(1)
    close = 100 * np.exp(np.cumsum(random.normal(0, 1e-2, len(times))))
    high, low = close * 1.01, close * 0.98
    volume = random.integers(1, 100, len(times)).astype(float)
    return pd.DataFrame(
        {"open": random.uniform(low, high), "high": high, "low": low, "close": close,
         "volume": volume},
        index=times,
    )  # fmt: skip


def seconds(index: pd.Index) -> list[int]:
    return [int(time.timestamp()) for time in index]


def bars_of(table: pd.DataFrame) -> Bars:
    return Bars(np.array(seconds(table.index), np.int64), table.to_numpy(np.float64))


def made_by_pandas(table: pd.DataFrame, label: str, how: Any) -> pd.DataFrame:
    if label == "W2":  # pandas counts from the first row, and Stoker from Monday, 1970-01-05
        day = (np.array(seconds(table.index)) // DAY - 4) // 14 * 14 + 4
        return table.groupby(pd.to_datetime(DAY * day, unit="s", utc=True)).agg(how)
    if label.startswith("T"):
        days = table.index.normalize()
        number = np.unique(days, return_inverse=True)[1] // int(label[1:])
        of_days = table.groupby(number).agg(how)
        return of_days.set_index(days[np.unique(number, return_index=True)[1]])
    found = table.resample(RULES[label], label="left", closed="left").agg(how)
    return found[table.resample(RULES[label], label="left", closed="left").size() > 0]


@pytest.mark.parametrize("label", [*RULES, "W2", "T1", "T2", "T5"])
def test_slower_bars_are_those_of_pandas(label: str) -> None:
    """Days without rows have no bar, whatever the timeframe."""
    table = market()
    (frame,) = timeframes_of(f"M1:1,{label}:1")[1:]
    made = combined(bars_of(table), frame, list(HOW.values()))
    expected = made_by_pandas(table, label, HOW)
    assert made.bars.times.tolist() == seconds(expected.index)
    np.testing.assert_allclose(made.bars.values, expected.to_numpy(), rtol=1e-12)
    assert (made.closes > made.bars.times).all()
    assert (made.closes[:-1] <= made.bars.times[1:]).all()


def test_months_end_with_their_last_day_and_trading_days_when_all_are_there() -> None:
    table = market(7)
    month, days = timeframes_of("M1:1,MN1:1,T3:1")[2], timeframes_of("M1:1,MN1:1,T3:1")[1]
    january = pd.Timestamp("2018-02-01", tz="UTC").timestamp()
    assert combined(bars_of(table), month, list(HOW.values())).closes.tolist() == [january]
    closes = combined(bars_of(table), days, list(HOW.values())).closes.tolist()
    begin = seconds(table.index)[0]
    # Wednesday and, behind the weekend, the next Monday; the seventh day is alone.
    assert closes == [begin + 3 * DAY, begin + 8 * DAY, NEVER]


def test_a_first_day_that_is_not_whole_is_no_trading_day() -> None:
    table = market(8).iloc[1:]
    (frame,) = timeframes_of("M1:1,T3:1")[1:]
    made = combined(bars_of(table), frame, list(HOW.values()))
    assert made.bars.times[0] == pd.Timestamp("2018-01-02", tz="UTC").timestamp()
    alone = combined(bars_of(table.iloc[:3]), frame, list(HOW.values()))
    assert (len(alone.bars.times), alone.bars.values.shape) == (0, (0, 5))


def test_the_first_day_of_a_market_that_opens_late_is_a_trading_day() -> None:
    """Its first row is not at midnight, and the day is whole all the same."""
    table = market(8)
    opened = table[(table.index.hour >= 9) & (table.index.date > table.index[0].date())]
    before = table.iloc[1:2]  # so that the day which follows is known to be whole
    (frame,) = timeframes_of("M1:1,T1:1")[1:]
    made = combined(bars_of(pd.concat([before, opened])), frame, list(HOW.values()))
    assert made.bars.times[0] == pd.Timestamp(opened.index[0].date(), tz="UTC").timestamp()


@pytest.mark.parametrize("label", ["W1", "MN1"])
def test_weeks_and_months_of_the_sample_are_those_of_pandas(tmp_path: Path, label: str) -> None:
    """Of the hours that examples/timeframes.yaml trains on."""
    path = tmp_path / "bars.h5"
    assert sample_bars.main([str(path)]) == 0
    with h5py.File(path) as file:
        hours = file["h1"]["series"][:].astype(np.float64)
    index = pd.date_range("2018-01-01", periods=len(hours), freq="h", tz="UTC")
    table = pd.DataFrame(hours, index=index)
    (frame,) = timeframes_of(f"H1:1,{label}:1")[1:]
    made = combined(bars_of(table), frame, ["mean"] * hours.shape[1])
    expected = made_by_pandas(table, label, "mean")
    assert made.bars.times.tolist() == seconds(expected.index)
    np.testing.assert_allclose(made.bars.values, expected.to_numpy(), rtol=1e-9)


def rows_of(table: pd.DataFrame) -> list[list[Any]]:
    times, values = seconds(table.index), table.to_numpy().tolist()
    return [[time, *row] for time, row in zip(times, values, strict=True)]


def converted(folder: Path, table: pd.DataFrame, timeframes: str, *more: str) -> dict[str, Any]:
    path, out = write_csv(folder / "market.csv", rows_of(table)), folder / "market.h5"
    given = [str(path), str(out), f"--timeframes={timeframes}", "--horizon=3", "--target=close"]
    assert bars.main([*given, *more]) == 0
    with h5py.File(out) as file:
        names = [part.partition(":")[0].lower() for part in timeframes.split(",")]
        arrays = {n: WindowArray(file[n]["series"], read_windows(file[n], n))[:] for n in names}
        steps = {n: file[n].attrs.get(STEP_SECONDS) for n in names}
        return {**arrays, "ends": file["ends"][:], "steps": steps}


def test_no_bar_has_the_future_of_its_sample(tmp_path: Path) -> None:
    """A file that ends earlier has the same samples, so these know nothing of later rows."""
    frames = "H1:4,T2:3,W1:2,MN1:1"
    table = market(90)
    whole = converted(tmp_path, table, frames)
    assert whole["steps"] == {"h1": HOUR, "t2": None, "w1": 7 * DAY, "mn1": None}
    lengths = {"w1": pd.Timedelta(days=7), "mn1": pd.DateOffset(months=1)}
    for rows in (250, 275, 301):
        cut = converted(tmp_path, table.iloc[:rows], frames)
        count = len(cut["ends"])
        assert 0 < count < len(whole["ends"])
        for name in ("ends", "h1", "t2", "w1", "mn1"):
            np.testing.assert_array_equal(cut[name], whole[name][:count])
        # The last bars are the newest that have closed by then.
        end = pd.Timestamp(int(cut["ends"][-1]), unit="s", tz="UTC")
        for name, label in (("w1", "W1"), ("mn1", "MN1")):
            of_pandas = made_by_pandas(table, label, HOW)
            newest = of_pandas[of_pandas.index + lengths[name] <= end].iloc[-1]
            np.testing.assert_allclose(cut[name][-1, -1], newest, rtol=1e-6)


def test_daily_bars_skip_days_without_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = market(60, hours=(0,))
    made = converted(tmp_path, table, "T1:10,T5:2,W1:2")
    assert json.loads(capsys.readouterr().out)["stretches"] == 1
    for sample, end in enumerate(made["ends"].tolist()):
        past = table[np.array(seconds(table.index)) < end]
        np.testing.assert_allclose(made["t1"][sample], past.iloc[-10:], rtol=1e-6)
        whole = past.iloc[: len(past) // 5 * 5]
        expected = made_by_pandas(whole, "T5", HOW).iloc[-2:]
        np.testing.assert_allclose(made["t5"][sample], expected, rtol=1e-6)


def test_a_hole_that_is_longer_than_holidays_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = market(60, hours=(0,))
    path = write_csv(tmp_path / "market.csv", rows_of(table.drop(table.index[30:35])))
    given = [str(path), str(tmp_path / "out.h5"), "--horizon=3", "--target=close"]
    assert bars.main([*given, "--timeframes=T1:5"]) == 1
    assert "bars are missing before it" in capsys.readouterr().err
    assert bars.main([*given, "--timeframes=T1:5", "--max-gap=2w"]) == 0
    # Calendar days know of no weekends.
    assert bars.main([*given, "--timeframes=D1:5"]) == 1
    assert "2 bars are missing before it" in capsys.readouterr().err
