"""The half that trains: model, loss and metrics."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from stoker_tabular.recipe import Tabular
from worker.trainer.recipes.base import (
    Batch,
    Predictor,
    Statistics,
    Tables,
    Task,
    TrainingSamples,
)
from worker.trainer.recipes.class_scores import LinearClasses
from worker.trainer.recipes.fitting import Constant, Linear, can_fit, log_shares, ridge, with_steps


class Network(nn.Module):
    """Standardizes the columns, so that a checkpoint needs no other file to be used."""

    mean: Tensor
    std: Tensor

    def __init__(self, columns: int, outputs: int, recipe: Tabular) -> None:
        super().__init__()
        hidden, drop = recipe.hidden_size, recipe.dropout
        self.layers = nn.Sequential(
            nn.Linear(columns, hidden), nn.ReLU(), nn.Dropout(drop),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(drop),
            nn.Linear(hidden, outputs),
        )  # fmt: skip
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("std", torch.ones(columns))

    def forward(self, rows: Tensor) -> Tensor:
        """(batch, columns) to (batch, outputs)."""
        forecast: Tensor = self.layers((rows.float() - self.mean) / self.std)
        return forecast


class TabularTask(Task):
    """Cross entropy over classes, or the mean square error."""

    recipe: Tabular
    data_buffers: ClassVar[tuple[str, ...]] = ("mean", "std")

    @property
    def standardized(self) -> tuple[str, ...]:
        """The columns, where the spec wants them so."""
        return self.spec.data.inputs[:1] if self.spec.data.standardize.inputs else ()

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        """New weights from torch's generator, which is seeded by the run."""
        name = self.spec.data.inputs[0]
        outputs = self.recipe.outputs(self.fields[self.spec.data.targets[0]].shape)
        model = Network(self.fields[name].shape[0], outputs, self.recipe)
        # A buffer, so that it is on the device: to copy it there in each step would wait for it.
        weights = torch.tensor(self.spec.class_weights or [1.0] * outputs)
        model.register_buffer("class_weights", weights, persistent=False)
        if name in statistics:
            mean, std = statistics[name]
            model.mean.copy_(mean)
            model.std.copy_(std)
        return model

    def parameters_json(self) -> dict[str, Any]:
        """For whoever loads the checkpoint elsewhere."""
        return self.recipe.model_dump(mode="json") | {
            "columns": self.fields[self.spec.data.inputs[0]].shape[0]
        }

    def baselines(self, samples: TrainingSamples, model: nn.Module) -> Mapping[str, Predictor]:
        """The mean or the most common class, and a ridge on all columns. Each answers as the model
        does: numbers, or a logit for every class.
        """
        rows = samples.batch.arrays[self.spec.data.inputs[0]]
        targets = samples.batch.arrays[self.spec.data.targets[0]]
        if self.recipe.task == "classification":
            labels = targets.reshape(-1).long()
            counts = labels.bincount(minlength=self.recipe.classes or 1)
            wanted = functional.one_hot(labels, len(counts)).double()
            found: dict[str, Predictor] = {"most common class": Constant(log_shares(counts))}
        else:
            wanted = targets.reshape(len(targets), -1).double()
            found = {"training mean": Constant(wanted.mean(0))}
        if can_fit(samples, "ridge on all columns", rows, wanted.shape[1]):
            answers = LinearClasses if self.recipe.task == "classification" else Linear
            found["ridge on all columns"] = answers(0, ridge(with_steps(rows), wanted))
        return found

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """One term, as a mean over the batch."""
        return {"loss": self._losses(model, *self._forecast(model, batch)).mean()}

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Sums over the batch: they are added up over the whole part."""
        forecast, targets = self._forecast(model, batch)
        sums = {"loss": self._losses(model, forecast, targets).double().sum()}
        if self.recipe.task == "classification":
            return sums | {"right": (forecast.argmax(1) == targets).double().sum()}
        error = (forecast - targets).double()
        return sums | {
            "absolute": error.abs().mean(1).sum(),
            "squared": error.square().mean(1).sum(),
        }

    def scores(self, sums: Mapping[str, float], samples: int) -> dict[str, float]:
        """Means over the samples of a part."""
        found = {"loss": sums["loss"] / samples}
        if self.recipe.task == "classification":
            found["accuracy"] = sums["right"] / samples
        else:
            found["mae"] = sums["absolute"] / samples
            found["rmse"] = math.sqrt(sums["squared"] / samples)
        return {name: found[name] for name in ("loss", *self.spec.evaluation.metrics)}

    def _forecast(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        forecast: Tensor = model(batch.arrays[self.spec.data.inputs[0]])
        targets = batch.arrays[self.spec.data.targets[0]]
        if self.recipe.task == "classification":
            return forecast, targets.reshape(len(targets)).long()
        return forecast, targets.reshape(len(targets), -1).float()

    def _losses(self, model: nn.Module, forecast: Tensor, targets: Tensor) -> Tensor:
        """Of each sample."""
        if self.recipe.task == "classification":
            losses = functional.cross_entropy(forecast.float(), targets, reduction="none")
            return losses * model.get_buffer("class_weights")[targets]
        return functional.mse_loss(forecast.float(), targets, reduction="none").mean(1)
