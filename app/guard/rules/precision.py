"""Rules about mixed precision that costs more than it wins."""

from collections.abc import Iterator

from app.guard.case import Case
from app.guard.rule import Finding, rule
from app.spec.issue import pointer

# What tensor cores want of the sizes of matrices in half precision.
MULTIPLE = 8


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


@rule(
    "speed.uneven_sizes",
    severity="warning",
    stands_on="NVIDIA, Matrix multiplication background: in half precision tensor cores are used "
    "best where the sizes of matrices are multiples of 8. Timing it needs a GPU; not timed here.",
)
def uneven_sizes(case: Case) -> Iterator[Finding]:
    """On a GPU in half precision the widths of layers are multiples of 8."""
    spec = case.spec
    if case.device.kind != "cuda" or case.precision not in ("bf16-mixed", "fp16-mixed"):
        return
    for field, width in spec.recipe.widths.items():
        if width % MULTIPLE == 0:
            continue
        loc = ("recipe", field)
        wider = -(-width // MULTIPLE) * MULTIPLE
        yield Finding(
            loc,
            f"A width of {width} is no multiple of {MULTIPLE}, and the run computes in "
            f"{case.precision}.",
            "Tensor cores take matrices in pieces of 8 numbers: the last piece would be filled up, "
            "or the product computed without them.",
            {pointer(loc): wider},
        )
