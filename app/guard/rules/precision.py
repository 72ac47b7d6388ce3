"""Rules about number formats: the device computes in them, and fast."""

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
    stands_on="The trainer refuses both on a CPU (worker/trainer/build.py): TF32 is a format of "
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
                else "PyTorch's LSTM and GRU do not start in fp16 on most processors: oneDNN has "
                "no kernel for them there. It has in bf16."
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


RULES = (
    precision_needs_gpu,
    precision_not_supported,
    tf32_off,
)
