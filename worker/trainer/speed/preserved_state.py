"""Steps that are computed before the training, to compile or to try them, and leave no trace."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from worker.trainer.randomness import same_random_numbers
from worker.trainer.recipes.base import untouched
from worker.trainer.step import TrainingStep


@contextmanager
def state_preserved(step: TrainingStep, kept: Iterable[Tensor]) -> Iterator[None]:
    """Afterwards the tensors that are `kept`, the random numbers, the task's state and what it
    carries and the scale are what they were, and there are no gradients.
    Synchronizes with the device.
    """
    device, precision = step.precision.device, step.precision
    before = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in kept]
    learning_rate, scale = step.learning_rate, precision.scaler.state_dict()
    with untouched(step.task, step.model), same_random_numbers(device):
        try:
            yield
        finally:
            step.forget_gradients()
            with torch.no_grad():
                for tensor, value in before:
                    tensor.copy_(value)
            step.learning_rate = learning_rate
            if scale:
                precision.scaler.load_state_dict(scale)
