"""Compiles a step before the first one, for every batch that will come, and minds what comes later.

A shape that the compiler has not met makes a step wait for it, for seconds to minutes.
"""

import time
from dataclasses import dataclass
from typing import Literal

from app.spec.run import RunSpec
from worker.trainer.data.batch import Bucket
from worker.trainer.data.dataset import DataSet
from worker.trainer.report.preparing import Preparing
from worker.trainer.speed.compiler import Counts, count, end_helpers, quiet
from worker.trainer.speed.preserved_state import state_preserved
from worker.trainer.step import TrainingStep

# So many graphs that were not foreseen are no trouble.
FEW_GRAPHS = 3

Cache = Literal["hit", "miss", "partial"]


@dataclass(frozen=True)
class Compilation:
    """What was compiled before the first step, as applied.json has it; under mode none nothing."""

    mode: str
    cache: Cache | None = None
    """Whether the cache had everything, nothing, or some; None: there was nothing to compile."""
    seconds: float | None = None
    graphs: int | None = None

    def excess(self) -> str | None:
        """A sentence where more than a few graphs were compiled since, None where not."""
        later = 0 if self.graphs is None else count().graphs - self.graphs
        if later <= FEW_GRAPHS:
            return None
        return (
            f"{later} graphs were compiled after the first step, and a step waited for each: the "
            "model takes another way for some batches. After a few of them PyTorch goes on "
            "without compiling. If the run is slow, restart it with runtime.compile.mode none."
        )


def compile_step(
    step: TrainingStep, spec: RunSpec, data: DataSet, preparing: Preparing
) -> Compilation:
    """Compile for every batch that the run will have; the training begins as it would without.

    Raises StopRequested, and what the compiler raises (see `worker.trainer.failure`).
    """
    began, mode = time.monotonic(), spec.runtime.compile.mode
    step.compile(mode)
    with quiet(), state_preserved(step, (*step.model.buffers(), step.loss_sums)):
        shapes = data.train.shapes
        for size, bucket in shapes.each(data.train.plan.sizes):
            step.accumulate(step.made_up(size, bucket), 1.0)
            preparing.piece_done()
        for size, bucket in _evaluated_shapes(data):
            batch = step.made_up(size, bucket)
            with step.evaluating():
                step.measure(batch)
            preparing.piece_done()
    end_helpers()
    counts = count()
    return Compilation(mode, _cache(counts), time.monotonic() - began, counts.graphs)


def _evaluated_shapes(data: DataSet) -> list[tuple[int, Bucket]]:
    """Of the batches of evaluations and of the test, each once."""
    found: list[tuple[int, Bucket]] = []
    for part in (data.validation, data.test):
        if part is not None:
            found += part.shapes.each(part.plan.sizes)
    return [one for place, one in enumerate(found) if one not in found[:place]]


def _cache(counts: Counts) -> Cache | None:
    if counts.built:
        return "partial" if counts.found else "miss"
    return "hit" if counts.graphs else None
