"""Graphs of a panel: which entities were most alike, by correlations of one feature."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Edges with correlations take a byte each, as those without do: -127 to 127, and none.
MOST_EDGE, NO_EDGE = 127, -128


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


def weighted(correlation: Tensor, neighbors: int) -> Tensor:
    """Returns the edges of `nearest` with their correlations, int8 (…, entities, entities): 127
    stands for 1, which an entity has with itself, and NO_EDGE for no edge.
    """
    itself = torch.eye(correlation.shape[-1], dtype=torch.bool, device=correlation.device)
    chosen = nearest(correlation, neighbors)
    known = correlation.masked_fill(itself, 1.0).masked_fill(~chosen, 0.0)
    edges = (known * MOST_EDGE).round().clamp(-MOST_EDGE, MOST_EDGE).to(torch.int8)
    return edges.masked_fill(~chosen, NO_EDGE)


def edge_correlations(edges: Tensor) -> Tensor:
    """Returns what `weighted` stored as correlations, float32, and -inf for no edge."""
    return (edges.float() / MOST_EDGE).masked_fill(edges == NO_EDGE, -torch.inf)


def trailing_graphs(
    values: Tensor,
    present: Tensor,
    ends: Sequence[int],
    lookback: int,
    edges_of: Callable[[Tensor], Tensor],
) -> Tensor:
    """Returns a graph of the `lookback` dates before each of `ends`, (ends, entities, entities).
    `values`, `present`: (dates, entities). `edges_of` makes it of their correlations.
    """
    pasts = (slice(max(0, end - lookback), end) for end in ends)
    return torch.stack([edges_of(correlations(values[past], present[past])) for past in pasts])
