"""Rules about runtime and preset: the device is there, is large enough, and computes so."""

from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.facts import known
from app.guard.rule import Finding, rule
from app.guard.rules.training import MEASURED
from app.guard.wording import largest_items, size
from app.planning.arithmetic import threads_of_slot
from app.spec.data import ChunkedLoader

# Compute capability of the first GPUs that flash attention is for: Ampere.
FLASH_FROM = (8, 0)


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


@rule("memory.host_over_budget", stands_on=MEASURED)
def host_over_budget(case: Case) -> Iterator[Finding]:
    """What a run on a GPU takes of its host is free there."""
    if case.device.kind == "cpu":
        return  # its host is the device: memory.over_budget
    host = case.read_in_trainer.memory.host
    known(host.available_bytes, "the available memory of the host")
    if host.is_over:
        yield Finding(
            ("runtime", "device"),
            f"The run would take at least {size(host.least_bytes)} of the host's memory, and "
            f"{size(host.available_bytes or 0)} are available, beside the trainer's imports.",
            f"The kernel would end it, or another program. {largest_items(host)}",
            _less_of_host(case),
        )


def _less_of_host(case: Case) -> dict[str, Any]:
    """The first change that makes it fit and leaves what is learned as it is: no compiler, data
    that stays on the device and needs staging only at the start, or both. Nothing where none does.
    """
    spec = case.spec
    eager: dict[str, Any] = {"/runtime/compile/mode": "none"}
    ways = [eager] if spec.runtime.compile.mode != "none" else []
    if isinstance(spec.data.loader, ChunkedLoader) and spec.data.loader.residency == "stream":
        stays = {"/data/loader/residency": "auto"}
        ways += [stays, *(way | stays for way in ways)]
    for way in ways:
        plan = case.with_values(way).read_in_trainer.memory
        if not plan.host.is_over and plan.fits and plan.data.holds(plan.batch):
            return way
    return {}


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


@rule(
    "correctness.attention_kind",
    overridable=False,
    stands_on="PyTorch's scaled_dot_product_attention: flash for CPUs, and for GPUs from Ampere on "
    "in half precision; memory-efficient for GPUs alone, without a deterministic backward.",
)
def attention_kind(case: Case) -> Iterator[Finding]:
    """Kernels of attention are asked for where there is attention, and the device has them."""
    spec = case.spec
    kind = spec.runtime.attention
    if kind == "auto":
        return
    why = _no_such_attention(case, kind)
    if spec.recipe.uses_attention(spec.data) is False:
        why = f"The recipe {spec.recipe.kind} computes no attention with these inputs"
    if why is not None:
        yield Finding(
            ("runtime", "attention"),
            f"{why}, and runtime.attention is {kind}.",
            "Only the kernels that are asked for are used: the run would end at its first step, or "
            "the setting would change nothing. auto takes the fastest that there is.",
            {"/runtime/attention": "auto"},
        )


def _no_such_attention(case: Case, kind: str) -> str | None:
    """Why the device has no such kernels for this run, as the beginning of a sentence."""
    device = case.device
    if device.kind == "cpu":
        return "A CPU has no such kernels" if kind == "memory-efficient" else None
    if kind == "memory-efficient" and case.spec.runtime.deterministic:
        return "Its gradients vary from run to run, and runtime.deterministic is on"
    if kind != "flash":
        return None
    if case.spec.recipe.masks_attention:
        return f"The attention of {case.spec.recipe.kind} has a mask, which flash does not take"
    capability = known(device.capability, f"the compute capability of {device.name}")
    if capability < FLASH_FROM:
        have = ".".join(map(str, capability))
        return f"{device.name} has compute capability {have}, and flash begins with 8.0"
    if case.precision not in ("bf16-mixed", "fp16-mixed"):
        return f"Flash computes in bf16 or fp16 on a GPU, and the run in {case.precision}"
    return None


@rule(
    "correctness.nothing_to_recompute",
    overridable=False,
    stands_on="The parts of its model that the recipe names.",
)
def nothing_to_recompute(case: Case) -> Iterator[Finding]:
    """Activations are computed anew where the model has blocks for it."""
    spec = case.spec
    if spec.runtime.activation_checkpointing and not spec.recipe.has_blocks:
        yield Finding(
            ("runtime", "activation_checkpointing"),
            f"With these parameters the recipe {spec.recipe.kind} has no blocks whose activations "
            "could be computed anew.",
            "No memory would be saved. A smaller training.batch_size with "
            "training.gradient_accumulation_steps saves it without a change of what is learned.",
            {"/runtime/activation_checkpointing": False},
        )


@rule(
    "speed.needless_recomputing",
    severity="warning",
    stands_on="Chen et al., Training deep nets with sublinear memory cost, 2016: one more forward "
    "pass, of the three that a step is worth; not timed here.",
)
def needless_recomputing(case: Case) -> Iterator[Finding]:
    """Activations are computed anew only where memory would not hold them."""
    runtime, recipe = case.spec.runtime, case.spec.recipe
    if not runtime.activation_checkpointing or not recipe.has_blocks:
        return
    kept = case.with_values({"/runtime/activation_checkpointing": False}).memory
    budget = kept.with_model
    available = known(budget.available_bytes, "the memory that is there")
    planned = budget.peak_bytes if budget.is_known else None
    if known(planned, "what a step takes with all activations kept") > available:
        return
    yield Finding(
        ("runtime", "activation_checkpointing"),
        f"With all activations kept the run takes {size(budget.peak_bytes)} of {size(available)}, "
        "as runs like it did, so none has to be computed anew.",
        "It costs about a third more work a step, for memory that is there.",
        {"/runtime/activation_checkpointing": False},
    )
