"""What a few paired rounds are sure to show."""

import math
import statistics
from collections.abc import Sequence

# One-sided 95 % of Student's t for the degrees of freedom of so many rounds.
T_95 = {2: 6.314, 5: 2.132, 7: 1.943, 8: 1.895, 15: 1.761, 30: 1.699}


def lower_bound(values: Sequence[float]) -> float:
    """The mean of so many rounds is above this with a probability of 95 %."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - T_95[len(values)] * error
