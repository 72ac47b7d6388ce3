"""Closed forms that simple baselines are fitted by."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from worker.trainer.data.batch import Batch
from worker.trainer.data.dataset import DataSet
from worker.trainer.recipes.base import PastOfTarget, TrainingSamples
from worker.trainer.recipes.budget import Budget

# Strengths of the penalty that are tried, for inputs of deviation 1 and a mean over the samples.
STRENGTHS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 4
# Numbers that a regression forecasts on all samples together: 64 MiB in float64.
MOST_OUTPUTS = 2**23
# Columns of a regression, and multiplications for its normal equations: a second or less.
MOST_COLUMNS, MOST_PRODUCTS = 768, 2e10


def training_samples(
    data: DataSet, tables: Mapping[str, Tensor], budget: Budget | None = None
) -> TrainingSamples:
    """Reads the samples of the training part that closed forms are fitted on. Without a budget
    there is time for all of them.
    """
    arrays, size = data.spaced_samples()
    past = data.past_of_target()
    batch = Batch(arrays, size, tables)
    known = None if past is None else PastOfTarget(*past)
    return TrainingSamples(batch, known, data.past_features(), budget or Budget())


def can_fit(samples: TrainingSamples, name: str, inputs: Tensor, outputs: int) -> bool:
    """Returns True if `ridge` of these inputs is quick and there is time for it. Otherwise a
    warning of the run names the baseline that is left out.
    """
    if not is_quick(inputs, outputs):
        samples.budget.too_large.append(name)
        return False
    return samples.budget.has_time_for(name)


def is_quick(inputs: Tensor, outputs: int) -> bool:
    """True if `ridge` of these inputs, with features on the last axis, takes seconds and little
    memory.
    """
    return (
        inputs.shape[-1] <= MOST_COLUMNS
        and outputs <= MOST_COLUMNS
        and len(inputs) * outputs <= MOST_OUTPUTS
    )


class Ridge(NamedTuple):
    """A fitted regression, float64."""

    weights: Tensor
    """(steps, features, outputs), of the last steps."""
    intercept: Tensor
    """(outputs,)"""
    error: float
    """The mean squared error on samples that it was not fitted on, summed over the outputs."""

    @property
    def steps(self) -> int:
        return len(self.weights)


def ridge(inputs: Tensor, targets: Tensor) -> Ridge:
    """Fits targets (samples, outputs) by the last steps of inputs (samples, steps, features).

    The penalty, and how many steps are looked at, are chosen by the squared error on each of four
    stretches of the samples, fitted on the other three. All samples are used, or every n-th where
    that would take more than a second. Hoerl & Kennard, Ridge regression, 1970.
    """
    most = max(1, MOST_COLUMNS // inputs.shape[2])
    every = -(
        -len(inputs) * min(most, inputs.shape[1]) ** 2 * inputs.shape[2] ** 2 // MOST_PRODUCTS
    )
    inputs = inputs[:: max(1, int(every)), -most:].double()
    targets = targets[:: max(1, int(every))].double()
    mean, std = inputs.mean((0, 1)), inputs.std((0, 1))
    std = torch.where(std > 1e-12 * mean.abs(), std, 1.0)
    scaled = ((inputs - mean) / std).flatten(1)
    columns = torch.cat((scaled, scaled.new_ones(len(scaled), 1)), 1)  # the last is the intercept
    folds = [
        _Sums.of(*fold) for fold in zip(columns.chunk(FOLDS), targets.chunk(FOLDS), strict=True)
    ]
    steps, features = inputs.shape[1], inputs.shape[2]
    lengths = [steps // 2**power for power in range(steps.bit_length())]
    candidates = [(length, strength) for length in lengths for strength in STRENGTHS]
    used, strength = min(candidates, key=lambda one: _error(folds, one[0] * features, one[1]))
    whole = _Sums.added(folds).last(used * features)
    solution = whole.solution(strength)
    weights = solution[:-1].view(used, features, -1) / std[:, None]
    error = _error(folds, used * features, strength) / len(inputs)
    return Ridge(weights, solution[-1] - (weights * mean[:, None]).sum((0, 1)), error)


class _Sums(NamedTuple):
    """What the normal equations need of some samples; the last column is the intercept's."""

    normal: Tensor
    right: Tensor
    squares: float
    samples: int

    @classmethod
    def of(cls, columns: Tensor, targets: Tensor) -> "_Sums":
        squares = float(targets.square().sum())
        return cls(columns.T @ columns, columns.T @ targets, squares, len(columns))

    @classmethod
    def added(cls, each: Sequence["_Sums"]) -> "_Sums":
        first, *others = each
        normal, right = first.normal.clone(), first.right.clone()
        for one in others:
            normal += one.normal
            right += one.right
        squares, samples = sum(one.squares for one in each), sum(one.samples for one in each)
        return cls(normal, right, squares, samples)

    def last(self, count: int) -> "_Sums":
        """Those of the last `count` columns and the intercept."""
        kept = slice(len(self.normal) - count - 1, None)
        return self._replace(normal=self.normal[kept, kept], right=self.right[kept])

    def solution(self, strength: float) -> Tensor:
        """(columns, outputs); the intercept is not penalized."""
        penalty = torch.full((len(self.normal),), strength * self.samples, dtype=torch.float64)
        penalty[-1] = 0.0
        factor = torch.linalg.cholesky(self.normal + penalty.diag())
        return torch.cholesky_solve(self.right, factor)

    def error(self, solution: Tensor) -> float:
        """The sum of squared errors on these samples."""
        fit = (solution * (self.normal @ solution - 2 * self.right)).sum()
        return self.squares + float(fit)


def _error(folds: Sequence[_Sums], columns: int, strength: float) -> float:
    """The sum of squared errors on each fold, fitted on the others."""
    each = [fold.last(columns) for fold in folds]
    return sum(
        fold.error(_Sums.added([one for one in each if one is not fold]).solution(strength))
        for fold in each
        if len(each) > 1
    )


def log_shares(counts: Tensor) -> Tensor:
    """Returns the logarithm of each class's share, float32, with one more of each so that a class
    that never came is not impossible.
    """
    return ((counts.double() + 1) / (counts.double() + 1).sum()).log().float()


def last_steps(count: int, what: str) -> str:
    """Returns "last 3 steps", or "last step" for one."""
    return f"last {count} {what}s" if count > 1 else f"last {what}"


def with_steps(inputs: Tensor) -> Tensor:
    """Rows of features, (batch, features), as windows of one step; windows as they are."""
    return inputs[:, None] if inputs.ndim == 2 else inputs


class Linear(nn.Module):
    """A linear map of the last steps of an input. weights: (steps, features, outputs)."""

    weights: Tensor
    intercept: Tensor

    def __init__(self, place: int, fitted: Ridge) -> None:
        """`place`: of the input among the model's."""
        super().__init__()
        self._place = place
        self.register_buffer("weights", fitted.weights)
        self.register_buffer("intercept", fitted.intercept)

    def forward(self, *inputs: Tensor) -> Tensor:
        """(batch, outputs), float64."""
        steps = with_steps(inputs[self._place])[:, -len(self.weights) :].double()
        return torch.einsum("nsf,sfo->no", steps, self.weights) + self.intercept


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
