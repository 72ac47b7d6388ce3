"""Closed forms that simple baselines are fitted by."""

import torch
from torch import Tensor, nn

# Strengths of the penalty that are tried, as shares of the mean diagonal of the normal equations.
STRENGTHS = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
# The last share of the samples, on which the strength is chosen.
CHOSEN_ON = 0.2


def ridge(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weights (features, outputs) and intercepts (outputs,) of a ridge regression, float64.

    inputs: (samples, features), targets: (samples, outputs), in the order of the file. The penalty
    is chosen by the squared error on the last fifth of them, fitted on the others; the weights are
    then fitted on all. Hoerl & Kennard, Ridge regression, 1970.
    """
    inputs, targets = inputs.double(), targets.double()
    earlier = max(1, round(len(inputs) * (1 - CHOSEN_ON)))
    best = STRENGTHS[0]
    if earlier < len(inputs):
        least = torch.inf
        for strength, weights, intercept in _solutions(inputs[:earlier], targets[:earlier]):
            error = inputs[earlier:] @ weights + intercept - targets[earlier:]
            if (squared := float(error.square().mean())) < least:
                best, least = strength, squared
    *_, (_, weights, intercept) = _solutions(inputs, targets, (best,))
    return weights, intercept


def _solutions(
    inputs: Tensor, targets: Tensor, strengths: tuple[float, ...] = STRENGTHS
) -> list[tuple[float, Tensor, Tensor]]:
    """For each strength the weights and intercepts."""
    mean, middle = inputs.mean(0), targets.mean(0)
    centered = inputs - mean
    normal, right = centered.T @ centered, centered.T @ (targets - middle)
    scale = normal.diagonal().mean().clamp(min=1e-30)
    identity = torch.eye(len(normal), dtype=normal.dtype)
    solutions = []
    for strength in strengths:
        weights = torch.linalg.lstsq(normal + strength * scale * identity, right).solution
        solutions.append((strength, weights, middle - mean @ weights))
    return solutions


def log_shares(counts: Tensor) -> Tensor:
    """Returns the logarithm of each class's share, float32, with one more of each so that a class
    that never came is not impossible.
    """
    return ((counts.double() + 1) / (counts.double() + 1).sum()).log().float()


class Constant(nn.Module):
    """Answers the same values for each sample. values: (*outputs)."""

    values: Tensor

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)

    def of(self, samples: int) -> Tensor:
        """(samples, *outputs)"""
        return self.values.expand(samples, *self.values.shape)

    def forward(self, first: Tensor, *_: Tensor) -> Tensor:
        return self.of(len(first))
