"""Rules about runtime and preset: the device is there, is large enough, and computes so."""

import re
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.facts import known
from app.guard.rule import Finding, rule
from app.guard.rules.training import MEASURED
from app.guard.wording import largest_items, size
from app.planning.arithmetic import threads_of_slot
from app.spec.data import ChunkedLoader

# The first GPUs that are faster in fp16 than in float32.
FAST_FP16 = (7, 0)
# Dense TFLOP/s in float32 and in TF32, by NVIDIA's datasheets: by compute capability where all GPUs
# gain, of one of them; else by a word of the name, since GeForce cards of the same kind, also
# those of Blackwell, have as much of one as of the other.
TF32_GAINS = {
    (8, 0): ("an A100", 19.5, 156.0),
    (9, 0): ("an H100", 67.0, 495.0),
    (10, 0): ("a B200", 80.0, 1_100.0),
}
TF32_GAINS_BY_NAME = {
    "A10": ("an A10", 31.2, 62.5),
    "A40": ("an A40", 37.4, 74.8),
    "A6000": ("an RTX A6000", 38.7, 77.4),
    "L40S": ("an L40S", 91.6, 183.0),
}
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
    "correctness.precision_needs_gpu",
    overridable=False,
    stands_on="The trainer refuses both on a CPU (worker/trainer/device.py): TF32 is a format of "
    "NVIDIA's tensor cores, and PyTorch's LSTM does not start in fp16 on most processors.",
)
def precision_needs_gpu(case: Case) -> Iterator[Finding]:
    """TF32 and fp16 are asked for where there is a GPU."""
    wanted = case.spec.runtime.precision
    if wanted in ("tf32", "fp16-mixed") and case.device.kind == "cpu":
        yield Finding(
            ("runtime", "precision"),
            f"{wanted} needs a CUDA device; this run would be on a CPU.",
            (
                "TF32 is a format of NVIDIA's tensor cores: there is none on a CPU."
                if wanted == "tf32"
                else "Most processors have no kernels for fp16: PyTorch's LSTM and GRU do not "
                "start in it there. For bf16 they have."
            )
            + " The trainer would refuse to begin.",
            {"/runtime/precision": "auto"},
        )


@rule(
    "correctness.precision_not_supported",
    overridable=False,
    stands_on="NVIDIA: bfloat16 and TF32 came with compute capability 8.0; before, PyTorch "
    "emulates the one and leaves out the other.",
)
def precision_not_supported(case: Case) -> Iterator[Finding]:
    """bf16 and TF32 are asked for on a GPU that computes in them."""
    wanted = case.spec.runtime.precision
    if wanted not in ("bf16-mixed", "tf32"):
        return
    device = case.device
    if device.kind == "cpu":
        return
    if known(device.computes_in(wanted), f"the compute capability of {device.name}"):
        return
    capability = device.capability or (0, 0)
    in_tf32 = wanted == "tf32"
    has_fast_fp16 = not in_tf32 and capability >= FAST_FP16
    yield Finding(
        ("runtime", "precision"),
        f"{device.name} (compute capability {capability[0]}.{capability[1]}) does not compute in "
        f"{'TF32' if in_tf32 else 'bf16'}.",
        "It would silently compute in float32."
        if in_tf32
        else "It would emulate every operation in float32, slower than float32 itself"
        + ("; what it is fast in is fp16." if has_fast_fp16 else "."),
        {"/runtime/precision": "fp16-mixed" if has_fast_fp16 else "auto"},
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


@rule(
    "speed.tf32_off",
    severity="warning",
    stands_on="NVIDIA's datasheets, dense: A100 156 TFLOP/s in TF32 against 19.5 in float32, H100 "
    "495 against 67, B200 1,100 against 80, L40S 183 against 92. GeForce cards have as much of one "
    "as of the other. Timing it needs a GPU; not timed here.",
)
def tf32_off(case: Case) -> Iterator[Finding]:
    """A GPU that has two and more times as much TF32 is not asked for plain float32."""
    if case.spec.runtime.precision != "fp32":
        return
    device = case.device
    if device.kind == "cpu":
        return
    capability = known(device.capability, f"the compute capability of {device.name}")
    words = re.split(r"[^A-Za-z0-9]+", device.name)
    by_name = (TF32_GAINS_BY_NAME[word] for word in words if word in TF32_GAINS_BY_NAME)
    gain = TF32_GAINS.get(capability) or next(by_name, None)
    if gain is not None:
        example, float32, tf32 = gain
        yield Finding(
            ("runtime", "precision"),
            f"{device.name} multiplies matrices in TF32, and the run asks for plain float32.",
            f"Its tensor cores stay idle: {example} does {float32:g} TFLOP/s in float32 and "
            f"{tf32:,g} in TF32, with the range of float32 and 10 bits of mantissa.",
            {"/runtime/precision": "tf32"},
        )


@rule(
    "speed.recurrence_not_in_bf16",
    severity="warning",
    stands_on='docs/lab-notes.md, "Can an LSTM be trained in bf16?": cuDNN\'s has no bf16 under '
    "autocast, and oneDNN's refuses it on many processors. Timing it needs a GPU; not timed here.",
)
def recurrence_not_in_bf16(case: Case) -> Iterator[Finding]:
    """Whoever asks for bf16-mixed gets it in the part that takes the time."""
    spec, device = case.spec, case.device
    if spec.runtime.precision != "bf16-mixed" or device.computes_in("bf16-mixed") is False:
        return
    encoder = spec.recipe.recurrence
    if encoder is None:
        return
    formats = spec.recipe.computes_in("bf16-mixed", device.kind)
    stays_in = formats.get(encoder.lower(), "bf16")
    if stays_in == "bf16":
        return
    yield Finding(
        ("runtime", "precision"),
        f"Under bf16-mixed the {encoder} computes in {stays_in.upper()}; only the layers "
        "after it compute in bf16.",
        "cuDNN's recurrent layers have no bf16 under autocast, and oneDNN's refuse it on many "
        f"processors. The {encoder} takes most of a step, so little is won, and the "
        "layers after it lose 16 bits of mantissa.",
        {"/runtime/precision": "tf32" if device.kind == "cuda" else "fp32"},
    )
