"""What one real step took, as a worker measured it, and what follows from it for other batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from app.spec.optimization import SGD
from app.spec.run import RunSpec

Point = tuple[int, int]
"""Samples of a batch, and the peak of bytes with it."""


@dataclass(frozen=True)
class Measured:
    """Peaks where the model lay: above the trainer's imports on a host, of PyTorch on a GPU.

    Where memory ran out there are no peaks, and `ran_out` says in which phase, with
    which batch, and in words.
    """

    spec: RunSpec
    worker: str
    at: float
    """Unix seconds."""
    device: Literal["cpu", "cuda"]
    training: tuple[Point, Point] | None = None
    """Of two batches; the second is the plan's."""
    accumulating_bytes: int = 0
    """With the second batch, where a step has more than one."""
    evaluation: Point | None = None
    host_bytes: int = 0
    reserved_bytes: int | None = None
    """By PyTorch of the GPU, what it keeps for later included."""
    ran_out: tuple[str, int, str] | None = None

    @classmethod
    def from_result(
        cls, spec: RunSpec, worker: str, at: float, result: Mapping[str, Any]
    ) -> "Measured":
        """From a job's result; see `worker.trainer.one_step`."""
        device = result["device"]
        if ran_out := result.get("out_of_memory"):
            phase, batch = ran_out
            return cls(spec, worker, at, device, ran_out=(phase, batch, result["error"]))
        evaluation, ((b1, p1), (b2, p2)) = result["evaluation"], result["training"]
        return cls(
            spec=spec,
            worker=worker,
            at=at,
            device=device,
            training=((b1, p1), (b2, p2)),
            accumulating_bytes=result["accumulating"],
            evaluation=(evaluation[0], evaluation[1]) if evaluation else None,
            host_bytes=result["host_bytes"],
            reserved_bytes=result["reserved_bytes"],
        )

    def holds_for(self, spec: RunSpec) -> bool:
        """Whether it tells of a spec too: of the same model and runtime, whatever the batch."""
        return _what_it_stands_on(self.spec) == _what_it_stands_on(spec)

    @property
    def when(self) -> str:
        """RFC 3339, to the second."""
        return datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def as_json(self) -> dict[str, Any]:
        def named(point: Point) -> dict[str, int]:
            return {"batch_size": point[0], "peak_bytes": point[1]}

        return {
            "worker": self.worker,
            "at": self.when,
            "device": self.device,
            "training": [named(point) for point in self.training or ()],
            "accumulating_bytes": self.accumulating_bytes if self.training else None,
            "evaluation": named(self.evaluation) if self.evaluation else None,
            "host_bytes": self.host_bytes if self.training else None,
            "reserved_bytes": self.reserved_bytes,
            "ran_out_of_memory": self.ran_out[2] if self.ran_out else None,
        }


@dataclass(frozen=True)
class StepLines:
    """The straight lines through what was measured: each sample of a batch takes as much.

    `fixed_bytes` is what is there beside weights, gradients, optimizer and batch, however large
    the batch.
    """

    fixed_bytes: int
    training_sample_bytes: float
    evaluation_sample_bytes: float
    accumulating_bytes: int
    """What a step of several batches takes more than one of a single batch."""


def lines_through(
    training: tuple[Point, Point],
    accumulating_bytes: int,
    evaluation: Point | None,
    weights: int,
    optimizer: int,
    gradients: int,
) -> StepLines:
    """Bytes of a sample include those of the batch itself."""
    (small, small_peak), (large, large_peak) = training
    sample = max(0.0, (large_peak - small_peak) / (large - small))
    fixed = max(0, int(large_peak - sample * large) - weights - gradients - optimizer)
    evaluated = 0.0
    if evaluation is not None:
        evaluated = max(0.0, (evaluation[1] - fixed - weights - optimizer) / evaluation[0])
    return StepLines(fixed, sample, evaluated, max(0, accumulating_bytes - large_peak))


def _what_it_stands_on(spec: RunSpec) -> tuple[object, ...]:
    wanted, data = spec.optimizer, spec.data
    momentum = bool(wanted.momentum) if isinstance(wanted, SGD) else None
    return (
        *(spec.recipe, spec.runtime, wanted.kind, momentum, spec.training.clip_grad_norm is None),
        *(data.dataset, data.inputs, data.targets),
    )
