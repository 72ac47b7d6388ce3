"""The models of the recipe `sequence`: standardize, fold time steps, encode, fuse, forecast."""

import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import ClassVar, NamedTuple, cast

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
from worker.trainer.recipes.quantiles import in_order

SMALL_VARIANCE = (
    1e-5  # of a window, next to that of the data: below it, a window counts as constant
)


# Last values of the target that a linear forecast reads at most.
MOST_LAGS = 512


class Past(NamedTuple):
    """The place of a target's own past among a model's inputs."""

    input: int
    """The number of the input, whose windows end where the forecast begins."""
    feature: int
    """Which of the input's features it is."""
    features: int
    """The number of features of that input."""


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
    highway: nn.Linear | None
    """A linear map of the last steps of the input that holds the target's past: all features, one
    step behind another. It has no bias, since the head has one.
    """
    is_target: Tensor
    """(features,) of that input: true for the target's own past."""
    autoregression: Tensor | None
    """(outputs, MOST_LAGS): a linear map of the target's last values, the newest last. It is fitted
    before the training and then fixed; zeros where the highway starts at the better ridge.
    """
    target_mean: Tensor
    target_std: Tensor
    levels: Tensor | None
    """The levels of quantile forecasts, ascending; None where the forecast is a number a target."""
    carried: nn.ModuleDict
    """A CarriedState of each input whose state is carried on, by the input's number."""

    def add_head(
        self,
        recipe: Sequence,
        target_shape: tuple[int, ...],
        statistics: Moments,
        past: Past | None,
    ) -> None:
        self.carried = nn.ModuleDict()
        self.output_shape = (*target_shape, len(recipe.levels)) if recipe.levels else target_shape
        self.past = past if recipe.uses_past else None
        self.adds_last = recipe.residual == "last"
        self.is_normalized = recipe.normalize == "window"
        self.dropout = nn.Dropout(recipe.dropout)
        outputs = math.prod(self.output_shape)
        self.head = nn.Linear(recipe.hidden_size, outputs)
        self.highway, lags = None, None
        if past is not None and recipe.highway:
            self.highway_steps = recipe.highway
            self.highway = nn.Linear(recipe.highway * past.features, outputs, bias=False)
            is_target = torch.arange(past.features) == past.feature
            self.register_buffer("is_target", is_target, persistent=False)
        if self.adds_last:  # the training starts at the forecast that repeats the last value
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
            if self.highway is not None:
                nn.init.zeros_(self.highway.weight)
                lags = torch.zeros(outputs, MOST_LAGS)
        self.register_buffer("autoregression", lags)
        self.register_buffer("target_mean", statistics[0])
        self.register_buffer("target_std", statistics[1])
        levels = torch.tensor(recipe.levels) if recipe.levels else None
        self.register_buffer("levels", levels, persistent=False)

    @property
    def known_past(self) -> Past:
        """The place of the target's own past, for options that read it."""
        assert self.past is not None  # noqa: S101 - the recipe refuses these options otherwise
        return self.past

    def input_moments(self, number: int) -> Moments:
        """Returns mean and deviation of an input's features."""
        raise NotImplementedError

    def fit_scale(self, windows: Tensor, targets: Tensor) -> None:
        """Makes the unit of the head the root mean square of the target's distance from its last
        value. `windows`: (samples, steps, features) of the input that holds the past. `targets`:
        (samples, values).
        """
        last = windows[:, -1:, self.known_past.feature].double()
        scale = (targets.double() - last).square().mean().sqrt()
        self.target_mean.zero_()
        self.target_std.copy_(torch.where(scale > 0, scale, 1.0))

    def linear_problem(self, windows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns inputs of the highway and of the autoregression, (samples, steps, features) each,
        and the outputs that a regression on one of them is fitted to; the samples of `fit_scale`.
        """
        level, scale, past = self._level(windows)
        distances = (past - level) / scale
        own = distances[:, -MOST_LAGS:, None]
        return self._recent(windows, distances), own, (targets.to(level.dtype) - level) / scale

    def start_at(self, weights: Tensor, intercept: Tensor, *, of_target_alone: bool) -> None:
        """Makes the untrained model give a solution of `linear_problem`.

        `weights`: (steps, features, values), of the last steps. `intercept`: (outputs,), one for
        each level of a value where quantiles are forecast.
        """
        assert self.highway is not None  # noqa: S101
        assert self.autoregression is not None  # noqa: S101
        levels = len(intercept) // weights.shape[2]
        each = weights.flatten(0, 1).T.repeat_interleave(levels, 0)
        start = self.autoregression if of_target_alone else self.highway.weight
        start[:, -each.shape[1] :] = each.to(start.dtype)
        self.head.bias.copy_(intercept)

    def carry(self, recipe: Sequence, batch_size: int, inputs: Iterable[int]) -> None:
        """From batch to batch the state of these inputs' encoders."""
        for number in inputs:
            self.carried[str(number)] = CarriedState(recipe, batch_size)

    def state_of(self, number: int) -> CarriedState | None:
        """What is carried of an input."""
        key = str(number)
        carried = self.carried[key] if key in self.carried else None  # noqa: SIM401 - it has no get
        return cast("CarriedState | None", carried)

    def forecast(self, last: Tensor, inputs: Seq[Tensor]) -> Tensor:
        """Returns the forecast, (batch, *target_shape), in the type of the target's statistics.

        Quantile forecasts have another axis, of their levels.

        `last`: the state, (batch, hidden). `inputs`: the windows as they lie in the file, of which
        the target's own past is read.
        """
        changes = self.head(self.dropout(last))
        level, scale = self.target_mean, self.target_std
        if self.past is not None:
            window = inputs[self.past.input]
            level, scale, past = self._level(window)
            if self.highway is not None:
                distances = (past - level) / scale
                recent = self._recent(window, distances)
                # Sums of many steps, which half precision would round to less than a ridge.
                with torch.autocast(window.device.type, enabled=False):
                    changes = changes.float() + self.highway(recent.flatten(1))
                    if self.autoregression is not None:
                        own = distances[:, -MOST_LAGS:].float()
                        changes = changes + own @ self.autoregression[:, -own.shape[1] :].T
        changes = changes.to(self.target_mean.dtype)
        forecast = torch.addcmul(level, changes, scale).view(len(last), *self.output_shape)
        return forecast if self.levels is None else in_order(forecast)

    def _level(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what a forecast of zeros gives and the unit of the head, both of no dimension or
        (batch, 1), and the target's own past, (batch, steps).
        """
        level, scale = self.target_mean, self.target_std
        past = window[:, :, self.known_past.feature].to(level.dtype)
        if self.is_normalized:
            level, scale = moments_of_windows(past, SMALL_VARIANCE * scale.square())
        return (past[:, -1:] if self.adds_last else level), scale, past

    def _recent(self, window: Tensor, distances: Tensor) -> Tensor:
        """Returns the highway's steps of the window, (batch, steps, features), standardized.

        `distances`: (batch, window), of the target's past from its level. They take the place of
        its feature, whose own mean says nothing where levels drift.
        """
        steps = standardized(window, *self.input_moments(self.known_past.input))
        if self.is_normalized:
            steps = normalized(steps)
        recent = steps[:, -self.highway_steps :]
        own = distances[:, -self.highway_steps :, None].float()
        return torch.where(self.is_target, own, recent)


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
        past: Past | None = None,
    ) -> None:
        """`sample`: time steps of the window and features of a step."""
        super().__init__()
        self.patch = recipe.patch
        self.encoder = build_encoder(recipe, *sample)
        self.register_buffer("input_mean", input_statistics[0])
        self.register_buffer("input_std", input_statistics[1])
        self.add_head(recipe, target_shape, target_statistics, past)

    def input_moments(self, number: int) -> Moments:
        return self.input_mean, self.input_std

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Forecasts in the target's own units and the type of its statistics. `lengths`: (batch,),
        of samples that have fewer steps than the window.
        """
        steps = standardized(inputs, self.input_mean, self.input_std)
        if self.is_normalized:
            steps = normalized(steps)
        if lengths is not None:
            steps = _in_whole_patches(steps, lengths, self.patch)
        states = _encoded(self.encoder, in_patches(steps, self.patch), self.state_of(0))
        if lengths is None:
            return self.forecast(states[:, -1], [inputs])
        last = _last_of(states, (lengths + self.patch - 1) // self.patch)
        return self.forecast(last, [inputs])


class TimeframeEncoder(nn.Module):
    """One of several inputs: its statistics and its encoder."""

    mean: Tensor
    std: Tensor

    def __init__(self, recipe: Sequence, sample: tuple[int, int], statistics: Moments) -> None:
        super().__init__()
        self.patch = recipe.patch
        self.is_normalized = recipe.normalize == "window"
        self.register_buffer("mean", statistics[0])
        self.register_buffer("std", statistics[1])
        self.encoder = build_encoder(recipe, *sample)

    def forward(self, inputs: Tensor, carried: CarriedState | None) -> Tensor:
        """(batch, window, features) to the states at each patch, (batch, steps, hidden)."""
        steps = standardized(inputs, self.mean, self.std)
        if self.is_normalized:
            steps = normalized(steps)
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

    def attended(self, states: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the end of the first timeframe and its attention, (batch, 1, hidden) each."""
        last = states[0][:, -1:]
        told = [one + which for one, which in zip(states, self.timeframe, strict=True)]
        keys = self.norm(torch.cat(told, 1))
        found, _ = self.attention(self.query_norm(last), keys, keys, need_weights=False)
        return last, found

    def forward(self, states: list[Tensor]) -> Tensor:
        """(batch, steps, hidden) of each to (batch, hidden)."""
        last, found = self.attended(states)
        return (last + found)[:, 0]


class BlockFusion(AttentionFusion):
    """The attention in a transformer block: with dropout and a pre-norm feed-forward layer."""

    def __init__(self, recipe: Sequence, timeframes: int) -> None:
        super().__init__(recipe, timeframes)
        hidden = recipe.hidden_size
        self.attention.dropout = recipe.dropout
        self.dropout = nn.Dropout(recipe.dropout)
        self.feed_norm = nn.LayerNorm(hidden)
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden, 4 * hidden),
            nn.GELU(),
            nn.Dropout(recipe.dropout),
            nn.Linear(4 * hidden, hidden),
        )

    def forward(self, states: list[Tensor]) -> Tensor:
        """(batch, steps, hidden) of each to (batch, hidden)."""
        last, found = self.attended(states)
        fused = last + self.dropout(found)
        fused = fused + self.dropout(self.feed_forward(self.feed_norm(fused)))
        return fused[:, 0]  # type: ignore[no-any-return]


FUSIONS = {"attention": AttentionFusion, "block": BlockFusion}


class TimeframesModel(Forecaster):
    """Several inputs, (batch, window, features) each: an encoder each, fused, → linear head."""

    def __init__(
        self,
        recipe: Sequence,
        samples: list[tuple[int, int]],
        target_shape: tuple[int, ...],
        input_statistics: list[Moments],
        target_statistics: Moments,
        past: Past | None = None,
    ) -> None:
        super().__init__()
        each = zip(samples, input_statistics, strict=True)
        self.timeframes = nn.ModuleList(TimeframeEncoder(recipe, *one) for one in each)
        self.fusion = FUSIONS[recipe.fusion](recipe, len(samples))
        self.add_head(recipe, target_shape, target_statistics, past)

    def input_moments(self, number: int) -> Moments:
        timeframe = cast("TimeframeEncoder", self.timeframes[number])
        return timeframe.mean, timeframe.std

    def forward(self, *inputs: Tensor) -> Tensor:
        """Forecasts in the target's own units and the type of its statistics."""
        carried = (self.state_of(number) for number in range(len(inputs)))
        each = zip(self.timeframes, inputs, carried, strict=True)
        states = [timeframe(one, state) for timeframe, one, state in each]
        return self.forecast(self.fusion(states), inputs)


def moments_of_windows(steps: Tensor, small: Tensor | float) -> tuple[Tensor, Tensor]:
    """Returns mean and deviation over the time steps of each window, (batch, 1, …) each. `small` is
    added to the variance, so that a constant window is divided by no zero.
    """
    variance, mean = torch.var_mean(steps, 1, correction=0, keepdim=True)
    return mean, (variance + small).sqrt()


def normalized(steps: Tensor) -> Tensor:
    """Returns standardized steps with mean 0 and deviation 1 in each window and feature. A row of
    features, and a window of one step, has no level to remove.
    """
    if steps.ndim == 2 or steps.shape[1] == 1:
        return steps
    mean, std = moments_of_windows(steps, SMALL_VARIANCE)
    return (steps - mean) / std


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
