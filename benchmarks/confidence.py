"""What a few paired rounds are sure to show."""

import math
from collections.abc import Sequence

DOUBT = 0.05
FEWEST = 5
"""Of fewer, all may lie above their median by chance: 1 in 16 times of four."""


def lower_bound(values: Sequence[float]) -> float:
    """The median of ever so many rounds is above this with a probability of 95 %, however they are
    spread, if they are independent: the least but for so many as chance alone would put below it.
    """
    count = len(values)
    if count < FEWEST:
        raise ValueError(f"{count} rounds show nothing with confidence; {FEWEST} do")
    below, chance = 0, 0.0
    while (chance := chance + math.comb(count, below) / 2**count) <= DOUBT:
        below += 1
    return sorted(values)[below - 1]
