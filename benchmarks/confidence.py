"""What a few paired rounds are sure to show."""

import math
import statistics
from collections.abc import Sequence

ROUNDS = 7
# One-sided 95 % of Student's t for the six degrees of freedom of seven rounds.
T_95 = 1.943


def lower_bound(values: Sequence[float]) -> float:
    """The mean of so many rounds is above this with a probability of 95 %."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - T_95 * error
