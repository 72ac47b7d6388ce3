"""Rules about the device: somebody can run it, in the precision that is asked for."""

from collections.abc import Iterator

from app.guard.derived import device_of
from app.guard.facts import Facts
from app.guard.rule import Finding, rule
from app.spec.run import RunSpec


@rule(
    "correctness.precision_needs_gpu",
    overridable=False,
    stands_on="CPUs have no TF32 units, and PyTorch no gradient scaling for fp16 there.",
)
def precision_needs_gpu(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """TF32 and fp16 are asked for where there is a GPU."""
    wanted = spec.runtime.precision
    if wanted in ("tf32", "fp16-mixed") and device_of(spec, facts).kind == "cpu":
        yield Finding(
            ("runtime", "precision"),
            f"{wanted} needs a CUDA device; this run would be on a CPU.",
            "CPUs have no TF32 units, and PyTorch has no gradient scaling for fp16 there.",
            {"/runtime/precision": "auto"},
        )


@rule(
    "speed.no_worker",
    severity="warning",
    stands_on="Workers claim runs that their devices can train.",
)
def no_worker(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A worker that is alive has the kind of device that is asked for."""
    if facts.best_device(spec.runtime.device) is not None:
        return
    missing = "a CUDA device" if facts.devices else "any device"
    yield Finding(
        ("runtime", "device"),
        f"No worker with {missing} is alive; the run will wait in the queue.",
        "Workers claim runs that their devices can train; start one with `stoker worker`.",
    )


RULES = (precision_needs_gpu, no_worker)
