"""Baselines that repeat a panel's past, compared with numpy over entities that come and go."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.trainer.lab import Lab, merged
from tests.trainer.recipes.panels import DATES, ENTITIES, SPEC, WINDOW, made_panel, with_recipe
from worker.trainer.data.formats.window_files import past_features
from worker.trainer.recipes.panel_graph import MeanOfPast
from worker.trainer.tools.panel.panel_cut import Panel, PanelCut, write_panel

Floats = NDArray[np.float64]
CUT = PanelCut(WINDOW, (1, 3), "own")
SHORT = merged(SPEC, {"training": {"epochs": 1}})


def prices(dates: int = 150) -> Panel:
    """Prices, a column that has the name of the target, and an entity that is away for a while."""
    random = np.random.default_rng(3)
    changes = np.exp(random.normal(size=(dates, ENTITIES))) * random.normal(size=(dates, ENTITIES))
    close = 100 * np.exp(0.01 * changes.cumsum(0))
    close[90:110, 2] = np.nan
    values = np.stack([random.normal(size=close.shape), close], -1)
    return Panel(86_400 * np.arange(dates), tuple("abcdef"), ("volatility", "close"), values)


def past_of(path: Path, array: str = "features") -> Mapping[int, int]:
    with h5py.File(path) as file:
        return past_features(file, array)


def scores_of(result: dict[str, Any], metric: str) -> dict[str, float]:
    return {one["name"]: one["value"] for one in result["baselines"] if one["metric"] == metric}


def windows_of(path: Path) -> tuple[Floats, NDArray[np.bool_], Floats, NDArray[np.bool_]]:
    """Each sample's features, its entities that are present, its targets and which are known."""
    with h5py.File(path) as file:
        starts = np.asarray(file["features/starts"][:])
        steps = starts[:, None] + np.arange(WINDOW)
        features = np.asarray(file["features/series"][:], np.float64)[steps]
        present = np.asarray(file["present/series"][:], bool)[steps]
        return features, present, file["targets"][:].astype("f8"), file["known"][:].astype(bool)


def repeated(features: Floats, present: NDArray[np.bool_], otherwise: Floats) -> Floats:
    """The mean over the dates, (samples, dates, entities), on which an entity is present."""
    hidden = np.where(present, features, np.nan)
    some = np.asarray(present.any(1), bool)
    mean = np.nanmean(np.where(some[:, None], hidden, 0.0), 1)
    return np.where(some[..., None], mean[..., None], otherwise)


def error(forecast: Floats, measured: Floats, known: NDArray[np.bool_]) -> float:
    """Each date weighs the same."""
    there = np.asarray(known.any((1, 2)), bool)
    each = np.where(known, np.abs(forecast - measured), np.nan)[there]
    return float(np.nanmean(each.reshape(len(each), -1), 1).mean())


def parts_of(samples: int) -> tuple[slice, slice]:
    """The training part and the test part."""
    tested, validated = round(0.1 * samples), round(0.2 * samples)
    return slice(samples - tested - validated), slice(samples - tested, None)


def test_the_last_value_and_the_mean_of_the_last_dates_are_numpys(lab: Lab) -> None:
    write_panel(lab.data, made_panel(), CUT)
    with h5py.File(lab.data, "a") as file:
        # An entity that is there in the past alone, and one whose whole past is not there: both
        # have targets that count. Absent values may be any number.
        present, features = file["present/series"], file["features/series"]
        present[DATES - 7 : DATES - 4, 0] = 0
        features[DATES - 7 : DATES - 4, 0] = 1e6
        present[DATES - WINDOW - 6 :, 5] = 0
    result = lab.run(patch=SHORT).result
    scores = scores_of(result, "test_mae")
    features, present, targets, known = windows_of(lab.data)
    own = features[..., 0]
    train, test = parts_of(len(targets))
    assert (~present[test, -1] & known[test].any(-1)).any()
    assert (~present[test].any(1) & known[test].any(-1)).any()
    mean = np.where(known[train], targets[train], 0).sum((0, 1)) / known[train].sum((0, 1))

    def forecast(dates: int, part: slice) -> Floats:
        return repeated(own[part, -dates:], present[part, -dates:], mean)

    last = error(forecast(1, test), targets[test], known[test])
    assert scores["last value"] == pytest.approx(last, rel=1e-5)
    best = min((2, 4, 8), key=lambda k: error(forecast(k, train), targets[train], known[train]))
    average = error(forecast(best, test), targets[test], known[test])
    assert scores[f"mean of the last {best} dates"] == pytest.approx(average, rel=1e-5)
    assert len(scores) == 5


def test_volatility_is_compared_with_each_volatility_that_the_file_has(lab: Lab) -> None:
    write_panel(lab.data, prices(), PanelCut(WINDOW, (1, 3)))
    assert past_of(lab.data) == {5: 2, 20: 3, 60: 4}
    result = lab.run(patch=SHORT).result
    scores = scores_of(result, "test_mae")
    features, present, targets, known = windows_of(lab.data)
    _, test = parts_of(len(targets))
    for dates, feature in ((5, 2), (20, 3), (60, 4)):
        last = repeated(features[test, -1:, :, feature], present[test, -1:], np.zeros(2))
        expected = error(last, targets[test], known[test])
        name = f"volatility of the last {dates} dates"
        assert scores[name] == pytest.approx(expected, rel=1e-5)
    assert "last value" not in scores


def test_an_entity_that_was_never_present_is_forecast_by_the_mean() -> None:
    panel = torch.tensor([[1.0, 7.0, 3.0], [5.0, 7.0, torch.nan]])[None, ..., None]
    present = torch.tensor([[True, False, True], [True, False, False]])[None]
    forecast = MeanOfPast(0, 2, torch.tensor([8.0, 9.0]))(panel, present)
    assert forecast.tolist() == [[[3.0, 3.0], [8.0, 9.0], [3.0, 3.0]]]


def test_a_band_is_put_around_the_last_value(lab: Lab) -> None:
    write_panel(lab.data, made_panel(), CUT)
    levels = {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]}
    patch = merged(with_recipe(**levels), {"evaluation": {"metrics": ["pinball", "coverage"]}})
    scores = scores_of(lab.run(patch=patch).result, "test_coverage")
    assert 0.5 < scores["last value"] < 1.0


@pytest.mark.parametrize(
    "attributes", [{"forecasts": "other"}, {"feature_names": ["own"]}, {"feature_names": None}]
)
def test_a_file_that_does_not_name_the_past_has_no_such_baseline(
    lab: Lab, attributes: dict[str, Any]
) -> None:
    write_panel(lab.data, made_panel(), CUT)
    assert past_of(lab.data) == {1: 0}
    assert past_of(lab.data, "present") == past_of(lab.data, "targets") == {}
    with h5py.File(lab.data, "a") as file:
        for name, value in attributes.items():
            del file.attrs[name]
            if value is not None:
                file.attrs[name] = value
    assert past_of(lab.data) == {}
    scores = scores_of(lab.run(patch=SHORT).result, "test_mae")
    assert all(name.startswith(("training mean", "least squares")) for name in scores)
