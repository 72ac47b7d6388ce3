"""Learning rates that work widely, by optimizer and batch."""

import math

from app.spec.base import LARGEST_RATE
from app.spec.optimization import SGD, Optimizer
from app.spec.training import Training

USUAL_BATCH: int = Training.model_fields["batch_size"].default
# For Adam at a batch of 128, by the square root of the batch (Malladi et al., 2022); for SGD at a
# batch of 256, linearly (Goyal et al., 2017).
ADAM_RATE, ADAM_BATCH = 1e-3, 128
SGD_RATE, SGD_BATCH = 0.1, 256


def usual_rate(optimizer: Optimizer, batch: int) -> float:
    """A rate that works for most models with so many samples a step, if a spec can say it."""
    if isinstance(optimizer, SGD):
        return min(LARGEST_RATE, SGD_RATE * batch / SGD_BATCH)
    return ADAM_RATE * math.sqrt(batch / ADAM_BATCH)
