"""Graphs of a panel: which entities were most alike, by correlations of one feature."""

from collections.abc import Sequence

import torch
from torch import Tensor


def correlations(values: Tensor, present: Tensor) -> Tensor:
    """Of (…, dates, entities) the correlation of each pair over the dates that have both,
    (…, entities, entities); -inf where fewer than half of the dates do, or one of both never
    changes. What `present`, bool, is false of may be any number.
    """
    known = present.to(values.dtype)
    values = values.masked_fill(~present, 0.0)
    # Less its mean, so that what is left of the squares is not lost beside it.
    mean = values.sum(-2, keepdim=True) / known.sum(-2, keepdim=True).clamp(min=1.0)
    values = (values - mean) * known
    count = known.mT @ known
    both = count.clamp(min=1.0)
    sums, squares = values.mT @ known / both, values.square().mT @ known / both
    covariance = values.mT @ values / both - sums * sums.mT
    variance = squares - sums.square()
    scale = (variance * variance.mT).sqrt()
    # What never changes has a variance of rounding errors.
    varies = variance > squares * 1e-5
    is_known = (2 * count >= values.shape[-2]) & varies & varies.mT
    return torch.where(is_known, covariance / scale, -torch.inf)


def nearest(correlation: Tensor, neighbors: int) -> Tensor:
    """Whom each entity looks at, bool (…, entities, entities): itself, and so many others of the
    greatest correlation, as far as it has one with so many.
    """
    itself = torch.eye(correlation.shape[-1], dtype=torch.bool, device=correlation.device)
    others = correlation.masked_fill(itself, -torch.inf)
    found = others.topk(neighbors, -1)
    chosen = torch.zeros_like(others, dtype=torch.bool)
    return chosen.scatter(-1, found.indices, found.values > -torch.inf) | itself


def trailing_graphs(
    values: Tensor, present: Tensor, ends: Sequence[int], lookback: int, neighbors: int
) -> Tensor:
    """A graph of the `lookback` dates before each of `ends`, bool (ends, entities, entities).
    `values`, `present`: (dates, entities).
    """
    entities = values.shape[-1]
    graphs = torch.empty(len(ends), entities, entities, dtype=torch.bool, device=values.device)
    for place, end in enumerate(ends):
        past = slice(max(0, end - lookback), end)
        graphs[place] = nearest(correlations(values[past], present[past]), neighbors)
    return graphs
