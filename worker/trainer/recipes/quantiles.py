"""Quantile forecasts: their order, their loss, their coverage, and baselines with a band.

Forecasts are (…, levels) and targets (…).
"""

import torch
from torch import Tensor, nn


def in_order(forecasts: Tensor) -> Tensor:
    """Sorts the forecasts of each target, so that no level crosses the next.

    Sorting never increases the pinball loss. Chernozhukov, Fernández-Val & Galichon, Quantile and
    probability curves without crossing, 2010.
    """
    return forecasts.sort(-1).values


def pinball(forecasts: Tensor, targets: Tensor, levels: Tensor) -> Tensor:
    """Returns the pinball loss of each target, its mean over the levels. levels: (levels,).

    Koenker & Bassett, Regression quantiles, 1978.
    """
    error = targets[..., None] - forecasts
    return torch.maximum(levels * error, (levels - 1) * error).mean(-1)


def covered(forecasts: Tensor, targets: Tensor) -> Tensor:
    """Returns whether each target lies within the outermost levels, bounds included; bool."""
    return (forecasts[..., 0] <= targets) & (targets <= forecasts[..., -1])


class Banded(nn.Module):
    """A point forecast and, for each level, the quantile of its errors on the training samples."""

    offsets: Tensor

    def __init__(self, point: nn.Module, offsets: Tensor) -> None:
        """`offsets`: (…, levels), as `error_quantiles` returns them."""
        super().__init__()
        self.point = point
        self.register_buffer("offsets", offsets)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.point(*inputs)[..., None] + self.offsets  # type: ignore[no-any-return]


def error_quantiles(errors: Tensor, levels: Tensor) -> Tensor:
    """Returns the quantiles of targets minus forecasts, (samples, …), as (…, levels).

    Interpolates linearly between samples. torch.quantile does so too, but takes 16 million values
    at most.
    """
    ordered = errors.sort(0).values
    last = len(ordered) - 1
    places = [float(level) * last for level in levels]
    bounds = [(ordered[int(place)], ordered[min(int(place) + 1, last)]) for place in places]
    each = [low.lerp(high, place % 1) for (low, high), place in zip(bounds, places, strict=True)]
    return torch.stack(each, -1)
