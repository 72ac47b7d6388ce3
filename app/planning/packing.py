"""How many rows the batches of packed samples have: what is captured, and so what is probed."""

from dataclasses import dataclass
from math import ceil, sqrt

# One in 30,000 batches that are drawn at random is further from the mean.
DEVIATIONS = 4.0
MULTIPLE = 8


@dataclass(frozen=True)
class RowSpread:
    """Of one packed array: how the numbers of rows of its samples are spread."""

    mean: float
    std: float
    most: int

    def likely(self, samples: int) -> float:
        """Rows that so many samples drawn at random have together, if hardly ever more."""
        reach = samples * self.mean + DEVIATIONS * sqrt(samples) * self.std
        return min(reach, float(samples * self.most))


def largest_std(least: int, mean: float, most: int) -> float:
    """The most that the deviation of numbers can be (Bhatia and Davis, 2000)."""
    return sqrt(max(0.0, (most - mean) * (mean - least)))


def rounded_rows(rows: float) -> int:
    """Of a batch in which so many are taken: one is free at least."""
    return -(-(ceil(rows) + 1) // MULTIPLE) * MULTIPLE
