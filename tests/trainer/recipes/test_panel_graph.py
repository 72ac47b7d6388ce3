"""The recipe for panels: what it refuses, who looks at whom, what is masked, and its scores."""

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss
from torch import Tensor
from torch.nn import functional

from app.lifecycle import Reason
from app.spec.recipe import Array
from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, merged, step_of
from tests.trainer.recipes.panels import (
    DATES,
    ENCODERS,
    ENTITIES,
    MASKS,
    SPEC,
    WINDOW,
    batch_of,
    made_panel,
    model_of,
    spec_of,
    task_for,
    with_recipe,
)
from worker.trainer.checkpoints import matching
from worker.trainer.data.source import arrays_of
from worker.trainer.errors import SpecMismatch
from worker.trainer.recipes.base import Batch, grouped_parameters
from worker.trainer.recipes.graphs import (
    correlations,
    edge_correlations,
    nearest,
    trailing_graphs,
    weighted,
)
from worker.trainer.recipes.panel_graph import rank_agreement, rank_loss
from worker.trainer.recipes.panel_model import (
    GatedResidual,
    GraphLayer,
    SliceNormalization,
    StrongestFrequencies,
    VariableSelection,
    present_values,
    with_date_means,
)


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
        ({"recipe": {"top_frequencies": 7}}, {}, "window of 12 dates has 7 frequencies, and 7"),
        ({"recipe": {"loss": "quantile", "quantiles": [0.9, 0.1]}}, {}, "0.1. do not ascend"),
        ({"recipe": {"loss": "quantile", "quantiles": [0.1, 1.5]}}, {}, "has 1.5, which is not"),
        ({"recipe": {"quantiles": [0.1, 0.9]}}, {}, "names levels, and recipe.loss is mae"),
        ({"recipe": {"slice_dates": 5}}, {}, "Slices of 5 dates do not divide .* 4, 6"),
        ({"recipe": {"highway": 13}}, {}, "highway of 13 dates is longer than the window of 12"),
        ({"recipe": {"graph": {"neighbors": 6}}}, {}, "Of 6 entities none has 6 others"),
        ({"recipe": {"graph": {"feature": 2}}}, {}, "has 2 features, and number 2"),
        ({"recipe": {"graph": {"rebuild_every": "batch"}}}, {}, "window's 12 dates .*not 30"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_would(patch, fields, told) -> None:
    with pytest.raises(SpecMismatch, match=told) as caught:
        task_for(merged(SPEC, patch), **fields)
    assert caught.value.reason is Reason.spec_error


def arrays_with(window: int = WINDOW, entities: int = ENTITIES) -> dict[str, Array]:
    return {
        "features": Array((window, entities, 2), "float32"),
        "present": Array((window, entities), "uint8"),
        "date": Array((), "int32"),
        "targets": Array((entities, 2), "float32"),
        "known": Array((entities, 2), "uint8"),
    }


@pytest.mark.parametrize("window", [1, 2, 3, 4, 12])
def test_all_frequencies_but_one_may_be_taken_out(window: int) -> None:
    """And what is offered in place of too many fits."""
    most = window // 2
    for strongest in range(most + 2):
        spec = spec_of(with_recipe(patch=1, highway=0, top_frequencies=strongest))
        found = list(spec.recipe.problems(spec.data, arrays_with(window)))
        assert bool(found) == (strongest > most)
        for problem in found:
            (offered,) = problem.fix.values()
            fitting = spec_of(with_recipe(patch=1, highway=0, top_frequencies=offered))
            assert not list(fitting.recipe.problems(fitting.data, arrays_with(window)))


def test_one_entity_has_no_graph() -> None:
    spec = spec_of(SPEC)
    [problem] = spec.recipe.problems(spec.data, arrays_with(entities=1))
    assert "Of 1 entities none has 2 others" in problem.message
    assert problem.fix == {"/recipe/graph": None}
    alone = spec_of(with_recipe(graph=None))
    assert not list(alone.recipe.problems(alone.data, arrays_with(entities=1)))


def test_parts_that_are_datasets_of_their_own_are_refused() -> None:
    split = {"method": "datasets", "validation": "other"}
    request = merged(BASE_SPEC, SPEC) | {"data": {"dataset": "waves", **MASKS, "split": split}}
    spec = RunSpec.model_validate_json(json.dumps(request))
    [problem] = spec.recipe.problems(spec.data, {})
    assert "graphs are made of the dates of one" in problem.message


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize(
    "change",
    [
        {"graph": {"layers": 3}, "top_frequencies": 0},
        {"graph": {"layers": 2, "edges": "correlation"}},
        {"date_means": False, "highway": 0},
        {"highway": WINDOW},
        {"variable_selection": True, "slice_dates": 4},
        {"slice_dates": WINDOW, "top_frequencies": 0},
        {"loss": "quantile", "quantiles": [0.2, 0.8]},
    ],
)
def test_the_parameters_are_counted_exactly(encoder: str, change: dict[str, Any]) -> None:
    task = task_for(with_recipe(encoder=encoder, **change))
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


def test_edges_keep_the_correlations_of_those_that_are_looked_at() -> None:
    random = np.random.default_rng(0)
    correlation = torch.from_numpy(np.corrcoef(random.normal(size=(7, 9))))
    correlation[6, :6] = correlation[:6, 6] = -torch.inf
    for neighbors in (2, 6):
        stored = weighted(correlation, neighbors)
        found = edge_correlations(stored)
        chosen = nearest(correlation, neighbors)
        assert torch.equal(found > -torch.inf, chosen)
        expected = correlation.float().fill_diagonal_(1.0)
        torch.testing.assert_close(found[chosen], expected[chosen], rtol=0.0, atol=0.5 / 127)
        assert (stored.dtype, stored.nbytes) == (torch.int8, 49)


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_adds_correlations_by_the_weight_of_each_head(heads: int) -> None:
    """Compared with plain attention; with weights of 0 it is that of equal edges."""
    recipe = task_for(with_recipe(num_heads=heads, graph={"edges": "correlation"})).recipe
    torch.manual_seed(0)
    layer = GraphLayer(recipe).eval()
    states, looks_at = torch.randn(3, ENTITIES, 8), torch.rand(3, ENTITIES, ENTITIES) < 0.6
    looks_at |= torch.eye(ENTITIES, dtype=torch.bool)
    correlation = torch.rand(3, ENTITIES, ENTITIES) * 2 - 1
    equal = layer(states, looks_at, torch.zeros_like(correlation))
    torch.testing.assert_close(layer(states, looks_at, correlation), equal)
    weights = torch.tensor([3.0, -1.0])[:heads]
    assert layer.correlation_weight is not None
    layer.correlation_weight.data.copy_(weights)
    normed = layer.attention_norm(states)
    query, key, value = (
        one.view(3, ENTITIES, heads, -1).transpose(1, 2)
        for one in layer.projections(normed).chunk(3, -1)
    )
    scores = query @ key.mT / (8 / heads) ** 0.5 + weights[:, None, None] * correlation[:, None]
    shares = scores.masked_fill(~looks_at[:, None], -torch.inf).softmax(-1)
    attended = states + layer.out((shares @ value).transpose(1, 2).reshape(3, ENTITIES, 8))
    expected = attended + layer.hidden(layer.norm(attended))
    torch.testing.assert_close(layer(states, looks_at, correlation), expected)


@pytest.mark.parametrize("rebuild_every", [10, "batch"])
def test_edges_of_correlations_reach_the_model(rebuild_every: Any) -> None:
    graph = {"edges": "correlation", "rebuild_every": rebuild_every, "lookback": 12}
    task = task_for(with_recipe(graph=graph, date_means=False))
    model, batch = model_of(task), batch_of(task)
    looks_at = task.looks_at(batch)
    assert looks_at is not None
    assert looks_at.dtype == torch.float32
    assert (looks_at.diagonal(dim1=1, dim2=2) == 1).all()
    task.loss(model, batch).means()["loss"].backward()
    (layer,) = model.layers
    assert isinstance(layer, GraphLayer)
    assert layer.correlation_weight is not None
    gradient = layer.correlation_weight.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    if rebuild_every == "batch":  # made-up tables have the same correlation everywhere
        assert (gradient != 0).all()
    present = batch.arrays["present"].bool()
    present[:, -1, 2] = False  # so nobody else looks at it
    before = model(batch.arrays["features"], present, looks_at)
    other = batch.arrays["features"].clone()
    other[:, -2, 2] += 1.0
    moved = (model(other, present, looks_at) != before).any(-1).any(0)
    assert moved.nonzero().flatten().tolist() == [2]


def test_a_manifest_of_an_earlier_panel_is_of_the_same_model() -> None:
    """It names neither edges nor anything else that came later, also within the graph's block."""
    task = task_for(with_recipe(date_means=False, highway=0))
    parameters = json.loads(json.dumps(task.parameters_json()))
    for name in ("date_means", "highway", "quantiles", "variable_selection", "slice_dates"):
        del parameters[name]
    del parameters["graph"]["edges"]
    assert list(matching.of_the_recipe(task, {"recipe": parameters})) == []
    parameters["graph"]["layers"] = 2
    (difference,) = matching.of_the_recipe(task, {"recipe": parameters})
    assert difference == "graph/layers is 2 there and 1 in this run"
    parameters["graph"]["layers"] = 1
    (difference,) = matching.of_the_recipe(task_for(with_recipe(highway=0)), {"recipe": parameters})
    assert difference == "date_means is False there and True in this run"


def test_a_graph_knows_nothing_of_what_comes() -> None:
    values = torch.from_numpy(made_panel().values[..., 0])
    present = values.isfinite()
    ends = range(20, DATES, 10)
    edges_of = partial(nearest, neighbors=2)
    before = trailing_graphs(values, present, ends, 30, edges_of)
    values[55:] = torch.randn(DATES - 55, ENTITIES, dtype=values.dtype)
    after = trailing_graphs(values, present, ends, 30, edges_of)
    same = [bool((one == other).all()) for one, other in zip(before, after, strict=True)]
    assert all(one for one, end in zip(same, ends, strict=True) if end <= 55)
    assert not all(same), "graphs of later dates know what came"


def test_only_neighbors_who_are_there_change_a_forecast() -> None:
    task = task_for(with_recipe(top_frequencies=0, date_means=False))
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
@pytest.mark.parametrize(
    "loss",
    [
        {"loss": "mae"},
        {"loss": "mse"},
        {"loss": "huber"},
        {"loss": "quantile"},
        {"rank_loss": True},
        {"variable_selection": True, "slice_dates": 3},
    ],
)
def test_what_is_masked_changes_nothing(encoder: str, loss: dict[str, Any]) -> None:
    task = task_for(with_recipe(encoder=encoder, **loss))
    model, batch = model_of(task), batch_of(task)
    for name in ("present", "known"):
        batch.arrays[name][:, 1] = 0
    batch.arrays["known"][3] = 0
    seen = []
    for filling in (0.0, 1e6, torch.nan):
        model.zero_grad()
        batch.arrays["features"][:, 1] = filling
        batch.arrays["targets"].masked_fill_(batch.arrays["known"] == 0, filling)
        torch.stack([*task.loss(model, batch).means().values()]).sum().backward()
        measured = {name: one.item() for name, one in task.measure(model, batch).items()}
        gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        seen.append((measured, gradients))
    for measured, gradients in seen[1:]:
        assert measured == seen[0][0]
        assert all(torch.equal(*pair) for pair in zip(gradients, seen[0][1], strict=True))
    assert seen[0][0]["dates"] == 3
    assert all(one.isfinite().all() for one in seen[0][1])


def test_date_means_are_those_of_the_entities_that_are_present() -> None:
    values, present = torch.randn(2, WINDOW, ENTITIES, 3), torch.rand(2, WINDOW, ENTITIES) < 0.7
    present[0, 2] = False
    spoilt = values.masked_fill(~present[..., None], torch.nan)
    moments = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([2.0, 1.0, 0.5])
    found = with_date_means(present_values(spoilt, present, moments), present)
    scaled = (spoilt - moments[0]) / moments[1]
    own, means = found.split(3, -1)
    torch.testing.assert_close(own, scaled.nan_to_num())
    expected = scaled.nanmean(2, keepdim=True).nan_to_num().expand_as(own)
    torch.testing.assert_close(means, expected)


@pytest.mark.parametrize("dates", [1, 3, 12])
def test_slices_are_normalized_by_their_own_mean_and_deviation(dates: int) -> None:
    windows = torch.randn(5, 12, 2) * 3 + 7
    windows[0, :, 0] = 4.0  # never changes
    module = SliceNormalization(dates, 12, 2, 8, 3)
    rest, forecast = module(windows)
    cut = windows.numpy().reshape(5, 12 // dates, dates, 2)
    mean, std = cut.mean(2, keepdims=True), cut.std(2, keepdims=True)
    expected = (cut - mean) / np.sqrt(std**2 + 0.01**2)
    np.testing.assert_allclose(rest.detach().numpy(), expected.reshape(5, 12, 2), atol=1e-5)
    statistics = np.concatenate((mean, np.sqrt(std**2 + 0.01**2)), 2).reshape(5, -1)
    told = module.forecast(torch.from_numpy(statistics))
    torch.testing.assert_close(forecast, told)


def test_a_selection_network_is_that_of_the_temporal_fusion_transformer() -> None:
    """Compared with a plain loop over patches and features, by the formulas of its paper."""
    module = VariableSelection(2, 3, 8, 0.0)

    def network(part: GatedResidual, number: int, inputs: Tensor) -> Tensor:
        hidden = functional.elu(inputs @ part.hidden.weight[number] + part.hidden.bias[number, 0])
        gate = hidden @ part.gated.weight[number] + part.gated.bias[number, 0]
        value, openness = gate.chunk(2)
        skipped = inputs @ part.linear.weight[number] + part.linear.bias[number, 0]
        normalized: Tensor = part.norm(skipped + value * openness.sigmoid())
        return normalized

    windows = torch.randn(2, WINDOW, 3)
    selected = module(windows)
    assert selected.shape == (2, WINDOW // 2, 8)
    for window, found in zip(windows, selected, strict=True):
        for patch, vector in zip(window.split(2), found, strict=True):
            weights = network(module.weights, 0, patch.flatten()).softmax(0)
            vectors = [network(module.vectors, one, patch[:, one]) for one in range(3)]
            expected = sum(weight * one for weight, one in zip(weights, vectors, strict=True))
            torch.testing.assert_close(vector, expected)


def test_the_highway_is_a_linear_map_of_the_last_dates() -> None:
    """On top of what the rest of the model forecasts, which begins as if there were none."""
    task = task_for(with_recipe(highway=4, date_means=False))
    model, batch = model_of(task), batch_of(task)
    given = batch.arrays["features"], batch.arrays["present"].bool(), task.looks_at(batch)
    without = model(*given)
    assert model.highway is not None
    torch.nn.init.normal_(model.highway.weight)
    weights = model.highway.weight.view(2, 4, 2)
    expected = torch.einsum("bsef,hsf->beh", batch.arrays["features"][:, -4:], weights)
    torch.testing.assert_close(model(*given) - without, expected)


def test_rank_agreement_is_spearmans_over_what_is_known() -> None:
    forecast = torch.tensor([[[1.0], [2.0], [3.0], [9.0]], [[1.0], [1.0], [1.0], [1.0]]])
    measured = torch.tensor([[[1.0], [3.0], [2.0], [0.0]], [[1.0], [2.0], [3.0], [4.0]]])
    known = torch.ones(2, 4, 1, dtype=torch.bool)
    known[0, 3] = False
    agreement, agreed = rank_agreement(forecast, measured, known)
    assert agreement.tolist() == pytest.approx([0.5, 0.0])  # 1 - 6 * 2 / (3 * 8)
    assert agreed.tolist() == [1, 1], "who says the same of all has ranked none of them"
    alike = rank_agreement(measured, torch.ones_like(measured), known)
    alone = rank_agreement(forecast, measured, known & (torch.arange(4) == 1)[:, None])
    assert [one.tolist() for one in (*alike, *alone)] == [[0, 0]] * 4, "nothing to rank"
    ties, _ = rank_agreement(torch.tensor([[[1.0], [2.0], [2.0]]]), measured[:1, :3], known[:1, :3])
    assert ties.item() == pytest.approx(0.75**0.5), "equals have the mean of their ranks"


def test_the_rank_loss_is_one_less_the_correlation_with_ranks() -> None:
    random = torch.Generator().manual_seed(0)
    forecast = torch.randn(6, 8, 2, generator=random, requires_grad=True)
    measured = torch.randint(4, (6, 8, 2), generator=random).float()  # with ties
    known = torch.rand(6, 8, 2, generator=random) < 0.7
    known[1], known[2, :, 1] = False, False
    measured[3] = 1.0
    found = rank_loss(forecast, measured.masked_fill(~known, torch.nan), known)
    expected = []
    for date in range(6):
        each = []
        for horizon in range(2):
            there = known[date, :, horizon]
            came = measured[date, there, horizon].numpy()
            if len(set(came.tolist())) > 1:
                said = forecast[date, there, horizon].detach().numpy()
                above = came[:, None] > came
                ranks = above.sum(1) + 0.5 * (came[:, None] == came).sum(1)
                each.append(1 - np.corrcoef(said, ranks)[0, 1])
        expected.append(np.mean(each) if each else 0.0)
    assert [one > 0 for one in expected] == [True, False, True, False, True, True]
    # Forecasts that hardly differ count as a little less correlated.
    assert found.tolist() == pytest.approx(expected, abs=1e-3)
    found.sum().backward()
    assert forecast.grad is not None
    assert forecast.grad.isfinite().all()
    assert (forecast.grad[~known] == 0).all()


def test_the_rank_loss_of_equal_forecasts_has_a_gradient_that_ranks_them() -> None:
    forecast = torch.zeros(1, 5, 1, requires_grad=True)
    measured = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0]).view(1, 5, 1)
    loss = rank_loss(forecast, measured, torch.ones(1, 5, 1, dtype=torch.bool))
    loss.sum().backward()
    assert loss.item() == 1.0
    assert forecast.grad is not None
    assert (-forecast.grad.flatten()).argsort().tolist() == measured.flatten().argsort().tolist()


def test_the_loss_of_ranks_is_a_term_that_loss_weights_weigh() -> None:
    weights = {"loss_weights": {"rank": 0.25}}
    task = task_for(with_recipe(rank_loss=True) | weights)
    model, batch = model_of(task), batch_of(task, 6)
    batch.arrays["known"][2] = 0
    terms = task.loss(model, batch).means()
    assert list(terms) == ["error", "rank"] == list(task.recipe.loss_terms)
    plain = task_for(SPEC)
    assert torch.equal(terms["error"], plain.loss(model, batch).means()["loss"])
    loss = task.scores(sums_of(task.measure(model, batch)), 6)["loss"]
    assert loss == pytest.approx(terms["error"].item() + 0.25 * terms["rank"].item())


def pairwise_spearman(forecast: Tensor, measured: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, by comparing all pairs in float64; as `rank_agreement`."""
    count = known.sum(1).clamp(min=1)[:, None]
    centered = []
    for values in (forecast, measured):
        one, other = values[:, :, None], values[:, None]
        below = ((other < one).double() + 0.5 * (other == one).double()) * known[:, None]
        ranks = below.sum(2) * known
        centered.append((ranks - ranks.sum(1, keepdim=True) / count) * known)
    products = (centered[0] * centered[1]).sum(1)
    squares = [one.square().sum(1) for one in centered]
    spread = (squares[0] * squares[1]).sqrt()
    correlation = torch.where(spread > 0, products / spread, 0.0)
    return correlation.sum(1), (squares[1] > 0).sum(1)


@pytest.mark.parametrize("entities", [1, 2, 7, 300])
@pytest.mark.parametrize("values", [1, 3, 1_000_000])
@pytest.mark.parametrize("share_known", [0.0, 0.4, 1.0])
def test_ranks_by_sorting_agree_with_comparing_all_pairs(
    entities: int, values: int, share_known: float
) -> None:
    """Also with ties (of 3 values), if all are equal, and whatever the unknown values are."""
    random = torch.Generator().manual_seed(entities)
    shape = (5, entities, 2)
    forecast, measured = (
        torch.randint(values, shape, generator=random).float() - 1.0 for _ in range(2)
    )
    known = torch.rand(shape, generator=random) < share_known
    forecast[:, 0] = torch.inf  # no larger than what is unknown
    spoilt = measured.masked_fill(~known, torch.nan)
    agreement, agreed = rank_agreement(forecast, spoilt, known)
    expected, counted = pairwise_spearman(forecast, measured, known)
    torch.testing.assert_close(agreement.double(), expected, rtol=0.0, atol=1e-5)
    assert agreed.tolist() == counted.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_values_that_float32_cannot_tell_apart_keep_their_ranks(dtype: torch.dtype) -> None:
    measured = (2**30 + torch.arange(4)).to(dtype).reshape(1, 4, 1)
    forecast, known = torch.arange(4.0).reshape(1, 4, 1), torch.ones(1, 4, 1, dtype=torch.bool)
    agreement, agreed = rank_agreement(forecast, measured, known)
    expected = 0.0 if dtype is torch.bfloat16 else 1.0  # bfloat16 itself rounds them to one
    assert [agreement.item(), float(agreed)] == pytest.approx([expected, expected])


def test_quantiles_ascend_and_are_measured_over_what_is_known() -> None:
    levels, metrics = [0.1, 0.3, 0.6, 0.9], ["mae", "pinball", "coverage", "rank_correlation"]
    task = task_for(
        merged(with_recipe(loss="quantile", quantiles=levels), {"evaluation": {"metrics": metrics}})
    )
    model, batch = model_of(task), batch_of(task, 16)
    model.target_mean.fill_(3.0)
    model.target_std.fill_(2.0)
    batch.arrays["targets"].mul_(0.3).add_(3.0)
    batch.arrays["known"][2, 1:] = 0
    batch.arrays["known"][5] = 0
    batch.arrays["targets"][5] = torch.nan
    forecast = model(batch.arrays["features"], batch.arrays["present"].bool(), task.looks_at(batch))
    assert forecast.shape == (16, ENTITIES, 2, 4)
    assert (forecast.diff(dim=-1) >= 0).all()
    scores = task.scores(sums_of(task.measure(model, batch)), 16)
    dates = [
        (batch.arrays["targets"][date][known].numpy(), forecast[date][known].detach().numpy())
        for date, known in enumerate(batch.arrays["known"].bool())
        if known.any()
    ]
    each = [
        [mean_pinball_loss(came, said[:, n], alpha=level) for n, level in enumerate(levels)]
        for came, said in dates
    ]
    assert len(dates) == 15
    assert scores["pinball"] == pytest.approx(np.mean(each))
    assert scores["loss"] == pytest.approx(np.mean(each) / 2, rel=1e-5)
    assert task.loss(model, batch).means()["loss"].item() == pytest.approx(scores["loss"])
    inside = [((said[:, 0] <= came) & (came <= said[:, -1])).mean() for came, said in dates]
    assert 0 < scores["coverage"] < 1
    assert scores["coverage"] == pytest.approx(np.mean(inside))
    errors = [np.abs(said[:, 2] - came).mean() for came, said in dates]  # 0.6 is nearest 0.5
    assert scores["mae"] == pytest.approx(np.mean(errors))
    known = batch.arrays["known"].bool()
    agreement, agreed = rank_agreement(forecast[..., 2], batch.arrays["targets"], known)
    expected = agreement.sum().item() / agreed.sum().item()
    assert scores["rank_correlation"] == pytest.approx(expected)


def test_rank_correlation_is_computed_only_if_the_spec_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without = task_for(merged(SPEC, {"evaluation": {"metrics": ["mae"]}}))
    model, batch = model_of(without), batch_of(without)
    wanted = sums_of(task_for(SPEC).measure(model, batch))
    monkeypatch.setattr("worker.trainer.recipes.panel_graph.rank_agreement", None)
    sums = sums_of(without.measure(model, batch))
    assert sums == {name: wanted[name] for name in wanted if name not in ("agreement", "agreed")}
    assert set(without.scores(sums, 4)) == {"loss", "mae"}


@pytest.mark.parametrize("level", [0.1, 1e4, 1e7])
def test_a_forecast_that_is_the_same_for_all_has_ranked_none(level: float) -> None:
    """To the last bit: made of its error and what came, it would be a little more or less."""
    task = task_for(with_recipe(top_frequencies=0))
    model, batch = model_of(task), batch_of(task, 16)
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)  # the highway begins with zeros
    model.target_mean.fill_(level)
    batch.arrays["targets"].mul_(level / 3)
    found = sums_of(task.measure(model, batch))
    assert (found["agreement"], found["agreed"]) == (0.0, 16 * 2)


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


def parts_of(batch: Batch, *sizes: int) -> list[Batch]:
    ends = np.cumsum(sizes)
    rows = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return [
        Batch({name: array[one] for name, array in batch.arrays.items()}, size, batch.tables)
        for one, size in zip(rows, sizes, strict=True)
    ]


@pytest.mark.parametrize("sizes", [(3, 3), (1, 4, 1), (2, 2, 2)])
def test_a_step_is_the_mean_over_the_dates_of_which_something_is_known(
    sizes: tuple[int, ...],
) -> None:
    """The same as in an evaluation, and however the step is cut."""
    task = task_for(with_recipe(dropout=0.0))
    model, batch = model_of(task), batch_of(task, 6)
    batch.arrays["known"][[0, 1, 4]] = 0
    batch.arrays["known"][5, 1:] = 0
    loss, gradients = step_of(task, model, [batch])
    in_parts, accumulated = step_of(task, model, parts_of(batch, *sizes))
    assert gradients.abs().max() > 0.01
    torch.testing.assert_close(accumulated, gradients, rtol=0.0, atol=1e-6)
    evaluated = task.scores(sums_of(task.measure(model, batch)), 6)["loss"]
    assert [in_parts, evaluated] == pytest.approx([loss, loss], rel=1e-6)
    _, (known, alone) = batch, parts_of(batch, 2, 4)
    assert step_of(task, model, [known])[0] == 0.0
    torch.testing.assert_close(step_of(task, model, [alone])[1], gradients, rtol=0.0, atol=1e-6)


def sums_of(measured: dict[str, Tensor]) -> dict[str, float]:
    return {name: one.item() for name, one in measured.items()}
