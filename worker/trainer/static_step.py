"""A whole step whose batches lie at places that stay, as a CUDA graph needs them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from worker.trainer.data.batch import BatchPlan
from worker.trainer.data.source import Field
from worker.trainer.data.transfer import made_up


class MicroBatchShape(NamedTuple):
    size: int
    share: float
    """Its part of the samples of its step, 0 to 1."""


def full_step(plan: BatchPlan, accumulation: int) -> tuple[MicroBatchShape, ...]:
    """The micro-batches of a step of `accumulation` batches that no epoch's end cuts short; none
    where an epoch has fewer samples than that.
    """
    samples = plan.batch_size * accumulation
    if plan.usable_samples < samples:
        return ()
    bounds = replace(plan, num_samples=samples, drop_last=False).bounds(0)
    return tuple(MicroBatchShape(stop - start, (stop - start) / samples) for start, stop in bounds)


class StaticStep:
    """Takes the micro-batches of a full step to their places; `run` then computes the step.

    A step that is not full is not taken: its micro-batches have other shares.
    """

    def __init__(
        self,
        shapes: Sequence[MicroBatchShape],
        fields: Mapping[str, Field],
        device: torch.device,
    ) -> None:
        self.shapes = tuple(shapes)
        self._places = [made_up(fields, shape.size, device) for shape in shapes]
        self._filled = 0
        self._run: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        return self._filled == len(self.shapes)

    def run_by(self, run: Callable[[], None]) -> None:
        """Have steps computed by `run`, from what lies at the places."""
        self._run = run

    def take(self, arrays: Mapping[str, Tensor], size: int, share: float) -> bool:
        """Copy a micro-batch to its place; False if it is not of a full step."""
        if self.shapes[self._filled] != (size, share):
            if self._filled:
                raise RuntimeError("a step that began as a full one did not go on as one")
            return False
        for name, place in self._places[self._filled].items():
            place.copy_(arrays[name])
        self._filled += 1
        return True

    def micro_batches(self) -> Iterator[tuple[Mapping[str, Tensor], int, float]]:
        """What lies at the places: arrays, size and share of each."""
        for arrays, (size, share) in zip(self._places, self.shapes, strict=True):
            yield arrays, size, share

    def run(self) -> None:
        """Compute the step that was taken."""
        if self._run is None or not self.is_full:
            raise RuntimeError("there is no full step, or nothing to compute it by")
        self._filled = 0
        self._run()
