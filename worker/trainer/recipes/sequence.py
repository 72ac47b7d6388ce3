"""Recipe `sequence`: direct multi-horizon forecasts from a window of a multivariate series."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from app.spec.recipe import TAKES_RAGGED, SequenceRecipe
from app.spec.run import RunSpec
from worker.trainer.data.source import Field, lengths_of, ragged_of
from worker.trainer.recipes.base import Arrays, Statistics, Task

ENCODERS: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class SequenceModel(nn.Module):
    """Standardize → fold `patch` time steps into one → LSTM or GRU → linear head → target units.

    Inputs are (batch, window, features), outputs (batch, *target_shape). Where samples differ in
    length, the forecast is of the state at the end of each, of none for an empty one, whatever lies
    behind it; a last patch that it does not fill has the mean there. The state dict holds plain
    modules only (`encoder` is torch.nn.LSTM or GRU, `head` is torch.nn.Linear), so that a
    checkpoint loads without Stoker.
    """

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(
        self,
        recipe: SequenceRecipe,
        num_features: int,
        target_shape: tuple[int, ...],
        input_statistics: tuple[Tensor, Tensor],
        target_statistics: tuple[Tensor, Tensor],
    ) -> None:
        super().__init__()
        self.patch = recipe.patch
        self.target_shape = target_shape
        self.encoder = ENCODERS[recipe.encoder](
            num_features * recipe.patch,
            recipe.hidden_size,
            recipe.num_layers,
            batch_first=True,
            dropout=recipe.dropout if recipe.num_layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(recipe.dropout)
        self.head = nn.Linear(recipe.hidden_size, math.prod(target_shape))
        for name, (mean, std) in (("input", input_statistics), ("target", target_statistics)):
            self.register_buffer(f"{name}_mean", mean)
            self.register_buffer(f"{name}_std", std)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Forecasts in the target's own units and the type of its statistics. `lengths`: (batch,),
        of samples that have fewer steps than the window.
        """
        exact = inputs.to(self.input_mean.dtype)
        standardized = (exact - self.input_mean).div_(self.input_std).float()
        if lengths is not None:
            standardized = _in_whole_patches(standardized, lengths, self.patch)
        batch_size, window, _ = standardized.shape
        patches = standardized.reshape(batch_size, window // self.patch, -1)
        with _precision_of_rnns(inputs.device.type):
            states, _ = self.encoder(patches)
        if lengths is None:
            last = states[:, -1]
        else:
            last = _last_of(states, (lengths + self.patch - 1) // self.patch)
        forecast = self.head(self.dropout(last))
        forecast = forecast.to(self.target_mean.dtype).view(batch_size, *self.target_shape)
        return torch.addcmul(self.target_mean, forecast, self.target_std)


def _in_whole_patches(steps: Tensor, lengths: Tensor, patch: int) -> Tensor:
    """With zeros put behind the end of each sample, and as many steps as whole patches have."""
    window = steps.shape[1]
    behind = torch.arange(window, device=steps.device) >= lengths[:, None]
    steps.masked_fill_(behind[..., None], 0.0)
    missing = -window % patch
    return functional.pad(steps, (0, 0, 0, missing)) if missing else steps


def _last_of(states: Tensor, counts: Tensor) -> Tensor:
    """The last of so many states of each sample, zeros where there is none. As a sum, whose
    gradients come in one order; those of states that are picked may not, on a GPU.
    """
    is_last = torch.arange(1, states.shape[1] + 1, device=states.device) == counts[:, None]
    return states.where(is_last[..., None], 0.0).sum(1)


def _precision_of_rnns(device_type: str) -> AbstractContextManager[object]:
    """Under bf16 autocast an RNN stays in fp32 (TF32 on a GPU).

    cuDNN's RNNs compute in fp16 under any autocast (ATen/cudnn/AutocastRNN.cpp), where gradients
    vanish without the loss scaling that bf16 does not have; oneDNN's LSTM refuses bf16 on CPUs
    that lack AVX-512.
    """
    in_bf16 = torch.get_autocast_dtype(device_type) is torch.bfloat16
    if torch.is_autocast_enabled(device_type) and in_bf16:
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


class SequenceTask(Task):
    """Loss in standardized target units, metrics in the user's."""

    takes_ragged = TAKES_RAGGED["sequence"]
    data_buffers: ClassVar[tuple[str, ...]] = (
        "input_mean",
        "input_std",
        "target_mean",
        "target_std",
    )
    shape_parameters = ("kind", "encoder", "patch", "num_features", "target_shape")

    @classmethod
    def check(cls, spec: RunSpec, fields: Mapping[str, Field]) -> str | None:
        data, patch = spec.data, spec.recipe.patch
        for kind, names in (("input", data.inputs), ("target", data.targets)):
            if len(names) != 1:
                return (
                    f"The sequence recipe takes one {kind} array, and data.{kind}s names "
                    f"{len(names)}. Name one of them."
                )
        (input_name,), (target_name,) = data.inputs, data.targets
        shape = fields[input_name].shape
        if len(shape) != 2:
            return (
                f"The sequence recipe needs inputs of shape (samples, window, features), and "
                f"'{input_name}' is {_spelled(shape)}. Name another array in data.inputs or "
                f"store it with these three axes."
            )
        if shape[0] % patch and input_name not in ragged_of(fields):
            return (
                f"recipe.patch {patch} does not divide the window of '{input_name}', which is "
                f"{shape[0]} steps long. Choose one of {_divisors(shape[0])}."
            )
        if len(fields[target_name].shape) not in (1, 2) or 0 in fields[target_name].shape:
            return (
                f"The sequence recipe needs targets of shape (samples, horizon) or (samples, "
                f"horizon, values), and '{target_name}' is {_spelled(fields[target_name].shape)}. "
                f"Name another array in data.targets or reshape it."
            )
        return None

    @property
    def input_name(self) -> str:
        return self.spec.data.inputs[0]

    @property
    def target_name(self) -> str:
        return self.spec.data.targets[0]

    @property
    def standardized(self) -> tuple[str, ...]:
        wanted = self.spec.data.standardize
        return (self.input_name,) * wanted.inputs + (self.target_name,) * wanted.targets

    def build_model(self, statistics: Statistics) -> nn.Module:
        inputs, targets = self.fields[self.input_name], self.fields[self.target_name]
        num_features = inputs.shape[-1]
        unscaled = torch.zeros(num_features), torch.ones(num_features)
        scaled = statistics.get(self.target_name, (torch.tensor(0.0), torch.tensor(1.0)))
        return SequenceModel(
            self.spec.recipe,
            num_features,
            targets.shape,
            _exact_for(inputs, statistics.get(self.input_name, unscaled)),
            _exact_for(targets, scaled),
        )

    def parameters_json(self) -> dict[str, Any]:
        window, num_features = self.fields[self.input_name].shape
        return {
            **self.spec.recipe.model_dump(mode="json"),
            "window": window,
            "ragged": self.input_name in ragged_of(self.fields),
            "num_features": num_features,
            "target_shape": list(self.fields[self.target_name].shape),
        }

    def loss(self, model: nn.Module, arrays: Arrays) -> Tensor:
        error = self._error(model, arrays) / model.get_buffer("target_std")
        return _criterion(error.float(), self.spec.recipe.loss)

    def measure(self, model: nn.Module, arrays: Arrays) -> Tensor:
        error = self._error(model, arrays)
        standardized = error / model.get_buffer("target_std")
        loss = _criterion(standardized.float(), self.spec.recipe.loss)
        exact = error.double()
        return torch.stack((loss.double(), exact.abs().mean(), exact.square().mean()))

    def scores(self, means: Sequence[float]) -> dict[str, float]:
        loss, mae, mse = means
        metrics = {"mae": mae, "mse": mse, "rmse": math.sqrt(mse)}
        return {"loss": loss} | {name: metrics[name] for name in self.spec.evaluation.metrics}

    def _error(self, model: nn.Module, arrays: Arrays) -> Tensor:
        inputs = (self.input_name, lengths_of(self.input_name))
        forecast: Tensor = model(*(arrays[name] for name in inputs if name in arrays))
        return forecast - arrays[self.target_name].to(forecast.dtype)


def _exact_for(field: Field, moments: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """In float32, or float64 where that could not tell the file's own numbers apart: what is left
    of 1,000,000.05 less the mean has to be left before it is made narrow.
    """
    fits = np.can_cast(field.dtype, np.float32)
    mean, std = (moment.to(torch.float32 if fits else torch.float64) for moment in moments)
    return mean, std


def _criterion(error: Tensor, kind: str) -> Tensor:
    """Mean over all elements; every sample has as many, so it is the mean over samples too."""
    if kind == "mae":
        return error.abs().mean()
    if kind == "mse":
        return error.square().mean()
    return functional.huber_loss(error, torch.zeros_like(error))


def _spelled(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(["samples", *map(str, shape)]) + ")"


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
