"""Rules about the device: somebody has it, the preset was made for it, its cores are enough."""

from collections.abc import Iterator

from app.guard.case import Case
from app.guard.facts import known
from app.guard.rule import Finding, rule
from app.guard.wording import size
from app.planning.arithmetic import threads_of_slot


@rule(
    "speed.no_worker",
    severity="warning",
    stands_on="Workers claim runs that their devices can train.",
)
def no_worker(case: Case) -> Iterator[Finding]:
    """A worker that is alive has the kind of device that is asked for."""
    if case.facts.best_device(case.spec.runtime.device) is not None:
        return
    missing = "a CUDA device" if case.facts.devices else "any device"
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
def preset_too_large(case: Case) -> Iterator[Finding]:
    """The preset of a run was made for a device like the one that will run it."""
    made_for, device = case.facts.preset, case.best_device
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
        f"The preset {case.spec.preset} is made {short}.",
        "Its batch size may be slow there, or only just fit; preset: auto takes the preset of the "
        "device, and its batch size with it.",
        {"/preset": "auto"},
    )


@rule(
    "speed.threads_above_cores",
    stands_on="The threads of an operation wait for the last of them, and one without a core "
    "of its own comes last. Two LSTMs at once on 2 cores: 143 to 226 ms a step with 2 "
    "threads each, 63 to 85 ms with 1, on a busy machine.",
    measured_by="threads_above_cores",
)
def threads_above_cores(case: Case) -> Iterator[Finding]:
    """A run on a CPU has no more threads than cores, those of the runs beside it left to them."""
    wanted = case.spec.runtime.threads
    if wanted == "auto":
        return
    device = case.device
    if device.kind == "cuda":
        return  # its steps are not computed by these threads
    cores = known(device.host.cores, "the cores of the host")
    slots = known(device.host.slots, "how many runs train on the host at once")
    most = threads_of_slot(cores, slots)
    if wanted <= most:
        return
    beside = f", shared by {slots} runs" if slots > 1 else ""
    yield Finding(
        ("runtime", "threads"),
        f"{wanted} threads would compute on {cores} cores{beside}.",
        f"Every operation waits until its last thread has had a core, and only {most} have one of "
        "their own.",
        {"/runtime/threads": "auto"},
    )


RULES = (no_worker, preset_too_large, threads_above_cores)
