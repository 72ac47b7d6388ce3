"""Rules about the number format: the device computes in it, and it wins more than it costs."""

import re
from collections.abc import Iterator

from app.guard.case import Case
from app.guard.facts import known
from app.guard.rule import Finding, rule

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


@rule(
    "speed.mixed_on_cpu",
    severity="warning",
    stands_on="Steps of a transformer of 64 units and 4 layers, 32 windows of weather a batch, "
    "took 1.5 times as long as in fp32 (1.3 to 3.0, n = 10), on an EPYC that has instructions for "
    "bf16.",
    measured_by="mixed_on_cpu",
)
def mixed_on_cpu(case: Case) -> Iterator[Finding]:
    """A run on a CPU computes in fp32, unless the recipe's recurrence stays in it anyway."""
    spec = case.spec
    if spec.runtime.precision != "bf16-mixed" or case.device.kind != "cpu":
        return
    if spec.recipe.recurrence is not None:
        return  # told by speed.recurrence_not_in_bf16
    yield Finding(
        ("runtime", "precision"),
        "bf16-mixed is asked for on a CPU.",
        "Weights are turned into bf16 for each step, and most operations back: a transformer took "
        "1.5 times as long, even on a processor that has instructions for bf16.",
        {"/runtime/precision": "fp32"},
    )


@rule(
    "learning.fp16_beside_bf16",
    severity="warning",
    stands_on="Micikevicius et al., Mixed precision training, 2018: in fp16 gradients below 2^-24 "
    "become zero, so losses are scaled, and a step whose gradients overflow is left out. bf16 has "
    "the range of float32.",
)
def fp16_beside_bf16(case: Case) -> Iterator[Finding]:
    """On a GPU that computes in bf16, mixed precision is bf16; a recurrence has only fp16."""
    spec, device = case.spec, case.device
    if spec.runtime.precision != "fp16-mixed" or device.kind != "cuda":
        return
    if spec.recipe.recurrence is not None or device.computes_in("bf16-mixed") is not True:
        return
    yield Finding(
        ("runtime", "precision"),
        f"fp16-mixed is asked for, and {device.name} computes in bf16 as fast.",
        "fp16 ends at 65,504 and at 6e-8: losses have to be scaled, and steps whose gradients "
        "overflow are left out. bf16 has the range of float32 and needs neither.",
        {"/runtime/precision": "bf16-mixed"},
    )
