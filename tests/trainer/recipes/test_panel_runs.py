"""Runs on a panel: what is prepared and kept, what ends one, and exact resume."""

import time
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray

from app.datacache import entries
from app.planning.ladder import NO_RUNG, Rung
from app.spec.recipe import Array
from tests.trainer.lab import Killed, Lab, StopAtPoll, merged
from tests.trainer.recipes.panels import (
    DATES,
    ENCODERS,
    ENTITIES,
    GRAPH,
    SPEC,
    WINDOW,
    panel,
    task_for,
    with_recipe,
)
from tests.trainer.test_ladder import losses
from worker.trainer.data.source import arrays_of
from worker.trainer.errors import DataError
from worker.trainer.recipes.graphs import correlations, nearest
from worker.trainer.recipes.panel_graph import PanelGraphTask
from worker.trainer.tools.panel.panel_cut import Panel, PanelCut, write_panel

__all__ = ["panel"]


@pytest.mark.parametrize(
    "graph",
    [
        GRAPH,
        None,
        {"edges": "correlation"},
        {"edges": "correlation", "rebuild_every": "batch", "lookback": 12},
        {"rebuild_every": "batch", "lookback": 12},
    ],
)
def test_every_graph_learns(panel: Lab, graph: dict[str, Any] | None) -> None:
    outcome = panel.run(patch=with_recipe(graph=graph))
    assert outcome.result["best"]["val_loss"] < 1.0
    metrics = set(SPEC["evaluation"]["metrics"])
    assert {f"val_{name}" for name in metrics} <= set(outcome.result["best"])
    assert {f"test_{name}" for name in metrics} <= set(outcome.result["test"])


