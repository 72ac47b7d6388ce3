"""The models of the recipe `sequence`: standardize, fold time steps, encode, fuse, forecast."""

import math
from collections.abc import Iterable
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from app.recipes.sequence import Sequence
from worker.trainer.recipes.encoders import (
    SMALL,
    Moments,
    build_encoder,
    encoded,
    in_patches,
    precision_of_rnns,
    standardized,
)


class CarriedState(nn.Module):
    """The state of an LSTM or GRU that a batch leaves for the next: (layers, batch, hidden) each,
    without gradients, so that back-propagation ends at the batch's beginning.
    """

    def __init__(self, recipe: Sequence, batch_size: int) -> None:
        super().__init__()
        self.names = ("hidden", "cell") if recipe.encoder == "lstm" else ("hidden",)
        for name in self.names:
            zeros = torch.zeros(recipe.num_layers, batch_size, recipe.hidden_size)
            self.register_buffer(name, zeros, persistent=False)

    def named(self) -> dict[str, Tensor]:
        return {name: self.get_buffer(name) for name in self.names}

    def forward(self, encoder: nn.Module, patches: Tensor) -> Tensor:
        """The state at each step; the last is kept."""
        kept = tuple(self.named().values())
        # Copies: the way back needs what the batch began with.
        begin = tuple(one.clone() for one in kept)
        states, end = encoder(patches, begin if len(begin) > 1 else begin[0])
        for one, new in zip(kept, end if len(kept) > 1 else (end,), strict=True):
            one.copy_(new.detach())
        return states  # type: ignore[no-any-return]


def _encoded(encoder: nn.Module, patches: Tensor, carried: CarriedState | None) -> Tensor:
    """The state at each step, (batch, steps, hidden). What is carried is that of the training:
    in evaluations each window begins with zeros.
    """
    if carried is None or not encoder.training:
        return encoded(encoder, patches)
    with precision_of_rnns(patches.device.type):
        return carried(encoder, patches)  # type: ignore[no-any-return]


class Forecaster(nn.Module):
    """What both models share: their end, from one state a sample to a forecast in the target's own
    units, and what is carried on.
    """

    dropout: nn.Dropout
    head: nn.Linear
    target_mean: Tensor
    target_std: Tensor
    carried: nn.ModuleDict
    """A CarriedState of each input whose state is carried on, by the input's number."""

    def add_head(
        self, recipe: Sequence, target_shape: tuple[int, ...], statistics: Moments
    ) -> None:
        self.carried = nn.ModuleDict()
        self.target_shape = target_shape
        self.dropout = nn.Dropout(recipe.dropout)
        self.head = nn.Linear(recipe.hidden_size, math.prod(target_shape))
        self.register_buffer("target_mean", statistics[0])
        self.register_buffer("target_std", statistics[1])

    def carry(self, recipe: Sequence, batch_size: int, inputs: Iterable[int]) -> None:
        """From batch to batch the state of these inputs' encoders."""
        for number in inputs:
            self.carried[str(number)] = CarriedState(recipe, batch_size)

    def state_of(self, number: int) -> CarriedState | None:
        """What is carried of an input."""
        key = str(number)
        carried = self.carried[key] if key in self.carried else None  # noqa: SIM401 - it has no get
        return cast("CarriedState | None", carried)

    def forecast(self, last: Tensor) -> Tensor:
        """(batch, hidden) to (batch, *target_shape), in the type of the target's statistics."""
        found = self.head(self.dropout(last))
        found = found.to(self.target_mean.dtype).view(len(last), *self.target_shape)
        return torch.addcmul(self.target_mean, found, self.target_std)


