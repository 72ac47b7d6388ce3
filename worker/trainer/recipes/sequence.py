"""Recipe `sequence`: direct multi-horizon forecasts from windows of one or several timeframes."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from app.recipes.quantiles import point_level
from app.recipes.sequence import Sequence
from app.spec.recipe import BACKBONE, past_of_target
from app.spec.run import RunSpec
from worker.trainer.data.batch import Batch
from worker.trainer.data.source import Field, arrays_of, lengths_of
from worker.trainer.data.training_data import TrainingData
from worker.trainer.errors import DataError
from worker.trainer.recipes.base import (
    Exported,
    Predictor,
    Statistics,
    Tables,
    Task,
    TrainingSamples,
    WeightedLoss,
)
from worker.trainer.recipes.class_scores import (
    LinearClasses,
    class_loss,
    class_scores,
    class_sums,
)
from worker.trainer.recipes.encoders import Moments, exact_for
from worker.trainer.recipes.fitting import (
    Constant,
    Linear,
    Ridge,
    can_fit,
    is_quick,
    last_steps,
    log_shares,
    ridge,
    with_steps,
)
from worker.trainer.recipes.quantiles import Banded, covered, error_quantiles, pinball
from worker.trainer.recipes.sequence_model import (
    MOST_LAGS,
    Forecaster,
    Past,
    SequenceModel,
    TimeframesModel,
)

SEASONS = {"day": 86_400.0, "week": 604_800.0}  # seconds


class SequenceTask(Task):
    """Loss in standardized target units, metrics in the user's."""

    recipe: Sequence
    shape_parameters = ("num_features", "target_shape", "past")

    @property
    def data_buffers(self) -> tuple[str, ...]:  # type: ignore[override]
        inputs = self.spec.data.inputs
        names = [f"timeframes.{i}." for i in range(len(inputs))] if self.is_fused else ["input_"]
        return tuple(f"{name}{one}" for name in (*names, "target_") for one in ("mean", "std"))

    @property
    def is_fused(self) -> bool:
        """Whether there are several inputs."""
        return len(self.spec.data.inputs) > 1

    @property
    def target_name(self) -> str:
        return self.spec.data.targets[0]

    @property
    def standardized(self) -> tuple[str, ...]:
        data = self.spec.data
        wanted = data.standardize
        return (
            *(data.inputs if wanted.inputs is True else ()),
            *((self.target_name,) if wanted.targets is True else ()),
        )

    @property
    def is_fitted(self) -> bool:
        return self.recipe.residual == "last"

    def fit(self, model: nn.Module, samples: TrainingSamples) -> None:
        """Scales the forecast by the target's distance from its last value, and starts at a ridge:
        the highway at one on all features, or the autoregression at one on the target's own past,
        whichever has the smaller error on stretches of the samples that it was not fitted on.
        """
        if not isinstance(model, Forecaster):
            return  # A task derived from this one may build a model of its own.
        targets = samples.batch.arrays[self.target_name]
        targets = targets.reshape(len(targets), -1)
        windows = samples.batch.arrays[self.spec.data.inputs[model.known_past.input]]
        if self.target_name in self.standardized:
            model.fit_scale(windows, targets)
        if model.highway is not None and is_quick(windows, targets.shape[1]):
            *problems, changes = model.linear_problem(windows, targets)
            if not all(one.isfinite().all() for one in (*problems, changes)):
                return  # The first step says so, with the sample.
            by_features, by_values = (ridge(inputs, changes) for inputs in problems)
            is_own = by_values.error < by_features.error
            fitted, inputs = (by_values, problems[1]) if is_own else (by_features, problems[0])
            intercepts = self._intercepts(fitted, inputs, changes)
            model.start_at(fitted.weights, intercepts, of_target_alone=is_own)

    def _intercepts(self, fitted: Ridge, inputs: Tensor, changes: Tensor) -> Tensor:
        """Returns the ridge's intercept of each value; where quantiles are forecast, that of each
        level, by the quantiles of the ridge's errors.
        """
        if not self.recipe.levels:
            return fitted.intercept
        levels = torch.tensor(self.recipe.levels, dtype=torch.float64)
        recent = inputs[:, -fitted.steps :].double()
        errors = changes - torch.einsum("nsf,sfo->no", recent, fitted.weights) - fitted.intercept
        return (fitted.intercept[:, None] + error_quantiles(errors, levels)).flatten()

    @classmethod
    def for_run(cls, spec: RunSpec, fields: Mapping[str, Field]) -> "SequenceTask":
        recipe = spec.recipe
        if cls is SequenceTask and isinstance(recipe, Sequence) and recipe.classifies:
            return SequenceClassesTask.for_run(spec, fields)
        return super().for_run(spec, fields)

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        model = self._new_model(statistics)
        data = self.spec.data
        numbers = [data.inputs.index(name) for name in self.recipe.carried_inputs(data)]
        model.carry(self.recipe, self.spec.training.batch_size, numbers)
        return model

    def _new_model(self, statistics: Statistics) -> SequenceModel | TimeframesModel:
        names = self.spec.data.inputs
        samples = [self._sample(name) for name in names]
        inputs = []
        for name, (_, features) in zip(names, samples, strict=True):
            unscaled = torch.zeros(features), torch.ones(features)
            inputs.append(exact_for(self.fields[name], statistics.get(name, unscaled)))
        target = self._target(statistics)
        if self.is_fused:
            return TimeframesModel(self.recipe, samples, target[0], inputs, target[1], self.past)
        return SequenceModel(self.recipe, samples[0], target[0], inputs[0], target[1], self.past)

    @property
    def past(self) -> Past | None:
        """The place of the target's own past; None if the file does not name it."""
        found = past_of_target(self.spec.data, arrays_of(self.fields))
        if found is None:
            return None
        name, feature = found
        return Past(self.spec.data.inputs.index(name), feature, self._sample(name)[1])

    def _target(self, statistics: Statistics) -> tuple[tuple[int, ...], Moments]:
        """The shape of a forecast without levels, and the target's mean and deviation."""
        field, unscaled = self.fields[self.target_name], (torch.tensor(0.0), torch.tensor(1.0))
        return field.shape, exact_for(field, statistics.get(self.target_name, unscaled))

    def _sample(self, name: str) -> tuple[int, int]:
        """Time steps and features of an input."""
        *steps, features = self.fields[name].shape
        return (steps[0] if steps else 1), features

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """The layers of transformers."""
        kind = nn.TransformerEncoderLayer
        return [module for module in model.modules() if isinstance(module, kind)]

    def parameter_groups(self, model: nn.Module) -> Mapping[str, Iterable[nn.Parameter]]:
        """The encoders; and the head, with what fuses several inputs for it."""
        named = list(model.named_parameters())
        encoders = ("encoder.", "timeframes.")
        return {
            BACKBONE: [weight for name, weight in named if name.startswith(encoders)],
            "head": [weight for name, weight in named if not name.startswith(encoders)],
        }

    def parameters_json(self) -> dict[str, Any]:
        """Windows and features of several inputs as lists, in the order of `inputs`."""
        names, attends = self.spec.data.inputs, self.is_fused or self.recipe.recurrence is None
        windows, features = zip(*(self._sample(name) for name in names), strict=True)
        return {
            **self.recipe.model_dump(mode="json"),
            "num_heads": self.recipe.heads if attends else None,
            # One input is not fused, and checkpoints of earlier versions say attention there.
            "fusion": self.recipe.fusion if self.is_fused else "attention",
            "inputs": list(names),
            "window": list(windows) if self.is_fused else windows[0],
            "ragged": any(lengths_of(name) in self.fields for name in names),
            "num_features": list(features) if self.is_fused else features[0],
            "target_shape": list(self.fields[self.target_name].shape),
            "past": list(self.past[:2]) if self.recipe.uses_past and self.past else None,
            **({"levels": list(self.recipe.levels)} if self.recipe.levels else {}),
        }

    def carried(self, model: nn.Module) -> Mapping[str, Tensor]:
        if not self.recipe.carry_hidden:
            return {}  # A task derived from this one may build a model of its own.
        assert isinstance(model, Forecaster)  # noqa: S101 - what build_model gave
        return {
            f"{number}.{name}" if self.is_fused else name: one
            for number in range(len(self.spec.data.inputs))
            if (state := model.state_of(number)) is not None
            for name, one in state.named().items()
        }

    def begin_lanes(self, model: nn.Module, begins: Tensor) -> None:
        for state in self.carried(model).values():
            state.masked_fill_(begins[None, :, None], 0.0)

    def baseline_facts(self) -> Mapping[str, Any]:
        given = {"task", "classes", "loss", "quantiles"}
        return self.recipe.model_dump(mode="json", include=given)

    def baselines(self, samples: TrainingSamples, model: nn.Module) -> Mapping[str, Predictor]:
        """The mean; and where the target's past is known, its last value, that of a season ago, the
        mean of its last steps, and ridges on its past and on all features. Quantile forecasts are
        compared with these and the quantiles of their errors.
        """
        points = self._point_baselines(samples)
        if not self.recipe.levels:
            return points
        targets = samples.batch.arrays[self.target_name].double()
        inputs = [samples.batch.arrays[name] for name in self.spec.data.inputs]
        levels = torch.tensor(self.recipe.levels, dtype=torch.float64)
        return {
            name: Banded(point, error_quantiles(targets - point(*inputs), levels))
            for name, point in points.items()
            if samples.budget.has_time_for(name)
        }

    def _point_baselines(self, samples: TrainingSamples) -> dict[str, Predictor]:
        targets = samples.batch.arrays[self.target_name].double()
        found: dict[str, Predictor] = {"training mean": Constant(targets.mean(0))}
        flat, shape = targets.reshape(len(targets), -1), targets.shape[1:]
        first = self.spec.data.inputs[0]
        if len(self.fields[first].shape) == 1 and not self.is_fused:
            every = "ridge on all features"
            if not can_fit(samples, every, samples.batch.arrays[first], flat.shape[1]):
                return found
            fitted = ridge(with_steps(samples.batch.arrays[first]), flat)
            return found | {every: LinearForecast(0, fitted, shape)}
        if samples.past is None:
            return found
        name, feature, seconds = samples.past
        past = samples.batch.arrays[name][:, -MOST_LAGS:, feature].double()
        steps = past.shape[1]
        place = self.spec.data.inputs.index(name)

        def linear(weights: Tensor, intercept: Tensor) -> Predictor:
            return LinearInPast(place, feature, weights, intercept, shape)

        zero = flat.new_zeros(flat.shape[1])
        lags = [2**power for power in range(steps.bit_length()) if 2**power <= steps]
        means = {k: _mean_of_last(k, steps).expand(flat.shape[1], -1).T for k in lags}
        found["last value"] = linear(means.pop(1), zero)
        if means:
            best = min(means, key=lambda k: float((past @ means[k] - flat).abs().mean()))
            found[f"mean of the last {best} steps"] = linear(means[best], zero)
        for season, length in SEASONS.items():
            weights = _a_season_ago(length, seconds, steps, flat.shape[1])
            if weights is not None:
                found[f"value a {season} ago"] = linear(weights, zero)
        # Of differences to the last value, since levels that never came before are usual.
        last = past[:, -1:]
        own_past = past[..., None]
        if steps > 1 and can_fit(samples, "ridge on the last values", own_past, flat.shape[1]):
            own = ridge((past[:, :-1] - last)[..., None], flat - last)
            weights = torch.cat((own.weights[:, 0], 1 - own.weights.sum((0, 1))[None]))
            padded = flat.new_zeros(steps, flat.shape[1])
            padded[-len(weights) :] = weights
            used = f"ridge on the {last_steps(len(weights), 'value')}"
            found[used] = linear(padded, own.intercept)
        if not can_fit(samples, "ridge on all features", samples.batch.arrays[name], flat.shape[1]):
            return found
        fitted = ridge(samples.batch.arrays[name], flat - last)
        used = f"ridge on all features of the {last_steps(fitted.steps, 'step')}"
        found[used] = LinearInFeatures(place, feature, fitted.weights, fitted.intercept, shape)
        return found

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self._criterion(model, self._error(model, batch))}

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        error = self._error(model, batch)
        loss, exact, size = self._criterion(model, error), error.double(), len(error)
        sums = {"loss": loss.double() * size}
        if self.recipe.levels:
            zero, levels = exact.new_zeros(()), model.get_buffer("levels").double()
            sums["pinball"] = pinball(exact, zero, levels).mean() * size
            sums["covered"] = covered(exact, zero).double().mean() * size
            exact = exact[..., point_level(self.recipe.levels)]
        sums["absolute"] = exact.abs().mean() * size
        sums["squared"] = exact.square().mean() * size
        return sums

    def exported(self, batch: Batch) -> Exported:
        """Raw features to forecasts in the target's own units: the model standardizes.

        Quantile forecasts are (batch, *target_shape, levels); `recipe.levels` of the manifest names
        the levels.
        """
        name = f"{self.target_name}_quantiles" if self.recipe.levels else self.target_name
        return replace(super().exported(batch), outputs=(name,))

    def scores(self, sums: Mapping[str, Any], samples: int) -> dict[str, float]:
        mse = sums["squared"] / samples
        metrics = {"mae": sums["absolute"] / samples, "mse": mse, "rmse": math.sqrt(mse)}
        if self.recipe.levels:
            metrics["pinball"] = sums["pinball"] / samples
            metrics["coverage"] = sums["covered"] / samples
        wanted = {name: metrics[name] for name in self.spec.evaluation.metrics}
        return {"loss": sums["loss"] / samples} | wanted

    def _criterion(self, model: nn.Module, error: Tensor) -> Tensor:
        """The mean over all elements, in standardized units. Every sample has as many elements, so
        it is the mean over samples too.
        """
        error = (error / model.get_buffer("target_std")).float()
        if self.recipe.levels:
            return pinball(error, error.new_zeros(()), model.get_buffer("levels")).mean()
        if self.recipe.loss == "mae":
            return error.abs().mean()
        if self.recipe.loss == "mse":
            return error.square().mean()
        return functional.huber_loss(error, torch.zeros_like(error))

    def _forecast(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs = [batch.arrays[name] for name in self.spec.data.inputs]
        lengths = lengths_of(self.spec.data.inputs[0])
        if lengths in batch.arrays:
            inputs.append(batch.arrays[lengths])
        forecast: Tensor = model(*inputs)
        return forecast

    def _error(self, model: nn.Module, batch: Batch) -> Tensor:
        """Forecasts minus targets in the target's own units; with an axis of levels, if any."""
        forecast = self._forecast(model, batch)
        targets = batch.arrays[self.target_name].to(forecast.dtype)
        return forecast - (targets[..., None] if self.recipe.levels else targets)


class SequenceClassesTask(SequenceTask):
    """Task classification: the cross entropy of one class a sample."""

    prepared_by = ("task", "classes")

    @property
    def classes(self) -> int:
        assert self.recipe.classes is not None  # noqa: S101 - the recipe's problems say so
        return self.recipe.classes

    @property
    def past(self) -> None:
        """A class has no past that is added to."""

    def _target(self, statistics: Statistics) -> tuple[tuple[int, ...], Moments]:
        return (self.classes,), (torch.tensor(0.0), torch.tensor(1.0))

    def prepare(self, data: TrainingData) -> Tables:
        """No tables, but a look at every label: one out of range would end a step on a GPU without
        a word about where it lies. Raises DataError.
        """
        begin = 0
        for piece in data.whole(self.target_name):
            labels = piece[self.target_name].reshape(-1)
            wrong = np.flatnonzero((labels < 0) | (labels >= self.classes))
            if len(wrong):
                row = int(wrong[0])
                raise DataError(
                    f"{self.target_name!r} is {labels[row]} in {data.place_of(begin + row)}, and "
                    f"recipe.classes is {self.classes:,}, so labels are 0 to {self.classes - 1:,}. "
                    "Raise recipe.classes, or mend or drop such rows and register the data again; "
                    "then restart the run from scratch."
                )
            begin += len(labels)
        return {}

    def made_up_tables(self) -> Tables:
        return {}

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        model = super().build_model(statistics, tables)
        given = self.spec.class_weights
        weights = None if given is None else torch.tensor(given)
        model.register_buffer("class_weights", weights, persistent=False)
        return model

    def baselines(self, samples: TrainingSamples, model: nn.Module) -> Mapping[str, Predictor]:
        """The most common class, and a ridge on each input with an indicator of every class."""
        labels = self._labels(samples.batch)
        counts = labels.bincount(minlength=self.classes)
        found: dict[str, Predictor] = {"most common class": Constant(log_shares(counts))}
        names = self.spec.data.inputs
        if lengths_of(names[0]) in samples.batch.arrays:
            return found
        for place, name in enumerate(names):
            which = "" if len(names) == 1 else f" of {name}"
            every = f"ridge on all features{which}"
            if not can_fit(samples, every, samples.batch.arrays[name], self.classes):
                continue
            indicators = functional.one_hot(labels, self.classes).double()
            fitted = ridge(with_steps(samples.batch.arrays[name]), indicators)
            steps = "" if fitted.steps == 1 else f" of the last {fitted.steps} steps"
            found[every + steps] = LinearClasses(place, fitted)
        return found

    def loss(  # type: ignore[override]  # a mean over classes that are weighted
        self, model: nn.Module, batch: Batch
    ) -> dict[str, Tensor] | WeightedLoss:
        return class_loss(self._logits(model, batch), self._labels(batch), _class_weights(model))

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with_auc = "auc" in self.spec.evaluation.metrics
        logits, labels = self._logits(model, batch), self._labels(batch)
        return class_sums(logits, labels, _class_weights(model), with_auc=with_auc)

    def scores(self, sums: Mapping[str, Any], samples: int) -> dict[str, float]:
        return class_scores(sums, samples, self.spec.evaluation.metrics)

    def exported(self, batch: Batch) -> Exported:
        """Raw features to a logit for each class, (batch, classes); softmax gives probabilities."""
        return replace(super().exported(batch), outputs=("logits",))

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._forecast(model, batch).float()

    def _labels(self, batch: Batch) -> Tensor:
        return batch.arrays[self.target_name].reshape(-1).long()


def _class_weights(model: nn.Module) -> Tensor | None:
    weights: Tensor | None = model.get_buffer("class_weights")
    return weights


def _a_season_ago(length: float, seconds: float | None, steps: int, horizon: int) -> Tensor | None:
    """Weights of a forecast that repeats the last known season; None if a season is not a whole
    number of steps, above 1, that the window has.
    """
    lag = 0 if seconds is None else length / seconds
    if lag != round(lag) or not 1 < lag <= steps:
        return None
    weights = torch.zeros(steps, horizon, dtype=torch.float64)
    for ahead in range(horizon):
        weights[steps - round(lag) + ahead % round(lag), ahead] = 1.0
    return weights


def _mean_of_last(count: int, steps: int) -> Tensor:
    weights = torch.zeros(steps, dtype=torch.float64)
    weights[-count:] = 1 / count
    return weights


class LinearForecast(Linear):
    """A linear map of the last steps of an input to a forecast."""

    def __init__(self, place: int, fitted: Ridge, shape: torch.Size) -> None:
        """`shape`: of a forecast."""
        super().__init__(place, fitted)
        self._shape = shape

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(*inputs).view(-1, *self._shape)


class LinearInPast(nn.Module):
    """A linear map of the last steps of one feature. weights: (steps, outputs)."""

    weights: Tensor
    intercept: Tensor

    def __init__(
        self, place: int, feature: int, weights: Tensor, intercept: Tensor, shape: torch.Size
    ) -> None:
        """`place`: of the input among the model's. `shape`: of a forecast."""
        super().__init__()
        self._place, self._feature, self._shape = place, feature, shape
        self.register_buffer("weights", weights)
        self.register_buffer("intercept", intercept)

    def forward(self, *inputs: Tensor) -> Tensor:
        past = inputs[self._place][:, -len(self.weights) :, self._feature].double()
        return (past @ self.weights + self.intercept).view(-1, *self._shape)


class LinearInFeatures(LinearInPast):
    """The last value, and a linear map of all features of the last steps. weights: (steps,
    features, outputs).
    """

    def forward(self, *inputs: Tensor) -> Tensor:
        window = inputs[self._place][:, -len(self.weights) :].double()
        change = torch.einsum("nsf,sfo->no", window, self.weights) + self.intercept
        return (window[:, -1, self._feature, None] + change).view(-1, *self._shape)
