"""The model of the recipe `panel-graph`: standardize, split frequencies, encode, attend, forecast.

Frequency adaptive normalization: Ye, Deng, Zou and Gui, Frequency Adaptive Normalization For
Non-stationary Time Series Forecasting, NeurIPS 2024. The linear highway: Lai, Chang, Yang and Liu,
Modeling Long- and Short-Term Temporal Patterns with Deep Neural Networks, SIGIR 2018. Slices: Liu,
Cheng, Li, Yang, Liu and Huang, Adaptive Normalization for Non-stationary Time Series Forecasting: A
Temporal Slice Perspective, NeurIPS 2023. Selection: Lim, Arık, Loeff and Pfister, Temporal Fusion
Transformers for Interpretable Multi-horizon Time Series Forecasting, 2021.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from app.recipes.panel_graph import PanelGraph
from worker.trainer.recipes.encoders import (
    Moments,
    build_encoder,
    encoded,
    in_patches,
    standardized,
    step_encoder,
)
from worker.trainer.recipes.quantiles import in_order

# In units of a feature's deviation over the training part.
LEAST_DEVIATION = 0.01


class StrongestFrequencies(nn.Module):
    """(windows, dates, features) to what its strongest frequencies alone make of each window and
    feature. By a matrix in place of an FFT, whose complex numbers no compiler takes.
    """

    basis: Tensor
    scale: Tensor

    def __init__(self, window: int, strongest: int) -> None:
        super().__init__()
        self.strongest, self.count = strongest, window // 2 + 1
        turns = torch.arange(self.count)[:, None] * torch.arange(window) / window
        angles = 2 * math.pi * turns.double()
        basis = torch.cat([angles.cos(), angles.sin()]).float()
        scale = torch.full((self.count, 1), 2.0 / window)
        scale[0] = 1.0 / window
        if window % 2 == 0:
            scale[-1] = 1.0 / window
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, windows: Tensor) -> Tensor:
        # In float32 whatever the rest computes in: small frequencies are differences of large ones.
        with torch.autocast(windows.device.type, enabled=False):
            parts = self.basis @ windows
            power = parts.square().view(len(windows), 2, self.count, -1).sum(1)
            strongest = power.topk(self.strongest, 1).indices
            kept = torch.zeros_like(power).scatter(1, strongest, 1.0) * self.scale
            main: Tensor = self.basis.mT @ (parts * kept.repeat(1, 2, 1))
        return main


class SliceNormalization(nn.Module):
    """Takes out of each slice of a window its mean and deviation, and forecasts beside it what they
    alone tell. Where slices hardly vary they are divided by LEAST_DEVIATION.
    """

    def __init__(self, dates: int, window: int, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.dates = dates
        self.forecast = _beside(2 * (window // dates) * features, hidden, outputs)

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """(windows, dates, features) to as many, and forecasts (windows, outputs)."""
        count, _, features = windows.shape
        slices = windows.reshape(count, -1, self.dates, features)
        mean = slices.mean(2, keepdim=True)
        rest = slices - mean
        deviation = (rest.square().mean(2, keepdim=True) + LEAST_DEVIATION**2).sqrt()
        told = self.forecast(torch.cat((mean, deviation), 2))
        return (rest / deviation).flatten(1, 2), told


class ParallelLinear(nn.Module):
    """`count` linear layers side by side: (count, rows, inputs) to (count, rows, outputs)."""

    undecayed: ClassVar = ("bias",)

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5  # as in torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, inputs, self.weight)


class GatedResidual(nn.Module):
    """`count` gated residual networks side by side: (count, rows, inputs) to (count, rows,
    outputs). A gate decides how much of the hidden layer is added to a linear map of the inputs.
    """

    def __init__(self, count: int, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.hidden = ParallelLinear(count, inputs, hidden)
        self.dropout = nn.Dropout(dropout)
        self.gated = ParallelLinear(count, hidden, 2 * outputs)
        self.linear = ParallelLinear(count, inputs, outputs)
        self.norm = nn.LayerNorm(outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(functional.elu(self.hidden(inputs)))
        added = functional.glu(self.gated(hidden))
        return self.norm(self.linear(inputs) + added)  # type: ignore[no-any-return]


class VariableSelection(nn.Module):
    """Makes one vector of the features of each patch: every feature has a network of its own, and
    the sum of what they return is weighted by a softmax of one network that sees all features. With
    patches of one date it is the network of the Temporal Fusion Transformer.
    """

    def __init__(self, patch: int, features: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.patch = patch
        self.weights = GatedResidual(1, patch * features, hidden, features, dropout)
        self.vectors = GatedResidual(features, patch, hidden, hidden, dropout)

    def forward(self, windows: Tensor) -> Tensor:
        """(windows, dates, features) to (windows, steps, hidden)."""
        count, dates, features = windows.shape
        patches = windows.reshape(-1, self.patch, features)
        weights = self.weights(patches.flatten(1)[None])[0].softmax(-1)
        vectors = self.vectors(patches.permute(2, 0, 1))
        selected = torch.einsum("rf,frh->rh", weights.to(vectors.dtype), vectors)
        return selected.view(count, dates // self.patch, -1)


def _beside(width: int, hidden: int, outputs: int) -> nn.Sequential:
    """Returns what forecasts by that which the encoder does not see."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class GraphLayer(nn.Module):
    """Pre-norm attention of each entity to those that it looks at, and a hidden layer."""

    def __init__(self, recipe: PanelGraph) -> None:
        super().__init__()
        hidden = recipe.hidden_size
        self.heads, self.dropout = recipe.heads, recipe.dropout
        self.attention_norm, self.norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.projections, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.hidden = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden)
        )
        self.correlation_weight: nn.Parameter | None = None
        if recipe.graph is not None and recipe.graph.edges == "correlation":
            self.correlation_weight = nn.Parameter(torch.zeros(self.heads))

    def forward(self, states: Tensor, looks_at: Tensor, correlation: Tensor) -> Tensor:
        """States (batch, entities, hidden), as what comes; bool (batch, entities, entities), and
        the correlations of the same pairs, which are looked at only if they have a weight.
        """
        batch, entities, width = states.shape
        projected = self.projections(self.attention_norm(states))
        by_head = projected.view(batch, entities, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = by_head.unbind()
        mask = looks_at[:, None]
        if self.correlation_weight is not None:
            added = self.correlation_weight[:, None, None] * correlation[:, None]
            mask = added.masked_fill(~mask, -torch.inf).to(query.dtype)
        found = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        states = states + self.out(found.transpose(1, 2).reshape(batch, entities, width))
        return states + self.hidden(self.norm(states))  # type: ignore[no-any-return]


class PanelModel(nn.Module):
    """Panels (batch, dates, entities, features) to forecasts (batch, entities, horizons)."""

    input_mean: Tensor
    input_std: Tensor
    target_mean: Tensor
    target_std: Tensor
    levels: Tensor | None
    """The levels of quantile forecasts, ascending; None where a forecast is one number."""

    def __init__(
        self, recipe: PanelGraph, sample: tuple[int, int], inputs: Moments, targets: Moments
    ) -> None:
        """`sample`: dates of the window and features."""
        super().__init__()
        window, features = sample[0], sample[1] * (1 + recipe.date_means)
        hidden = recipe.hidden_size
        outputs = len(recipe.horizons) * max(1, len(recipe.levels))
        self.patch, self.date_means = recipe.patch, recipe.date_means
        self.selection: VariableSelection | None = None
        if recipe.variable_selection:
            self.selection = VariableSelection(recipe.patch, features, hidden, recipe.dropout)
            self.encoder = step_encoder(recipe, window // recipe.patch, hidden)
        else:
            self.encoder = build_encoder(recipe, window, features)
        self.layers = nn.ModuleList(GraphLayer(recipe) for _ in range(recipe.graph_layers))
        self.dropout, self.head = nn.Dropout(recipe.dropout), nn.Linear(hidden, outputs)
        self.strongest: StrongestFrequencies | None = None
        if recipe.top_frequencies:
            self.strongest = StrongestFrequencies(window, recipe.top_frequencies)
            self.frequencies = _beside(window * features, hidden, outputs)
        self.slices: SliceNormalization | None = None
        if recipe.slice_dates:
            self.slices = SliceNormalization(recipe.slice_dates, window, features, hidden, outputs)
        self.highway: nn.Linear | None = None
        self.highway_dates = recipe.highway
        if recipe.highway:
            self.highway = nn.Linear(recipe.highway * features, outputs, bias=False)
            nn.init.zeros_(self.highway.weight)
        for name, (mean, std) in (("input", inputs), ("target", targets)):
            self.register_buffer(f"{name}_mean", mean)
            self.register_buffer(f"{name}_std", std)
        levels = torch.tensor(recipe.levels) if recipe.levels else None
        self.register_buffer("levels", levels, persistent=False)

    def forward(self, panel: Tensor, present: Tensor, looks_at: Tensor | None = None) -> Tensor:
        """Forecasts in the target's own units and the type of its statistics. `present`: bool
        (batch, dates, entities); `looks_at`: (batch, entities, entities), None without graph; bool,
        or with edges of correlations these, with -inf for entities that are not looked at.
        Quantile forecasts have another axis, of their levels in ascending order.
        """
        batch, window, entities, _ = panel.shape
        values = present_values(panel, present, (self.input_mean, self.input_std))
        if self.date_means:
            values = with_date_means(values, present)
        each = values.transpose(1, 2).reshape(batch * entities, window, -1)
        rest, beside = self._taken_out(each)
        steps = in_patches(rest, self.patch) if self.selection is None else self.selection(rest)
        states = encoded(self.encoder, steps)[:, -1]
        states = states.reshape(batch, entities, -1)
        if looks_at is not None:
            correlation = looks_at
            if looks_at.is_floating_point():
                looks_at = correlation > -torch.inf
                correlation = correlation.masked_fill(~looks_at, 0.0)
            looks_at = _who_is_there(looks_at, present[:, -1])
            for layer in self.layers:
                states = layer(states, looks_at, correlation)
        found = self.head(self.dropout(states))
        for one in beside:
            found = found + one.view(batch, entities, -1)
        if self.levels is not None:
            found = in_order(found.view(batch, entities, -1, len(self.levels)))
        return torch.addcmul(self.target_mean, found.to(self.target_mean.dtype), self.target_std)

    def _taken_out(self, each: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Returns what the encoder sees of (windows, dates, features), and the forecasts, (windows,
        outputs), of what it does not see and of the highway.
        """
        beside, rest = [], each
        if self.strongest is not None:
            main = self.strongest(each)
            rest = each - main
            beside.append(self.frequencies(main))
        if self.slices is not None:
            rest, told = self.slices(rest)
            beside.append(told)
        if self.highway is not None:
            beside.append(self.highway(each[:, -self.highway_dates :].flatten(1)))
        return rest, beside


def present_values(panel: Tensor, present: Tensor, moments: Moments) -> Tensor:
    """Returns standardized features, with zeros where `present`, bool (batch, dates, entities), is
    false. The panel may have any number there.
    """
    values = standardized(panel, *moments)
    return values.masked_fill_(~present[..., None], 0.0)


def date_means(values: Tensor, present: Tensor) -> Tensor:
    """Returns the mean of each feature over the entities that are present at a date, 0 if none is:
    (batch, dates, 1, features). `values`: those of `present_values`.
    """
    count = present.sum(2, keepdim=True).clamp(min=1)[..., None]
    return values.sum(2, keepdim=True) / count


def with_date_means(values: Tensor, present: Tensor) -> Tensor:
    """Returns `values` (batch, dates, entities, features) with their date means behind them, which
    are twice as many features.
    """
    return torch.cat((values, date_means(values, present).expand_as(values)), -1)


def _who_is_there(looks_at: Tensor, present: Tensor) -> Tensor:
    """Nobody looks at who is absent on the date itself, (batch, entities); but at itself."""
    itself = torch.eye(looks_at.shape[-1], dtype=torch.bool, device=looks_at.device)
    return (looks_at & present[:, None]) | itself
