"""Compiles a step before the first one, for every batch that will come, and minds what comes later.

A shape that the compiler has not met makes a step wait for it, for seconds to minutes.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from app.spec.run import RunSpec
from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.batch import Bucket
from worker.trainer.data.dataset import DataSet
from worker.trainer.report.preparing import Preparing
from worker.trainer.speed.compiler import Counts, count, end_helpers, quiet
from worker.trainer.speed.preserved_state import state_preserved
from worker.trainer.step import TrainingStep

# So many graphs that were not foreseen are no trouble.
FEW_GRAPHS = 3

Cache = Literal["hit", "miss", "partial"]
Shapes = dict[str, list[tuple[int, Bucket]]]


@dataclass(frozen=True)
class Compilation:
    """What was compiled before the first step, as applied.json has it; under mode none nothing."""

    mode: str
    cache: Cache | None = None
    """Whether the cache had everything, nothing, or some; None: there was nothing to compile."""
    seconds: float | None = None
    graphs: int | None = None
    """Number of graphs that were built or taken from the cache."""

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


@dataclass(frozen=True)
class CompilePlan:
    """The shapes that a run compiles for, and the seconds of a like run on this machine."""

    shapes: Mapping[str, int]
    """Shapes of batches, by what is computed of them. Each takes one graph or more: only compiling
    tells how many the model is broken into.
    """
    earlier: Mapping[str, Any] | None
    """`{seconds, cache, graphs}` as `Compilation` has them; None if no like run compiled here."""
    record: Path | None
    """Beside the cache; None if PyTorch chooses the cache's folder."""

    @classmethod
    def of(cls, step: TrainingStep, spec: RunSpec, data: DataSet) -> "CompilePlan":
        shapes = _shapes(data)
        record = _record_of(step, spec, data, shapes)
        earlier = None
        with suppress(OSError, ValueError):  # none yet, or not to be read: then it is not known
            earlier = json.loads(record.read_text()) if record else None
        return cls({what: len(each) for what, each in shapes.items() if each}, earlier, record)

    def keep(self, done: Compilation) -> None:
        """Note what it took for the next like run."""
        if self.record is None:
            return
        took = {"seconds": done.seconds, "cache": done.cache, "graphs": done.graphs}
        with suppress(OSError), whole_file(self.record) as file:  # no run ends for want of a note
            file.write_text(json.dumps(took))


def _record_of(step: TrainingStep, spec: RunSpec, data: DataSet, shapes: Shapes) -> Path | None:
    """One file for all runs that compile the same graphs on the same machine."""
    if (folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR")) is None:
        return None
    device, runtime = step.device, spec.runtime
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    fields = {name: [*field.shape, str(field.dtype)] for name, field in data.fields.items()}
    like = [
        *(platform.node(), name, step.precision.name, torch.get_num_threads()),
        *(runtime.compile.mode, runtime.deterministic, runtime.activation_checkpointing),
        *(spec.recipe.model_dump(mode="json"), spec.loss_weights, fields, shapes),
    ]
    key = hashlib.sha256(json.dumps(like, default=str, sort_keys=True).encode()).hexdigest()
    return Path(folder).parent / "compiled" / f"{key[:32]}.json"


def _shapes(data: DataSet) -> Shapes:
    """Size and bucket of each batch that is compiled for, by what is computed of it."""
    sizes, shapes = data.train.plan.sizes, data.train.shapes
    return {
        "training step": list(shapes.each(sizes[:1])),
        "smaller last batch": list(shapes.each(sizes[1:])),
        "evaluation": _evaluated_shapes(data),
    }


def compile_step(
    step: TrainingStep, spec: RunSpec, data: DataSet, preparing: Preparing
) -> Compilation:
    """Compile for every batch that the run will have; the training begins as it would without.

    Raises StopRequested, and what the compiler raises (see `worker.trainer.failure`).
    """
    began, mode = time.monotonic(), spec.runtime.compile.mode
    step.compile(mode)
    with quiet(), state_preserved(step, (*step.model.buffers(), step.loss_sums)):
        shapes = _shapes(data)
        for size, bucket in (*shapes["training step"], *shapes["smaller last batch"]):
            step.accumulate(step.made_up(size, bucket), 1.0)
            preparing.piece_done()
        for size, bucket in shapes["evaluation"]:
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