class SequenceModel(Forecaster):
    """Standardize → fold `patch` time steps into one → encode → linear head → target units.

    Inputs are (batch, window, features), outputs (batch, *target_shape). Where samples differ in
    length, the forecast is of the state at the end of each, of none for an empty one, whatever lies
    behind it; a last patch that it does not fill has the mean there. The state dict has the names
    of plain modules (`encoder` those of torch.nn.LSTM or GRU, `head` of torch.nn.Linear), so that
    a checkpoint loads without Stoker.
    """

    input_mean: Tensor
    input_std: Tensor

    def __init__(
        self,
        recipe: Sequence,
        sample: tuple[int, int],
        target_shape: tuple[int, ...],
        input_statistics: Moments,
        target_statistics: Moments,
    ) -> None:
        """`sample`: time steps of the window and features of a step."""
        super().__init__()
        self.patch = recipe.patch
        self.encoder = build_encoder(recipe, *sample)
        self.register_buffer("input_mean", input_statistics[0])
        self.register_buffer("input_std", input_statistics[1])
        self.add_head(recipe, target_shape, target_statistics)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Forecasts in the target's own units and the type of its statistics. `lengths`: (batch,),
        of samples that have fewer steps than the window.
        """
        steps = standardized(inputs, self.input_mean, self.input_std)
        if lengths is not None:
            steps = _in_whole_patches(steps, lengths, self.patch)
        states = _encoded(self.encoder, in_patches(steps, self.patch), self.state_of(0))
        if lengths is None:
            return self.forecast(states[:, -1])
        return self.forecast(_last_of(states, (lengths + self.patch - 1) // self.patch))


class TimeframeEncoder(nn.Module):
    """One of several inputs: its statistics and its encoder."""

    mean: Tensor
    std: Tensor

    def __init__(self, recipe: Sequence, sample: tuple[int, int], statistics: Moments) -> None:
        super().__init__()
        self.patch = recipe.patch
        self.register_buffer("mean", statistics[0])
        self.register_buffer("std", statistics[1])
        self.encoder = build_encoder(recipe, *sample)

    def forward(self, inputs: Tensor, carried: CarriedState | None) -> Tensor:
        """(batch, window, features) to the states at each patch, (batch, steps, hidden)."""
        steps = standardized(inputs, self.mean, self.std)
        return _encoded(self.encoder, in_patches(steps, self.patch), carried)


class AttentionFusion(nn.Module):
    """The end of the first timeframe asks all steps of all: pre-norm attention, and itself."""

    undecayed: ClassVar = ("timeframe",)

    def __init__(self, recipe: Sequence, timeframes: int) -> None:
        super().__init__()
        hidden = recipe.hidden_size
        self.timeframe = nn.Parameter(torch.randn(timeframes, hidden) * SMALL)
        self.query_norm, self.norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = nn.MultiheadAttention(hidden, recipe.heads, batch_first=True)

    def forward(self, states: list[Tensor]) -> Tensor:
        """(batch, steps, hidden) of each to (batch, hidden)."""
        last = states[0][:, -1:]
        told = [one + which for one, which in zip(states, self.timeframe, strict=True)]
        keys = self.norm(torch.cat(told, 1))
        found, _ = self.attention(self.query_norm(last), keys, keys, need_weights=False)
        return (last + found)[:, 0]  # type: ignore[no-any-return]


class TimeframesModel(Forecaster):
    """Several inputs, (batch, window, features) each: an encoder each, fused, → linear head."""

    def __init__(
        self,
        recipe: Sequence,
        samples: list[tuple[int, int]],
        target_shape: tuple[int, ...],
        input_statistics: list[Moments],
        target_statistics: Moments,
    ) -> None:
        super().__init__()
        each = zip(samples, input_statistics, strict=True)
        self.timeframes = nn.ModuleList(TimeframeEncoder(recipe, *one) for one in each)
        self.fusion = AttentionFusion(recipe, len(samples))
        self.add_head(recipe, target_shape, target_statistics)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Forecasts in the target's own units and the type of its statistics."""
        carried = (self.state_of(number) for number in range(len(inputs)))
        each = zip(self.timeframes, inputs, carried, strict=True)
        states = [timeframe(one, state) for timeframe, one, state in each]
        return self.forecast(self.fusion(states))


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
