"""The recipe for panels: what it refuses, who looks at whom, what is masked, and exact resume."""

import json
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.datacache import entries
from app.lifecycle import Reason
from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, Killed, Lab, StopAtPoll, merged
from worker.trainer.data.source import Field, arrays_of
from worker.trainer.errors import DataError, SpecMismatch
from worker.trainer.recipes.base import Batch, grouped_parameters
from worker.trainer.recipes.graphs import correlations, nearest, trailing_graphs
from worker.trainer.recipes.panel_graph import PanelGraphTask, rank_agreement
from worker.trainer.recipes.panel_model import PanelModel, StrongestFrequencies
from worker.trainer.tools.panel.panel_cut import Panel, PanelCut, write_panel

DATES, ENTITIES, WINDOW = 90, 6, 12
FIELDS = {
    "features": ((WINDOW, ENTITIES, 2), "float32"),
    "present": ((WINDOW, ENTITIES), "uint8"),
    "date": ((), "int32"),
    "targets": ((ENTITIES, 2), "float32"),
    "known": ((ENTITIES, 2), "uint8"),
}
GRAPH: dict[str, Any] = {"neighbors": 2, "lookback": 30, "rebuild_every": 10}
SPEC: dict[str, Any] = {
    "recipe": {
        "kind": "panel-graph", "encoder": "gru", "hidden_size": 8, "patch": 3, "dropout": 0.1,
        "horizons": [1, 3], "graph": GRAPH,
    },
    "data": {"inputs": ["features", "present", "date"], "targets": ["targets", "known"]},
    "evaluation": {"metrics": ["mae", "rmse", "rank_correlation", "mae_1", "mae_3"]},
}  # fmt: skip
ENCODERS = ("lstm", "gru", "transformer")
MASKS = {"inputs": ["features", "present", "date"], "targets": ["targets", "known"]}


def with_recipe(**recipe: Any) -> dict[str, Any]:
    return {**SPEC, "recipe": merged(SPEC["recipe"], recipe)}


def made_panel(seed: int = 0) -> Panel:
    """Two groups of three, each with a wave of its own; one comes late, one is away for a while."""
    random = np.random.default_rng(seed)
    wave = 3 * np.sin(0.4 * np.arange(DATES)[:, None] + random.uniform(0, 6, 2))
    own = 50 + wave[:, [0, 0, 0, 1, 1, 1]] + 0.3 * random.normal(size=(DATES, ENTITIES))
    values = np.stack([own, random.normal(size=own.shape)], -1)
    values[:40, 1] = values[50:60, 4] = np.nan
    return Panel(86_400 * np.arange(DATES), tuple("abcdef"), ("own", "noise"), values)


@pytest.fixture
def panel(lab: Lab) -> Lab:
    write_panel(lab.data, made_panel(), PanelCut(WINDOW, (1, 3), "own"))
    return lab


def task_for(patch: dict[str, Any], **fields: tuple[tuple[int, ...], str]) -> PanelGraphTask:
    spec = RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, patch)))
    found = {n: Field(shape, np.dtype(kind)) for n, (shape, kind) in (FIELDS | fields).items()}
    return PanelGraphTask.for_run(spec, found)


def model_of(task: PanelGraphTask) -> PanelModel:
    torch.manual_seed(0)
    model = task.build_model({}, task.made_up_tables()).eval()
    assert isinstance(model, PanelModel)
    return model


def batch_of(task: PanelGraphTask, size: int = 4) -> Batch:
    torch.manual_seed(1)
    arrays = {
        "features": torch.randn(size, WINDOW, ENTITIES, 2),
        "present": torch.ones(size, WINDOW, ENTITIES, dtype=torch.uint8),
        "date": torch.arange(20, 20 + size, dtype=torch.int32),
        "targets": torch.randn(size, ENTITIES, 2),
        "known": torch.ones(size, ENTITIES, 2, dtype=torch.uint8),
    }
    return Batch(arrays, size, task.made_up_tables())