def test_graphs_are_made_once_and_kept(panel: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step, which no part of the training's time has."""
    folder, prepare = panel.root / "data-cache", PanelGraphTask.prepare

    def late(task: PanelGraphTask, data: Any) -> Any:
        time.sleep(1.0)
        return prepare(task, data)

    monkeypatch.setattr(PanelGraphTask, "prepare", late)
    panel.data_cache = {"folder": str(folder), "most_bytes": 2**20}
    first = panel.run(patch=SPEC)
    second = panel.run(patch=SPEC)
    phases = [[one["phase"] for one in run.of_kind("phase")] for run in (first, second)]
    assert ["preparing" in one for one in phases] == [True, False]
    assert all({"training", "evaluating"} <= set(one) for one in phases)
    parts = first.of_kind("progress")[-1]["phase_seconds"]
    assert parts["other"] > 1.0
    assert parts["compute"] > 0 < parts["eval"]
    assert parts["graph_build"] == 0, "which is what is compiled"
    assert (second.weights, second.losses) == (first.weights, first.losses)
    panel.run(patch=with_recipe(graph={"neighbors": 3}))
    assert [one.content for one in entries(folder)].count("tables") == 2


def test_what_is_prepared_is_what_the_dates_before_say(panel: Lab) -> None:
    """Moments of what is there in the training part, and a graph every ten dates."""
    folder = panel.root / "data-cache"
    panel.data_cache = {"folder": str(folder), "most_bytes": 2**20}
    panel.run(patch=SPEC)
    (entry,) = (one for one in entries(folder) if one.content == "tables")
    tables = safetensors.torch.load_file(folder / entry.key / "tables.safetensors")
    with h5py.File(panel.data) as file:
        series, present = file["features/series"][:], file["present/series"][:].astype(bool)
        dates = file["date"][:]
    training = len(dates) - round(0.2 * len(dates)) - round(0.1 * len(dates))
    seen = slice(0, int(dates[training - 1]) + 1)
    cells = series[seen][present[seen]].astype(np.float64)
    np.testing.assert_allclose(tables["features/mean"], cells.mean(0))
    np.testing.assert_allclose(tables["features/std"], cells.std(0))
    assert int(tables["first_date"]) == dates[0] == WINDOW - 1
    assert len(tables["graphs"]) == -(-(int(dates[-1]) - int(dates[0]) + 1) // 10)
    for number, graph in enumerate(tables["graphs"]):
        end = int(dates[0]) + 10 * number + 1
        rows = slice(max(0, end - 30), end)
        values = torch.from_numpy(series[rows, :, 0].astype(np.float64))
        expected = nearest(correlations(values, torch.from_numpy(present[rows])), 2)
        assert torch.equal(graph, expected)
    assert len({one.numpy().tobytes() for one in tables["graphs"]}) > 1
    task = task_for(SPEC)
    panel_of = {**arrays_of(task.fields), "features": Array((WINDOW, ENTITIES, 2), "float32",
                                                            series_steps=DATES)}  # fmt: skip
    planned = task.recipe.table_bytes(task.spec.data, panel_of, len(dates))
    assert planned == tables["graphs"].nbytes


def test_quantiles_are_compared_with_baselines_that_have_a_band(panel: Lab) -> None:
    metrics = {"evaluation": {"metrics": ["mae", "pinball", "coverage"]}}
    levels = [0.05, 0.5, 0.95]
    patch = merged(with_recipe(loss="quantile", quantiles=levels), metrics)
    result = panel.run(patch=patch).result
    mean = {
        one["metric"]: one["value"] for one in result["baselines"] if one["name"] == "training mean"
    }
    with h5py.File(panel.data) as file:
        targets, known = file["targets"][:].astype(np.float64), file["known"][:].astype(bool)
    tested, validated = round(0.1 * len(targets)), round(0.2 * len(targets))
    train, held_out = slice(len(targets) - tested - validated), slice(-tested, None)
    both = known[train].all(-1)
    bands = np.quantile(targets[train][both], levels, axis=0)  # levels, horizons
    came, there = targets[held_out], known[held_out]
    inside = (bands[0] <= came) & (came <= bands[-1])
    weights = there / there.sum((1, 2), keepdims=True)
    assert mean["test_coverage"] == pytest.approx((inside * weights).sum((1, 2)).mean())
    middle = np.abs(bands[1] - came)
    assert mean["test_mae"] == pytest.approx((middle * weights).sum((1, 2)).mean())
    assert result["naive"].keys() == {"val_mae", "val_pinball", "test_mae", "test_pinball"}


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("kind", ["chunked", "dataloader"])
def test_a_run_interrupted_anywhere_ends_as_one_that_was_not(
    panel: Lab, encoder: str, kind: str
) -> None:
    patch = merged(with_recipe(encoder=encoder), {"data": {"loader": {"kind": kind}}})
    counting = StopAtPoll()
    whole = panel.run(patch=patch, stop=counting)
    half = counting.polls // 2
    stopped, steps = panel.in_stages(patch, half, half, None)
    assert 0 < steps[0] <= steps[1] <= steps[2] == 12
    assert steps[0] < 12
    assert (stopped.losses, stopped.weights) == (whole.losses, whole.weights)
    assert stopped.result == whole.result


@pytest.mark.parametrize("rung", [NO_RUNG, Rung(1, batch=3)])
def test_accumulated_batches_train_as_one_where_some_dates_are_unknown(
    panel: Lab, rung: Rung
) -> None:
    """Also in an epoch's last step, which has fewer of them."""
    spoil(panel, "known", (slice(0, 50, 3),), 0)
    spoil(panel, "known", (slice(20, 30),), 0)
    steady = with_recipe(dropout=0.0) | {"runtime": {"precision": "fp32"}}
    at_once, in_two = (
        panel.run(patch=merged(steady, {"training": training}), rung=one)
        for training, one in (
            ({"batch_size": 16, "gradient_accumulation_steps": 1}, NO_RUNG),
            ({"batch_size": 8, "gradient_accumulation_steps": 2}, rung),
        )
    )
    assert losses(in_two) == pytest.approx(losses(at_once), rel=1e-4)
    assert losses(in_two) != losses(at_once)


def test_a_run_that_is_killed_ends_as_one_that_was_not(panel: Lab) -> None:
    counting = StopAtPoll()
    whole = panel.run(patch=SPEC, stop=counting)
    run_dir = panel.new_run()
    with pytest.raises(Killed):
        panel.run(run_dir, SPEC, stop=StopAtPoll(3 * counting.polls // 4, kill=True))
    resumed = panel.run(run_dir, SPEC)
    assert resumed.of_kind("restored")
    assert (resumed.losses, resumed.weights) == (whole.losses, whole.weights)


def spoil(lab: Lab, name: str, place: tuple[Any, ...], value: Any) -> None:
    with h5py.File(lab.data, "r+") as file:
        values: NDArray[Any] = file[name][:]
        values[place] = value
        file[name][:] = values


@pytest.mark.parametrize(
    ("name", "place", "value", "told"),
    [
        ("date", (20,), 3, r"'date' is 3 in row 20 .*, and 30 in the row before.* ascend"),
        ("date", (slice(-5, None),), range(10**6, 10**6 + 5), "to count dates, 0, 1, 2"),
        ("known", (5, 2, 1), 2, r"'known' has 2 in row 5 .* a mask is 1"),
        ("present/series", (5, 2), 3, "'present' has 3 in row 0 "),
        ("features/series", (80, 2, 1), np.nan, r"'features' is nan in row 69 .* at \[11, 2, 1\]"),
        # Before the last date of the first sample.
        ("features/series", (4, 2, 1), np.inf, r"'features' is inf in row 0 .*, at \[4, 2, 1\]"),
        ("targets", (30, 0, 0), np.inf, r"'targets' is inf in row 30 "),
        ("known", (slice(None),), 0, "By 'known' nothing of 'targets' is there"),
    ],
)
def test_a_panel_that_is_none_ends_the_run_with_its_place(
    panel: Lab, name: str, place: tuple[Any, ...], value: Any, told: str
) -> None:
    spoil(panel, name, place, value if not isinstance(value, range) else list(value))
    with pytest.raises(DataError, match=told):
        panel.run(patch=SPEC)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ((slice(-30, None),), "In the validation part by 'known' nothing of 'targets' is there"),
        ((slice(-30, None), slice(1, None)), "on no date two 'targets' differ"),
        ((slice(-30, None), slice(None), 1), "by 'known' no 'targets' of 3 dates ahead is there"),
    ],
)
def test_a_part_of_which_nothing_is_known_has_no_score(
    panel: Lab, place: tuple[Any, ...], told: str
) -> None:
    """An error of 0 would be the best there is."""
    spoil(panel, "known", place, 0)
    with pytest.raises(DataError, match=told):
        panel.run(patch=SPEC)


@pytest.mark.parametrize("date", [0, 5, WINDOW - 1])
def test_each_date_of_windows_that_are_stored_one_by_one_is_looked_at(
    panel: Lab, date: int
) -> None:
    """What one window says of a date another need not say."""
    with h5py.File(panel.data, "r+") as file:
        for name in ("features", "present"):
            series, starts = file[name]["series"][:], file[name]["starts"][:]
            del file[name]
            file[name] = np.stack([series[start : start + WINDOW] for start in starts])
        file["features"][7, date, 3, 0] = np.nan
    with pytest.raises(DataError, match=rf"'features' is nan in row 7 .* at \[{date}, 3, 0\]"):
        panel.run(patch=SPEC)
    spoil(panel, "present", (7, date, 3), 0)
    masked = panel.run(patch=SPEC)
    assert masked.result["best"]["val_loss"] < 1.0


def panel_of_shocks() -> Panel:
    """A signal ranks the entities, and a shock that all share hides it from the error."""
    random = np.random.default_rng(0)
    signals = random.normal(size=(300, 12))
    moves = np.roll(np.tanh(2 * signals), 1, 0) + 0.5 * random.normal(size=signals.shape)
    moves += 20 * random.standard_t(2, size=(300, 1))
    values = np.stack([moves, signals], -1)
    return Panel(86_400 * np.arange(300), tuple("abcdefghijkl"), ("move", "signal"), values)


def test_the_rank_loss_finds_ranks_that_an_error_hides(lab: Lab) -> None:
    write_panel(lab.data, panel_of_shocks(), PanelCut(6, (1,), "move"))
    found = []
    for rank_loss in (False, True):
        patch = with_recipe(
            horizons=[1], dropout=0.0, graph=None, top_frequencies=0, rank_loss=rank_loss
        )
        patch |= {
            "training": {"epochs": 10, "batch_size": 16, "gradient_accumulation_steps": 1},
            "evaluation": {"metrics": ["rank_correlation"], "every_steps": None},
            "checkpoint": {"monitor": "val_rank_correlation", "mode": "max"},
        }
        found.append(lab.run(patch=patch).result["test"]["test_rank_correlation"])
    without, with_it = found
    assert with_it > without + 0.1


def panel_of_groups() -> Panel:
    """Three groups of four. What moves an entity on a date is the mean of its group's signals on
    the date before, which neither its own past nor the mean over all entities tells.
    """
    random = np.random.default_rng(0)
    signals = random.normal(size=(300, 3, 4))
    moves = np.roll(np.broadcast_to(signals.mean(2, keepdims=True), signals.shape), 1, 0)
    moves = 2 * moves + 0.2 * random.normal(size=moves.shape)
    values = np.stack([moves, signals], -1).reshape(300, 12, 2)
    return Panel(86_400 * np.arange(300), tuple("abcdefghijkl"), ("move", "signal"), values)


def test_a_panel_learns_from_its_graph_what_no_baseline_can(lab: Lab) -> None:
    write_panel(lab.data, panel_of_groups(), PanelCut(6, (1,), "move"))
    patch = with_recipe(
        horizons=[1],
        patch=3,
        dropout=0.0,
        graph={"neighbors": 3, "lookback": 60},
        highway=6,
        top_frequencies=0,
    )
    patch |= {
        "training": {"epochs": 20, "batch_size": 16, "gradient_accumulation_steps": 1},
        "evaluation": {"metrics": ["mae", "rank_correlation"], "every_steps": None},
        "checkpoint": {"monitor": "val_mae", "mode": "min"},
    }
    result = lab.run(patch=patch).result
    assert result["test"]["test_mae"] < 0.6 * result["naive"]["test_mae"]
    assert result["test"]["test_rank_correlation"] > result["naive"]["test_rank_correlation"] + 0.2
