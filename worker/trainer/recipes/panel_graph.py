"""Recipe `panel-graph`: what is prepared of a panel, its loss, and its scores a date."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from app.recipes.panel_graph import Graph, PanelGraph
from app.recipes.quantiles import point_level
from app.spec.recipe import BACKBONE
from worker.trainer.data.statistics import array_statistics
from worker.trainer.data.training_data import TrainingData
from worker.trainer.errors import NothingToScore
from worker.trainer.recipes.base import (
    Batch,
    Exported,
    Predictor,
    Statistics,
    Tables,
    Task,
    TrainingSamples,
    WeightedLoss,
)
from worker.trainer.recipes.encoders import Moments, exact_for
from worker.trainer.recipes.fitting import Constant, Ridge, can_fit, ridge
from worker.trainer.recipes.graphs import (
    correlations,
    edge_correlations,
    nearest,
    trailing_graphs,
    weighted,
)
from worker.trainer.recipes.panel_model import (
    GraphLayer,
    PanelModel,
    date_means,
    present_values,
    with_date_means,
)
from worker.trainer.recipes.panel_reading import FeatureSeries, PanelReader
from worker.trainer.recipes.quantiles import Banded, covered, error_quantiles, pinball

# Cells that the regression on whole windows is fitted on, so that it takes under a second.
MOST_FITTED_ROWS = 10_000
# Forecasts of a date that vary less, in standardized units, are taken for equal by the rank loss.
LEAST_VARIANCE = 1e-4


class PanelGraphTask(Task):
    """Loss in standardized target units, metrics in the user's; each date weighs the same."""

    recipe: PanelGraph
    data_buffers = ("input_mean", "input_std", "target_mean", "target_std")
    prepared_by = ("graph",)

    @property
    def standardized(self) -> tuple[str, ...]:
        """None by the trainer, which knows of no masks: `prepare` does it."""
        return ()

    def prepare(self, data: TrainingData) -> Tables:
        """Mean and deviation of what is there in the training part; and the graphs, of which each
        looks back from its first date, so that no date is given one of its future. DataError.
        """
        reader, graph = PanelReader(data, self.spec.data), self.recipe.graph
        series = reader.series(graph.feature if graph else 0)
        found = dict[str, Tensor]()
        panel, present, _ = self.spec.data.inputs
        target, known = self.spec.data.targets
        for name, mask in ((panel, present), (target, known)):
            cells = ((piece, None) for piece in reader.cells(name, mask))
            moments = array_statistics(name, cells, pooled=name == target)
            found |= dict(zip((f"{name}/mean", f"{name}/std"), moments, strict=True))
        if graph is not None and graph.rebuild_every != "batch":
            found |= _kept_graphs(series, graph, graph.rebuild_every)
        return found

    def made_up_tables(self) -> Tables:
        """With one graph, in which all look at all."""
        panel, target = self.spec.data.inputs[0], self.spec.data.targets[0]
        _, entities, features = self.fields[panel].shape
        found = {f"{panel}/mean": torch.zeros(features), f"{panel}/std": torch.ones(features)}
        found |= {f"{target}/mean": torch.tensor(0.0), f"{target}/std": torch.tensor(1.0)}
        graph = self.recipe.graph
        if graph is not None and graph.rebuild_every != "batch":
            found["graphs"] = _edges_of(graph)(torch.ones(1, entities, entities))
            found["first_date"] = torch.tensor(0)
        return found

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        data, wanted = self.spec.data, self.spec.data.standardize
        panel, target = data.inputs[0], data.targets[0]
        window, _, features = self.fields[panel].shape
        unscaled = torch.zeros(features), torch.ones(features)
        inputs = self._moments(tables, panel) if wanted.inputs else unscaled
        plain = torch.tensor(0.0), torch.tensor(1.0)
        targets = self._moments(tables, target) if wanted.targets else plain
        inputs = exact_for(self.fields[panel], inputs)
        targets = exact_for(self.fields[target], targets)
        return PanelModel(self.recipe, (window, features), inputs, targets)

    def _moments(self, tables: Tables, name: str) -> Moments:
        return tables[f"{name}/mean"], tables[f"{name}/std"]

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """The layers of a transformer, and those of the graph."""
        kinds = (nn.TransformerEncoderLayer, GraphLayer)
        return [module for module in model.modules() if isinstance(module, kinds)]

    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """The encoder; and all that comes behind it."""
        named = list(model.named_parameters())
        return {
            BACKBONE: [weight for name, weight in named if name.startswith("encoder.")],
            "head": [weight for name, weight in named if not name.startswith("encoder.")],
        }

    def parameters_json(self) -> dict[str, Any]:
        window, _, features = self.fields[self.spec.data.inputs[0]].shape
        return {
            **self.recipe.model_dump(mode="json"),
            "num_heads": self.recipe.heads if self.recipe.uses_attention(self.spec.data) else None,
            "graph_layers": self.recipe.graph_layers,
            "window": window,
            "num_features": features,
            **({"levels": list(self.recipe.levels)} if self.recipe.levels else {}),
        }

    def baseline_facts(self) -> Mapping[str, Any]:
        given = {"horizons", "loss", "quantiles", "rank_loss"}
        return self.recipe.model_dump(mode="json", include=given)

    def baselines(self, samples: TrainingSamples, model: nn.Module) -> Mapping[str, Predictor]:
        """The mean of each horizon; the past of the target, where the file names it; and two
        regressions for all entities alike: least squares on the features at the last step, and on
        those of the last steps with their date means. Quantile forecasts are compared with these
        and the quantiles of their errors.
        """
        points = self._point_baselines(samples, model)
        if not self.recipe.levels:
            return points
        arrays = samples.batch.arrays
        target, given = self.spec.data.targets
        known = arrays[given].bool().all(-1)
        if not known.any():
            return {}
        levels = torch.tensor(self.recipe.levels, dtype=torch.float64)
        panel, present, _ = (arrays[name] for name in self.spec.data.inputs)
        measured = arrays[target].double()
        return {
            name: Banded(
                point, error_quantiles((measured - point(panel, present.bool()))[known], levels)
            )
            for name, point in points.items()
        }

    def _point_baselines(self, samples: TrainingSamples, model: nn.Module) -> dict[str, Predictor]:
        arrays, (target, given) = samples.batch.arrays, self.spec.data.targets
        panel, present, _ = (arrays[name] for name in self.spec.data.inputs)
        known = arrays[given].bool()
        measured = arrays[target].double().masked_fill(~known, 0.0)
        mean = measured.sum((0, 1)) / known.sum((0, 1)).clamp(min=1)
        found: dict[str, Predictor] = {"training mean": Constant(mean.expand(panel.shape[2], -1))}
        found |= _past_baselines(samples, (panel, present.bool()), (measured, known), mean)
        moments = model.get_buffer("input_mean"), model.get_buffer("input_std")
        dates, entities = known.all(-1).nonzero(as_tuple=True)
        name, horizons = "least squares on the last step", measured.shape[-1]
        if len(dates) <= panel.shape[-1] or not can_fit(samples, name, panel[:, 0], horizons):
            return found
        values = present_values(panel[:, -1:], present[:, -1:].bool(), moments)
        last = ridge(values[dates, 0, entities][:, None], measured[dates, entities])
        found[name] = LinearInFeatures(last, moments)
        name = "least squares on the last steps and date means"
        # Only the shape: date means are as many features more.
        shape = torch.empty(len(panel), 2 * panel.shape[-1], device="meta")
        if not can_fit(samples, name, shape, horizons):
            return found
        every = -(-len(dates) // MOST_FITTED_ROWS)
        some = slice(None, None, every)
        there = present[some].bool()
        both = with_date_means(present_values(panel[some], there, moments), there)
        dates, entities = known[some].all(-1).nonzero(as_tuple=True)
        past = ridge(both.transpose(1, 2)[dates, entities], measured[some][dates, entities])
        steps = f"{past.steps} steps" if past.steps > 1 else "step"
        found[f"least squares on the last {steps} and date means"] = LinearInFeatures(past, moments)
        return found

    def loss(self, model: nn.Module, batch: Batch) -> WeightedLoss:
        """A mean over the dates of which something is known, as evaluations have it."""
        forecast, error, known = self._forecast(model, batch)
        terms = self._terms_a_date(model, batch, forecast, error, known)
        sums = {name: by_date.sum() for name, by_date in terms.items()}
        return WeightedLoss(sums, known.flatten(1).any(1).sum())

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        forecast, error, known = self._forecast(model, batch)
        measured, exact = batch.arrays[self.spec.data.targets[0]], error.double()
        sums = {
            "dates": known.flatten(1).any(1),
            **self._terms_a_date(model, batch, forecast, error, known),
        }
        if self.recipe.levels:
            zero, levels = exact.new_zeros(()), model.get_buffer("levels").double()
            sums["pinball"] = _mean_known(pinball(exact, zero, levels), known)
            sums["covered"] = _mean_known(covered(exact, zero).double(), known)
            forecast, exact = self._point(forecast), self._point(exact)
        sums["absolute"] = _mean_known(exact.abs(), known)
        sums["squared"] = _mean_known(exact.square(), known)
        if "rank_correlation" in self.spec.evaluation.metrics:
            sums["agreement"], sums["agreed"] = rank_agreement(forecast, measured, known)
        for place, horizon in enumerate(self.recipe.horizons):
            one = slice(place, place + 1)
            sums[f"absolute_{horizon}"] = _mean_known(exact[..., one].abs(), known[..., one])
            sums[f"dates_{horizon}"] = known[..., place].any(1)
        return {name: one.double().sum() for name, one in sums.items()}

    def exported(self, batch: Batch) -> Exported:
        """Raw features, who is there and, with a graph, who looks at whom to forecasts in the
        target's own units: whoever calls the model makes the graph. Quantile forecasts are (batch,
        entities, horizons, levels); `recipe.levels` of the manifest names the levels.
        """
        target = self.spec.data.targets[0]
        name = f"{target}_quantiles" if self.recipe.levels else target
        return Exported(self._given(batch), (name,))

    def _given(self, batch: Batch) -> dict[str, Tensor]:
        """What the model is called with, in its order."""
        panel, present, _ = self.spec.data.inputs
        looks_at = self.looks_at(batch)
        return {
            panel: batch.arrays[panel],
            present: batch.arrays[present].bool(),
            **({} if looks_at is None else {"looks_at": looks_at}),
        }

    def scores(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        target, known = self.spec.data.targets
        if not (dates := sums["dates"]):
            raise NothingToScore(f"by {known!r} nothing of {target!r} is there")
        mse = sums["squared"] / dates
        metrics = {"mae": sums["absolute"] / dates, "mse": mse, "rmse": math.sqrt(mse)}
        if self.recipe.levels:
            metrics["pinball"] = sums["pinball"] / dates
            metrics["coverage"] = sums["covered"] / dates
        wanted = self.spec.evaluation.metrics
        if "rank_correlation" in wanted:
            if not sums["agreed"]:
                raise NothingToScore(f"on no date two {target!r} differ")
            metrics["rank_correlation"] = sums["agreement"] / sums["agreed"]
        for one in self.recipe.horizons:
            if sums[f"dates_{one}"]:
                metrics[f"mae_{one}"] = sums[f"absolute_{one}"] / sums[f"dates_{one}"]
            elif f"mae_{one}" in wanted:
                raise NothingToScore(f"by {known!r} no {target!r} of {one} dates ahead is there")
        loss = sums.get("loss", 0.0)
        if self.recipe.rank_loss:
            weights = self.spec.loss_weights
            loss = sum(weights.get(term, 1.0) * sums[term] for term in self.recipe.loss_terms)
        return {"loss": loss / dates} | {name: metrics[name] for name in wanted}

    def _forecast(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Each forecast, its error, and whether that is known, all (batch, entities, horizons).
        Quantile forecasts and their errors have another axis, of their levels.
        """
        measured, known = (batch.arrays[name] for name in self.spec.data.targets)
        known, forecast = known.bool(), model(*self._given(batch).values())
        unknown = ~known
        if self.recipe.levels:
            measured, unknown = measured[..., None], unknown[..., None]
        error = forecast - measured.to(forecast.dtype)
        # What nobody knows may be any number, which would spoil the sums and the gradients.
        return forecast, error.masked_fill(unknown, 0.0), known

    def looks_at(self, batch: Batch) -> Tensor | None:
        """Returns whom each entity looks at on the dates of the batch, (batch, entities, entities),
        bool. With edges of correlations it is these, float32, and -inf for all others.
        """
        graph = self.recipe.graph
        if graph is None:
            return None
        panel, present, date = (batch.arrays[name] for name in self.spec.data.inputs)
        if graph.rebuild_every == "batch":
            values = panel[:, -graph.lookback :, :, graph.feature].float()
            there = present[:, -graph.lookback :].bool()
            edges = _edges_of(graph)(correlations(values, there))
        else:
            graphs = batch.tables["graphs"]
            since = date.long() - batch.tables["first_date"]
            number = since.div(graph.rebuild_every, rounding_mode="floor")
            edges = graphs.index_select(0, number.clamp(0, len(graphs) - 1))
        return edges if graph.edges == "equal" else edge_correlations(edges)

    def _point(self, forecast: Tensor) -> Tensor:
        """Returns the point forecasts; those of quantiles, (…, levels), are of one level."""
        return forecast[..., point_level(self.recipe.levels)] if self.recipe.levels else forecast

    def _terms_a_date(
        self, model: nn.Module, batch: Batch, forecast: Tensor, error: Tensor, known: Tensor
    ) -> dict[str, Tensor]:
        """Each of the loss terms, (batch,)."""
        by_date = self._loss_a_date(model, error, known)
        if not self.recipe.rank_loss:
            return {"loss": by_date}
        mean, std = model.get_buffer("target_mean"), model.get_buffer("target_std")
        scaled = ((self._point(forecast) - mean) / std).float()
        measured = batch.arrays[self.spec.data.targets[0]]
        return {"error": by_date, "rank": rank_loss(scaled, measured, known)}

    def _loss_a_date(self, model: nn.Module, error: Tensor, known: Tensor) -> Tensor:
        """(batch,), in standardized units."""
        scaled = (error / model.get_buffer("target_std")).float()
        if self.recipe.levels:
            each = pinball(scaled, scaled.new_zeros(()), model.get_buffer("levels"))
        elif self.recipe.loss == "mae":
            each = scaled.abs()
        elif self.recipe.loss == "mse":
            each = scaled.square()
        else:
            each = functional.huber_loss(scaled, torch.zeros_like(scaled), reduction="none")
        return _mean_known(each, known)


class LinearInFeatures(nn.Module):
    """A regression on each entity's features of the last steps, and on their date means if it has
    twice as many weights.
    """

    mean: Tensor
    std: Tensor
    weights: Tensor
    intercept: Tensor

    def __init__(self, fitted: Ridge, moments: Moments) -> None:
        super().__init__()
        self.register_buffer("weights", fitted.weights)
        self.register_buffer("intercept", fitted.intercept)
        for name, one in zip(("mean", "std"), moments, strict=True):
            self.register_buffer(name, one)

    def forward(self, panel: Tensor, present: Tensor, *_: Tensor) -> Tensor:
        """(batch, steps, entities, features) to (batch, entities, horizons)."""
        steps, features = len(self.weights), panel.shape[-1]
        panel, present = panel[:, -steps:], present[:, -steps:]
        values = present_values(panel, present, (self.mean, self.std)).double()
        own, of_means = self.weights[:, :features], self.weights[:, features:]
        forecast = torch.einsum("bsef,sfh->beh", values, own) + self.intercept
        if of_means.shape[1]:
            means = date_means(values, present)[:, :, 0]
            forecast = forecast + torch.einsum("bsf,sfh->bh", means, of_means)[:, None]
        return forecast


class MeanOfPast(nn.Module):
    """The mean of one feature over the last dates on which an entity is present; `otherwise`,
    (horizons,), if it is present on none of them.
    """

    otherwise: Tensor

    def __init__(self, feature: int, dates: int, otherwise: Tensor) -> None:
        super().__init__()
        self._feature, self._dates = feature, dates
        self.register_buffer("otherwise", otherwise)

    def forward(self, panel: Tensor, present: Tensor, *_: Tensor) -> Tensor:
        """(batch, steps, entities, features) to (batch, entities, horizons)."""
        values = panel[:, -self._dates :, :, self._feature].double()
        present = present[:, -self._dates :]
        count = present.sum(1)
        mean = values.masked_fill(~present, 0.0).sum(1) / count.clamp(min=1)
        return torch.where(count[..., None] > 0, mean[..., None], self.otherwise)


def rank_agreement(forecast: Tensor, measured: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Returns Spearman's rank correlation over the entities of a date, summed over the horizons,
    and the number of horizons that count. Equal values have the mean of their ranks. Forecasts that
    are all equal correlate by 0. A horizon counts for nothing if fewer than two of its values are
    known, or if all of them are equal. (batch, entities, horizons) each, to (batch,).
    """
    known = known.transpose(1, 2)
    first, second = (_centered_ranks(one.transpose(1, 2), known) for one in (forecast, measured))
    there = second.square().sum(2) > 0
    spread = (first.square().sum(2) * second.square().sum(2)).sqrt()
    correlation = (first * second).sum(2) / spread.where(spread > 0, 1.0)
    return correlation.sum(1), there.sum(1)


def rank_loss(forecast: Tensor, measured: Tensor, known: Tensor) -> Tensor:
    """Returns one less the correlation of forecasts with the ranks of what came, 0 to 2, its mean
    over the horizons that count in `rank_agreement`; 0 if none does. The ranks of forecasts have no
    gradient, so they are taken as they are. `forecast` is standardized. (batch, entities, horizons)
    each, to (batch,).
    """
    known = known.transpose(1, 2)
    ranks = _centered_ranks(measured.transpose(1, 2), known)
    values = forecast.transpose(1, 2).masked_fill(~known, 0.0)
    count = known.sum(2, keepdim=True).clamp(min=1)
    values = (values - values.sum(2, keepdim=True) / count) * known
    # Forecasts that hardly differ would have gradients without bound.
    squares = values.square().sum(2) + LEAST_VARIANCE * count[..., 0]
    ranked = ranks.square().sum(2)
    counts = ranked > 0
    correlation = (values * ranks).sum(2) / (squares * ranked.where(counts, 1.0)).sqrt()
    return ((1 - correlation) * counts).sum(1) / counts.sum(1).clamp(min=1)


def _centered_ranks(values: Tensor, known: Tensor) -> Tensor:
    """Returns the mean rank of each known value among the known ones of its row, less the mean of
    all ranks; zeros elsewhere. (…, entities) both, to float32.
    """
    # Unknown values come last. A known infinity equals them, so ranks end at the count.
    shown = values.double().masked_fill(~known, torch.inf).contiguous()
    ascending, count = shown.sort(-1).values, known.sum(-1, keepdim=True)
    below = torch.searchsorted(ascending, shown)
    not_above = torch.searchsorted(ascending, shown, right=True).minimum(count)
    # Whole numbers until here, and then halves of them, so float32 is exact before the sums.
    return (below + not_above - count).float() * 0.5 * known


def _mean_known(values: Tensor, known: Tensor) -> Tensor:
    """(batch, entities, horizons) to its mean a date over what is known, 0 where nothing is."""
    count = known.flatten(1).sum(1).clamp(min=1)
    return (values * known).flatten(1).sum(1) / count


def _past_baselines(
    samples: TrainingSamples,
    inputs: tuple[Tensor, Tensor],
    targets: tuple[Tensor, Tensor],
    mean: Tensor,
) -> dict[str, Predictor]:
    """Repeats the target's past: its last value and the mean of its last dates, of which the best
    number on the training samples is taken; or each volatility that the file has.
    """
    found = dict[str, Predictor]()
    for dates, feature in samples.past_features.items():
        if dates > 1:
            found[f"volatility of the last {dates} dates"] = MeanOfPast(feature, 1, mean)
            continue
        found["last value"] = MeanOfPast(feature, 1, mean)
        measured, known = targets
        window = inputs[0].shape[1]
        means = {
            2**power: MeanOfPast(feature, 2**power, mean) for power in range(1, window.bit_length())
        }
        errors = {
            k: _mean_known((one(*inputs) - measured).abs(), known).mean()
            for k, one in means.items()
        }
        if errors:
            best = min(errors, key=lambda k: float(errors[k]))
            found[f"mean of the last {best} dates"] = means[best]
    return found


def _edges_of(graph: Graph) -> Callable[[Tensor], Tensor]:
    """Returns what makes edges of correlations."""
    return partial(nearest if graph.edges == "equal" else weighted, neighbors=graph.neighbors)


def _kept_graphs(series: FeatureSeries, graph: Graph, every: int) -> Tables:
    """One for every so many dates, from that of the first sample on."""
    ends = range(series.begin - series.first + 1, len(series.values) + 1, every)
    edges_of = _edges_of(graph)
    graphs = trailing_graphs(series.values, series.present, ends, graph.lookback, edges_of)
    return {"graphs": graphs, "first_date": torch.tensor(series.begin)}