@pytest.mark.parametrize(
    ("patch", "fields", "told"),
    [
        ({"data": {"inputs": ["features"]}}, {}, "takes 3 arrays in data.inputs .* not 1"),
        ({"data": {"targets": ["targets"]}}, {}, "takes 2 arrays in data.targets .* not 1"),
        ({}, {"features": ((WINDOW, 2), "float32")}, r"windows of \(dates, entities, features\)"),
        ({}, {"present": ((WINDOW, 5), "uint8")}, "'present' has samples of .*with 6 entities"),
        ({}, {"present": ((WINDOW, ENTITIES), "float32")}, "'present' is float32; who is there is"),
        ({}, {"date": ((), "float64")}, "'date' is float64; the date's number is int8 or"),
        ({}, {"targets": ((ENTITIES,), "float32")}, "'targets' has samples .*2 of recipe.horizons"),
        ({"recipe": {"horizons": [3, 1]}}, {}, "horizons 3, 1 do not ascend"),
        ({"recipe": {"patch": 5}}, {}, "patch of 5 does not divide the window of 12 .* 1, 2, 3, 4"),
        ({"recipe": {"num_heads": 3}}, {}, "3 heads do not divide a hidden size of 8"),
        ({"recipe": {"num_heads": 2, "graph": None}}, {}, "No graph and the encoder gru have no"),
        ({"recipe": {"top_frequencies": 8}}, {}, "window of 12 dates has 7 frequencies, and 8"),
        ({"recipe": {"graph": {"neighbors": 6}}}, {}, "Of 6 entities none has 6 others"),
        ({"recipe": {"graph": {"feature": 2}}}, {}, "has 2 features, and number 2"),
        ({"recipe": {"graph": {"rebuild_every": "batch"}}}, {}, "window's 12 dates .*not 30"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_would(patch, fields, told) -> None:
    with pytest.raises(SpecMismatch, match=told) as caught:
        task_for(merged(SPEC, patch), **fields)
    assert caught.value.reason is Reason.spec_error


def test_parts_that_are_datasets_of_their_own_are_refused() -> None:
    split = {"method": "datasets", "validation": "other"}
    request = merged(BASE_SPEC, SPEC) | {"data": {"dataset": "waves", **MASKS, "split": split}}
    spec = RunSpec.model_validate_json(json.dumps(request))
    [problem] = spec.recipe.problems(spec.data, {})
    assert "graphs are made of the dates of one" in problem.message


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(("layers", "frequencies"), [(1, 2), (3, 0)])
def test_the_parameters_are_counted_exactly(encoder: str, layers: int, frequencies: int) -> None:
    change = {"encoder": encoder, "top_frequencies": frequencies, "graph": {"layers": layers}}
    task = task_for(with_recipe(**change))
    counted = sum(one.numel() for one in model_of(task).parameters())
    assert task.recipe.num_parameters(task.spec.data, arrays_of(task.fields)) == counted
    groups = grouped_parameters(task, model_of(task))
    assert sum(one.numel() for group in groups.values() for one in group) == counted


def test_the_strongest_frequencies_are_those_of_an_fft() -> None:
    for window in (12, 15):
        values = torch.randn(5, window, 3)
        spectrum = torch.fft.rfft(values, dim=1)
        kept = spectrum.abs().topk(2, 1).indices
        mask = torch.zeros_like(spectrum.abs()).scatter(1, kept, 1.0)
        expected = torch.fft.irfft(spectrum * mask, window, dim=1)
        torch.testing.assert_close(StrongestFrequencies(window, 2)(values), expected)


def test_correlations_are_numpys_over_the_dates_that_both_have() -> None:
    random = np.random.default_rng(0)
    values = torch.from_numpy(1_000 + random.normal(size=(40, 5)))
    values[:, 4] = 7.0
    present = torch.from_numpy(random.random((40, 5)) < 0.9)
    present[8:, 3] = False
    spoilt = values.masked_fill(~present, torch.nan)
    found = correlations(spoilt, present)
    for one in range(3):
        for other in range(3):
            both = present[:, one] & present[:, other]
            expected = np.corrcoef(values[both, one], values[both, other])[0, 1]
            assert found[one, other].item() == pytest.approx(expected)
    assert found[:, 3:].isneginf().all(), "too few dates, and one that never changes"


def test_each_looks_at_those_most_like_it_and_at_itself() -> None:
    alike = torch.tensor([[1.0, 0.9, 0.1, 0.2], [0.9, 1, 0.3, 0.4], [0.1, 0.3, 1, -torch.inf]])
    alike = torch.cat([alike, torch.tensor([[0.2, 0.4, -torch.inf, 1.0]])])
    assert nearest(alike, 1).int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0],
                                                [0, 1, 0, 1]]  # fmt: skip
    assert nearest(alike, 3)[2].tolist() == [True, True, True, False]


def test_a_graph_knows_nothing_of_what_comes() -> None:
    values = torch.from_numpy(made_panel().values[..., 0])
    present = values.isfinite()
    ends = range(20, DATES, 10)
    before = trailing_graphs(values, present, ends, 30, 2)
    values[55:] = torch.randn(DATES - 55, ENTITIES, dtype=values.dtype)
    after = trailing_graphs(values, present, ends, 30, 2)
    same = [bool((one == other).all()) for one, other in zip(before, after, strict=True)]
    assert all(one for one, end in zip(same, ends, strict=True) if end <= 55)
    assert not all(same), "graphs of later dates know what came"


def test_only_neighbors_who_are_there_change_a_forecast() -> None:
    task = task_for(with_recipe(top_frequencies=0))
    model, batch = model_of(task), batch_of(task)
    features, present = batch.arrays["features"], batch.arrays["present"].bool()
    looks_at = torch.eye(ENTITIES, dtype=torch.bool).expand(4, -1, -1).clone()
    looks_at[:, 0, 1] = looks_at[:, 0, 2] = True
    present[:, -1, 2] = False
    before = model(features, present, looks_at)
    for entity, changed in enumerate([[0], [0, 1], [2], [3], [4], [5]]):
        other = features.clone()
        other[:, :, entity] += 1.0
        moved = (model(other, present, looks_at) != before).any(-1).any(0)
        assert moved.nonzero().flatten().tolist() == changed


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("loss", ["mae", "mse", "huber"])
def test_what_is_masked_changes_nothing(encoder: str, loss: str) -> None:
    task = task_for(with_recipe(encoder=encoder, loss=loss))
    model, batch = model_of(task), batch_of(task)
    for name in ("present", "known"):
        batch.arrays[name][:, 1] = 0
    batch.arrays["known"][3] = 0
    seen = []
    for filling in (0.0, 1e6, torch.nan):
        model.zero_grad()
        batch.arrays["features"][:, 1] = filling
        batch.arrays["targets"].masked_fill_(batch.arrays["known"] == 0, filling)
        task.loss(model, batch)["loss"].backward()
        measured = {name: one.item() for name, one in task.measure(model, batch).items()}
        gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        seen.append((measured, gradients))
    for measured, gradients in seen[1:]:
        assert measured == seen[0][0]
        assert all(torch.equal(*pair) for pair in zip(gradients, seen[0][1], strict=True))
    assert seen[0][0]["dates"] == 3
    assert all(one.isfinite().all() for one in seen[0][1])


def test_rank_agreement_is_spearmans_over_what_is_known() -> None:
    forecast = torch.tensor([[[1.0], [2.0], [3.0], [9.0]], [[1.0], [1.0], [1.0], [1.0]]])
    measured = torch.tensor([[[1.0], [3.0], [2.0], [0.0]], [[1.0], [2.0], [3.0], [4.0]]])
    known = torch.ones(2, 4, 1, dtype=torch.bool)
    known[0, 3] = False
    agreement, agreed = rank_agreement(forecast, measured, known)
    assert agreement.tolist() == pytest.approx([0.5, 0.0])  # 1 - 6 * 2 / (3 * 8)
    assert agreed.tolist() == [1, 0], "of equal forecasts there is none"
    ties, _ = rank_agreement(torch.tensor([[[1.0], [2.0], [2.0]]]), measured[:1, :3], known[:1, :3])
    assert ties.item() == pytest.approx(0.75**0.5), "equals have the mean of their ranks"


def test_scores_are_means_over_dates_however_they_are_batched() -> None:
    task = task_for(SPEC)
    model, batch = model_of(task), batch_of(task, 6)
    batch.arrays["known"][2, 1:] = 0
    whole = sums_of(task.measure(model, batch))
    pieces = [
        sums_of(task.measure(model, Batch({n: a[rows] for n, a in batch.arrays.items()}, len(rows),
                                          batch.tables)))
        for rows in (range(2), range(2, 6))
    ]  # fmt: skip
    parts = {name: sum(piece[name] for piece in pieces) for name in whole}
    assert task.scores(parts, 6) == pytest.approx(task.scores(whole, 6))
    forecast = model(batch.arrays["features"], batch.arrays["present"].bool(), task.looks_at(batch))
    error = (forecast - batch.arrays["targets"]).abs().double()
    error[batch.arrays["known"] == 0] = torch.nan
    by_date = error.flatten(1).nanmean(1)
    assert task.scores(whole, 6)["mae"] == pytest.approx(by_date.mean().item())


def sums_of(measured: dict[str, Tensor]) -> dict[str, float]:
    return {name: one.item() for name, one in measured.items()}


@pytest.mark.parametrize("graph", [GRAPH, None, {"rebuild_every": "batch", "lookback": 12}])
def test_every_graph_learns(panel: Lab, graph: dict[str, Any] | None) -> None:
    outcome = panel.run(patch=with_recipe(graph=graph))
    assert outcome.result["best"]["val_loss"] < 1.0
    metrics = set(SPEC["evaluation"]["metrics"])
    assert {f"val_{name}" for name in metrics} <= set(outcome.result["best"])
    assert {f"test_{name}" for name in metrics} <= set(outcome.result["test"])


def test_graphs_are_made_once_and_kept(panel: Lab) -> None:
    folder = panel.root / "data-cache"
    panel.data_cache = {"folder": str(folder), "most_bytes": 2**20}
    first = panel.run(patch=SPEC)
    second = panel.run(patch=SPEC)
    phases = [[one["phase"] for one in run.of_kind("phase")] for run in (first, second)]
    assert ["preparing" in one for one in phases] == [True, False]
    assert (second.weights, second.losses) == (first.weights, first.losses)
    panel.run(patch=with_recipe(graph={"neighbors": 3}))
    assert len(entries(folder)) == 2


def test_what_is_prepared_is_what_the_dates_before_say(panel: Lab) -> None:
    """Moments of what is there in the training part, and a graph every ten dates."""
    folder = panel.root / "data-cache"
    panel.data_cache = {"folder": str(folder), "most_bytes": 2**20}
    panel.run(patch=SPEC)
    (entry,) = entries(folder)
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
        ("features/series", (80, 2, 1), np.nan, r"'features' is nan in row .*, at \[2, 1\]"),
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
