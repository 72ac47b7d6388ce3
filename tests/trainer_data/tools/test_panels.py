"""Panels: no look-ahead, what becomes of rows that cannot be used, and the sample."""

import csv
import json
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from worker.trainer.data.formats.window_files import WindowArray, read_windows
from worker.trainer.errors import DataError
from worker.trainer.tools.bad_rows import Bad
from worker.trainer.tools.panel import panel_rows, sample_panel
from worker.trainer.tools.panel.panel_cut import PanelCut
from worker.trainer.tools.panel.panel_rows import convert_rows
from worker.trainer.tools.rows.form import Form

DATES, NAMES = 150, ("AA", "BB", "CC", "DD")
CUT = PanelCut(window=10, horizons=(2, 5))
Row = list[Any]


def made_rows(seed: int = 0) -> list[Row]:
    """Sorted by date: a price and a volume of each entity, weekdays only."""
    random = np.random.default_rng(seed)
    prices = 100 * np.exp(np.cumsum(random.normal(0, 0.01, (DATES, len(NAMES))), 0))
    volumes = random.integers(1, 9, prices.shape)
    days = np.datetime64("2020-01-06") + np.arange(DATES) // 5 * 7 + np.arange(DATES) % 5
    return [
        [str(days[date]), name, prices[date, place], int(volumes[date, place])]
        for date in range(DATES)
        for place, name in enumerate(NAMES)
    ]


def write_csv(path: Path, rows: list[Row], header: Row | None = None) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header or ["date", "Ticker", "close", "volume"], *rows])
    return path


