"""A whole step whose batches lie at places that stay, as a CUDA graph needs them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from worker.trainer.data.batch import Batch, BatchPlan


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

    `place_of` gives a batch of so many samples, whose memory is a place. A step that is not full is
    not taken: its micro-batches have other shares.
    """

    def __init__(self, shapes: Sequence[MicroBatchShape], place_of: Callable[[int], Batch]) -> None:
        self.shapes = tuple(shapes)
        self._places = [place_of(shape.size) for shape in shapes]
        self._filled = 0
        self._run: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        return self._filled == len(self.shapes)

    def run_by(self, run: Callable[[], None]) -> None:
        """Have steps computed by `run`, from what lies at the places."""
        self._run = run

    def take(self, batch: Batch, share: float) -> bool:
        """Have a micro-batch at its place; False if it is not of a full step.

        It is copied there, except where the loader has gathered it into the place itself.
        """
        places = self._places[self._filled].arrays
        fits = all(place.shape == batch.arrays[name].shape for name, place in places.items())
        if self.shapes[self._filled] != (batch.size, share) or not fits:
            if self._filled:
                raise RuntimeError("a step that began as a full one did not go on as one")
            return False
        for name, place in places.items():
            if place.data_ptr() != batch.arrays[name].data_ptr():
                place.copy_(batch.arrays[name])
        self._filled += 1
        return True

    def micro_batches(self) -> Iterator[tuple[Batch, float]]:
        """What lies at the places, and the share of each."""
        for batch, shape in zip(self._places, self.shapes, strict=True):
            yield batch, shape.share

    def run(self) -> None:
        """Compute the step that was taken."""
        if self._run is None or not self.is_full:
            raise RuntimeError("there is no full step, or nothing to compute it by")
        self._filled = 0
        self._run()


class StaticSteps:
    """Several of one micro-batch each, which differ in the rows of its packed arrays."""

    def __init__(self, each: Sequence[StaticStep]) -> None:
        self._each = tuple(each)

    @property
    def _taken(self) -> StaticStep | None:
        return next((one for one in self._each if one.is_full), None)

    @property
    def is_full(self) -> bool:
        return self._taken is not None

    def take(self, batch: Batch, share: float) -> bool:
        """By the one that has places of its shape, if any has."""
        return any(one.take(batch, share) for one in self._each)

    def run(self) -> None:
        """Compute the step that was taken."""
        if (taken := self._taken) is None:
            raise RuntimeError("there is no full step")
        taken.run()
