"""Rules about the device: somebody has it, and the preset was made for it."""

from collections.abc import Iterator

from app.guard.facts import Facts
from app.guard.rule import Finding, rule
from app.guard.wording import size
from app.spec.run import RunSpec


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


@rule(
    "memory.preset_too_large",
    severity="warning",
    stands_on="A preset's batch and chunk sizes are those of the memory it was made for.",
)
def preset_too_large(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """The preset of a run was made for a device like the one that will run it."""
    made_for, device = facts.preset, facts.best_device(spec.runtime.device, spec.runtime.precision)
    if made_for is None or device is None:
        return
    have = device.total_memory_bytes if device.kind == "cuda" else None
    if made_for.device == "cuda" and device.kind == "cpu":
        short = f"for a GPU with {made_for.memory_gib:g} GiB, and this run would be on a CPU"
    elif made_for.device == "cuda" and have is not None and not made_for.fits(have):
        short = (
            f"for {made_for.memory_gib:g} GiB of device memory, and {device.name} has {size(have)}"
        )
    else:
        return
    yield Finding(
        ("preset",),
        f"The preset {spec.preset} is made {short}.",
        "Its batch size may be slow there, or only just fit; preset: auto takes the preset of the "
        "device, and its batch size with it.",
        {"/preset": "auto"},
    )


RULES = (no_worker, preset_too_large)