def converted(
    tmp_path: Path, rows: list[Row], cut: PanelCut = CUT, skips: bool = False, **more: Any
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Every array, expanded, and what was told."""
    path, out = write_csv(tmp_path / "rows.csv", rows), tmp_path / "panel.h5"
    told = convert_rows(path, out, "ticker", cut, Bad(skips), **more)
    return samples_of(out), told


def samples_of(path: Path) -> dict[str, NDArray[Any]]:
    with h5py.File(path) as file:
        windows = ("features", "present")
        found = {n: WindowArray(file[n]["series"], read_windows(file[n], n))[:] for n in windows}
        return {**found, **{n: file[n][:] for n in ("date", "targets", "known", "ends")}}


def test_targets_are_of_the_dates_to_come_and_features_of_those_before(tmp_path: Path) -> None:
    """Against volatilities computed one by one."""
    rows = made_rows()
    found, told = converted(tmp_path, rows)
    prices = np.array([row[2] for row in rows]).reshape(DATES, -1)
    changes = np.diff(np.log(prices), axis=0, prepend=np.nan)
    assert told["features"] == [*sample_panel_features(), "volume"]
    assert found["known"][10].all()
    for sample in (0, 10, -30):
        date = int(found["date"][sample])
        window = found["features"][sample]
        np.testing.assert_allclose(window[-1, :, 0], changes[date], rtol=1e-5)
        last = np.sqrt(np.mean(changes[date - 19 : date + 1] ** 2, 0))
        np.testing.assert_allclose(window[-1, :, 3], np.log(last), rtol=1e-4)
        for place, horizon in enumerate(CUT.horizons):
            ahead = np.sqrt(np.mean(changes[date + 1 : date + 1 + horizon] ** 2, 0))
            np.testing.assert_allclose(found["targets"][sample, :, place], np.log(ahead), rtol=1e-4)
    # Of the last dates only the short horizon is known, and of the very last none.
    assert found["known"][-1].any(0).tolist() == [True, False]
    assert found["date"][-1] == DATES - 1 - 2


def sample_panel_features() -> list[str]:
    return ["change", "size", "volatility_5", "volatility_20", "volatility_60"]


def test_no_sample_knows_what_comes(tmp_path: Path) -> None:
    rows = made_rows()
    before, _ = converted(tmp_path, rows)
    spoilt = [[*row[:2], row[2] * (3.0 if place // len(NAMES) >= 100 else 1.0), row[3]]
              for place, row in enumerate(rows)]  # fmt: skip
    after, _ = converted(tmp_path, spoilt)
    early = before["date"] < 100
    for name in ("features", "present"):
        np.testing.assert_array_equal(before[name][early], after[name][early])
    assert (before["features"][~early] != after["features"][~early]).any()


def test_a_column_may_be_forecast_as_its_mean(tmp_path: Path) -> None:
    rows = made_rows()
    found, told = converted(tmp_path, rows, PanelCut(10, (3,), "volume"))
    volumes = np.array([row[3] for row in rows]).reshape(DATES, -1)
    date = int(found["date"][7])
    expected = volumes[date + 1 : date + 4].mean(0)
    np.testing.assert_allclose(found["targets"][7, :, 0], expected, rtol=1e-6)
    assert told["features"] == ["close", "volume"]


def test_the_order_of_the_rows_of_different_entities_does_not_matter(tmp_path: Path) -> None:
    rows = made_rows()
    first, _ = converted(tmp_path, rows)
    by_entity, _ = converted(tmp_path, sorted(rows, key=lambda row: (row[1], row[0])))
    for name, array in first.items():
        np.testing.assert_array_equal(array, by_entity[name])


def test_who_is_away_is_masked_and_counted(tmp_path: Path) -> None:
    rows = [row for place, row in enumerate(made_rows())
            if not (row[1] == "BB" and 80 <= place // len(NAMES) < 110)]  # fmt: skip
    found, told = converted(tmp_path, rows, skips=True)
    assert told["bad"] == {"gaps": 1}
    assert told["missing_dates"] == {"BB": 30}
    assert "BB is missing since 2020-04-24 00:00:00, for 45 days" in told["told"][0]
    assert "line 413, column time" in told["told"][0]
    here = found["present"][:, -1, 1].astype(bool)
    assert not here[(found["date"] >= 80) & (found["date"] < 110)].any()
    assert not found["features"][:, -1, 1][~here].any()
    assert not found["known"][~here][:, 1].any()
    assert found["known"][:, 0].any()
    allowed, _ = converted(tmp_path, rows, max_gap=50 * 86_400)
    np.testing.assert_array_equal(found["present"], allowed["present"])


def test_no_sample_reaches_over_a_gap_of_all(tmp_path: Path) -> None:
    rows = [row for place, row in enumerate(made_rows())
            if not 70 <= place // len(NAMES) < 95]  # fmt: skip
    found, _ = converted(tmp_path, rows, skips=True)
    windows = found["date"][:, None] + np.arange(-9, 1)
    assert not ((windows < 70) & (windows.max(1, keepdims=True) >= 70)).any()
    near = (found["date"] < 70) & (found["date"] >= 68)
    assert not found["known"][near].any()


def changed(row: int, **values: Any) -> list[Row]:
    rows = made_rows()
    for name, value in values.items():
        rows[row][("date", "ticker", "close", "volume").index(name)] = value
    return rows


BAD: dict[str, tuple[list[Row], str, str]] = {
    "no number": (
        changed(41, close="n/a"),
        "line 43, column close: 'n/a' is no finite",
        "not_numbers",
    ),
    "too large": (
        changed(41, volume="1e39"),
        "line 43, column volume: '1e39' is no",
        "not_numbers",
    ),
    "no price": (changed(41, close=0), "line 43, column close: 0 of BB is no price", "not_prices"),
    "NaN": (changed(41, volume="nan"), "line 43, column volume: 'nan' is no finite", "not_numbers"),
    "no time": (changed(41, date="monday"), "line 43, column time: 'monday' is no time", "times"),
    "short": (
        [*made_rows()[:41], ["2020-01-20"], *made_rows()[41:]],
        "line 43: 1 columns",
        "short_rows",
    ),
    "long": (
        [*made_rows()[:41], ["2020-01-20", "BB", 5, 25, 7], *made_rows()[41:]],
        "line 43: 5 columns, and 4 have names",
        "long_rows",
    ),
    "month first": (changed(41, date="01202020"), "column time: '01202020' is no time", "times"),
    "nobody's": (changed(41, ticker=" "), "line 43, column ticker: it is empty", "no_entity"),
    "twice": (
        [*made_rows()[:42], made_rows()[41], *made_rows()[42:]],
        "of BB is there already",
        "duplicates",
    ),
    "back": (
        changed(41, date="2019-01-01"),
        "of BB is before 2020-01-17 00:00:00, further",
        "unsorted",
    ),
    "short-lived": (
        [*made_rows(), ["2020-08-01", "EE", 1.0, 2]],
        "EE has 1 dates, and a sample takes 15",
        "short_entities",
    ),
    "still": (
        [*made_rows(), *([row[0], "EE", 5.0, row[3]] for row in made_rows()[:: len(NAMES)])],
        "column close: the price of EE never changes from 5, so it has no volatility",
        "still_entities",
    ),
    "constant": (
        [[*row, 7] for row in made_rows()],
        "column five: it is 7 in every row",
        "constant_columns",
    ),
}


@pytest.mark.parametrize(("rows", "told", "kind"), BAD.values(), ids=BAD)
def test_what_cannot_be_used_ends_it_or_is_left_out_and_counted(
    tmp_path: Path, rows: list[Row], told: str, kind: str
) -> None:
    header = ["date", "ticker", "close", "volume", "five"][: len(rows[0])]
    path = write_csv(tmp_path / "rows.csv", rows, header)
    with pytest.raises(DataError, match="pass --on-bad skip") as caught:
        convert_rows(path, tmp_path / "panel.h5", "ticker", CUT, Bad(skips=False))
    assert told in caught.value.message
    assert not (tmp_path / "panel.h5").exists()
    made = convert_rows(path, tmp_path / "panel.h5", "ticker", CUT, Bad(skips=True))
    assert made["bad"] == {kind: 1}
    assert told in made["told"][0]
    assert made["entities"] == len(NAMES)
    assert "five" not in made["features"]
    assert np.isfinite(samples_of(tmp_path / "panel.h5")["features"]).all()


@pytest.mark.parametrize(
    ("entity", "cut", "told"),
    [
        ("tick", CUT, "no column 'tick' .* it has date, ticker, close, volume. Did you mean"),
        ("ticker", PanelCut(10, (2,), "clse"), "no column 'clse' to forecast"),
        ("ticker", PanelCut(148, (1,)), "Not one sample fits: 148 dates"),
        ("ticker", PanelCut(200, (1,)), "such entities are left out"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(
    tmp_path: Path, entity: str, cut: PanelCut, told: str
) -> None:
    path = write_csv(tmp_path / "rows.csv", made_rows())
    with pytest.raises(DataError, match=told):
        convert_rows(path, tmp_path / "panel.h5", entity, cut, Bad(skips=False))


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("target", ["volume", "close"])
def test_what_is_forecast_has_to_vary(tmp_path: Path, target: str, skips: bool) -> None:
    """Of a column of one value, which would be left out, nothing can be forecast. An entity that is
    left out does not make it vary.
    """
    place = ("date", "ticker", "close", "volume").index(target)
    rows = [[*row[:place], 7, *row[place + 1 :]] for row in made_rows()]
    if skips:
        rows.append(["2020-08-01", "EE", 1.0, 2])
    path = write_csv(tmp_path / "rows.csv", rows)
    told = f"column {target}: it is 7 in every row that can be used, and it is to be forecast"
    with pytest.raises(DataError, match=told):
        convert_rows(path, tmp_path / "panel.h5", "ticker", PanelCut(10, (2,), target), Bad(skips))


FEW: dict[str, tuple[list[Row], PanelCut, str]] = {
    "one date": (made_rows()[: len(NAMES)], CUT, "has 5 lines, and one sample takes 15 rows"),
    "one date for all rows": (
        [["2020-01-06", *row[1:]] for row in made_rows()],
        CUT,
        "No entity of .*short entities 4",
    ),
    "a longer window": (
        made_rows(),
        PanelCut(400, (1,)),
        "No entity of .*short entities 4",
    ),
    "a longer horizon": (
        made_rows(),
        PanelCut(10, (400,)),
        "No entity of .*short entities 4",
    ),
    "no price above 0": (
        [[*row[:2], -row[2], row[3]] for row in made_rows()],
        CUT,
        "No entity of .*left out: not prices 600",
    ),
    "prices that never change": (
        [[*row[:2], 7, row[3]] for row in made_rows()],
        CUT,
        "No entity of .*left out: still entities 4",
    ),
}


@pytest.mark.parametrize(("rows", "cut", "told"), FEW.values(), ids=FEW)
def test_too_little_for_a_sample_is_a_sentence(
    tmp_path: Path, rows: list[Row], cut: PanelCut, told: str
) -> None:
    with pytest.raises(DataError, match=told):
        converted(tmp_path, rows, cut, skips=True)


def test_a_european_file_is_the_same_panel(tmp_path: Path) -> None:
    plain, _ = converted(tmp_path, made_rows())
    lines = ["Tag;Ticker;Close;Volume"]
    for day, name, price, volume in made_rows():
        lines.append(
            f"{date.fromisoformat(day):%d.%m.%Y};{name};{price};{volume}".replace(".", ",")
        )
    path = tmp_path / "european.csv"
    path.write_text("\n".join(lines))
    form = Form(("tag",), "%d,%m,%Y", decimal=",")
    made = convert_rows(path, tmp_path / "panel.h5", "ticker", CUT, Bad(skips=False), form=form)
    assert made["separated_by"] == "semicolons"
    for name, array in samples_of(tmp_path / "panel.h5").items():
        np.testing.assert_array_equal(array, plain[name])


def test_one_entity_is_a_panel_too(tmp_path: Path) -> None:
    found, told = converted(tmp_path, [row for row in made_rows() if row[1] == "CC"])
    assert told["entities"] == 1
    assert found["features"].shape[1:] == (10, 1, 6)
    assert found["present"][60:].all()


def test_volatility_needs_a_price(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", made_rows(), ["date", "ticker", "level", "volume"])
    with pytest.raises(DataError, match=r"no column close or .*, only level, volume"):
        convert_rows(path, tmp_path / "panel.h5", "ticker", CUT, Bad(skips=False))


def test_the_command_prints_what_it_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[place, *row, ""] for place, row in enumerate(made_rows())]  # as pandas writes them
    path = write_csv(tmp_path / "rows.csv", rows, ["", "date", "Ticker", "close", "volume"])
    arguments = ["--entity=Ticker", "--window=10", "--horizon=5", "--horizon=2"]
    assert panel_rows.main([str(path), str(tmp_path / "panel.h5"), *arguments]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["horizons"], made["target"], made["bad"]) == ([2, 5], "volatility", {})
    assert (made["features"], made["left_out"]) == ([*sample_panel_features(), "volume"], [""])
    write_csv(path, rows, ["", "Handelstag", "Ticker", "close", "volume"])
    with pytest.raises(DataError, match=r"has no column of times among .*Name it by --time"):
        convert_rows(path, tmp_path / "again.h5", "ticker", CUT, Bad(skips=False))


def test_a_made_panel_is_the_same_each_time_and_says_that_it_is_made(tmp_path: Path) -> None:
    found = []
    for name in ("one.h5", "two.h5"):
        arguments = [str(tmp_path / name), "--made", "--entities=40", "--dates=300"]
        assert sample_panel.main(arguments) == 0
        found.append(samples_of(tmp_path / name))
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name])
    with h5py.File(tmp_path / "one.h5") as file:
        assert "nobody ever paid these prices" in file.attrs["source"]
    assert 0.8 < found[0]["present"].mean() < 1.0


@pytest.mark.skipif(not find_spec("skfolio"), reason="needs skfolio's file of prices")
def test_the_sample_is_of_twenty_stocks_since_1990(tmp_path: Path) -> None:
    path = tmp_path / "panel.h5"
    assert sample_panel.main([str(path)]) == 0
    found = samples_of(path)
    assert found["features"].shape[1:] == (60, 20, 5)
    assert len(found["date"]) > 8_000
    assert found["present"].mean() > 0.99
    with h5py.File(path) as file:
        assert "BSD" in file.attrs["licence"]
