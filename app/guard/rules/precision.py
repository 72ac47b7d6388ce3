"""Rules about number formats: the device computes in them, and fast."""

from collections.abc import Iterator

from app.guard.derived import dataset_of, device_of, precision_of
from app.guard.facts import Facts, known
from app.guard.rule import Finding, rule
from app.spec.run import RunSpec

LARGEST_FP16 = 65_504.0


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
    "correctness.bf16_not_supported",
    overridable=False,
    stands_on="NVIDIA: bfloat16 came with compute capability 8.0; before, PyTorch emulates it.",
)
def bf16_not_supported(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """bf16 is asked for on a GPU that computes in it."""
    if spec.runtime.precision != "bf16-mixed":
        return
    device = device_of(spec, facts)
    if device.kind == "cpu":
        return
    if not known(device.bf16, f"the compute capability of {device.name}"):
        capability = ".".join(map(str, device.capability or ()))
        yield Finding(
            ("runtime", "precision"),
            f"{device.name} (compute capability {capability}) does not compute in bf16.",
            "It would emulate every operation in float32, slower than float32 itself; fp16 is what "
            "its tensor cores were made for.",
            {"/runtime/precision": "fp16-mixed"},
        )


@rule(
    "speed.fp16_where_bf16",
    stands_on="Reference report: bf16 +10 to 20 % over fp16, and no loss scaling. Timing it needs "
    "a GPU; not timed here.",
)
def fp16_where_bf16(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A GPU that has bf16 is not asked for fp16."""
    if spec.runtime.precision != "fp16-mixed":
        return
    device = device_of(spec, facts)
    if device.kind == "cuda" and known(device.bf16, f"the compute capability of {device.name}"):
        yield Finding(
            ("runtime", "precision"),
            f"{device.name} has bf16, and the run asks for fp16.",
            f"fp16 ends at {LARGEST_FP16:,.0f} and needs loss scaling, whose skipped steps and "
            "checks cost 10 to 20 % against bf16 in the reference report.",
            {"/runtime/precision": "bf16-mixed"},
        )


@rule(
    "speed.tf32_off",
    stands_on="NVIDIA A100 whitepaper: 156 TFLOP/s in TF32 against 19.5 in float32. Timing it "
    "needs a GPU; not timed here.",
)
def tf32_off(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A GPU that has TF32 is not asked for plain float32."""
    if spec.runtime.precision != "fp32":
        return
    device = device_of(spec, facts)
    if device.kind == "cuda" and known(device.bf16, f"the compute capability of {device.name}"):
        yield Finding(
            ("runtime", "precision"),
            f"{device.name} multiplies matrices in TF32, and the run asks for plain float32.",
            "The tensor cores stay idle: an A100 does 19.5 TFLOP/s in float32 and 156 in TF32, "
            "with the range of float32 and 10 bits of mantissa.",
            {"/runtime/precision": "tf32"},
        )


@rule(
    "learning.fp16_overflow",
    stands_on=f"The largest fp16 number is {LARGEST_FP16:,.0f}; a squared error goes beyond it.",
)
def fp16_overflow(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """fp16 does not meet large targets and a squared loss."""
    if spec.runtime.precision != "fp16-mixed" or spec.recipe.loss != "mse":
        return
    if spec.data.standardize.targets:
        return
    dataset = dataset_of(spec, facts)
    for name in spec.data.targets:
        array = dataset.fields.get(name)
        if array is None:
            continue
        mean = known(array.mean, f"the mean of {name!r} in {dataset.name}")
        std = known(array.std, f"the spread of {name!r} in {dataset.name}")
        reach = abs(mean) + 4 * std
        if reach**2 > LARGEST_FP16:
            yield Finding(
                ("data", "standardize", "targets"),
                f"{name!r} reaches {reach:,.4g}, and its squared error does not fit fp16.",
                f"{reach:,.4g} squared is {reach**2:,.4g}, above {LARGEST_FP16:,.0f}: the loss "
                "would be infinite.",
                {"/data/standardize/targets": True},
            )


@rule(
    "speed.odd_sizes",
    severity="warning",
    stands_on="NVIDIA, Matrix multiplication background: tensor cores want multiples of 8 in "
    "16-bit formats. Timing it needs a GPU; not timed here.",
)
def odd_sizes(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """In half precision the matrix sizes are multiples of 8."""
    if precision_of(spec, facts) not in ("bf16-mixed", "fp16-mixed"):
        return
    if device_of(spec, facts).kind == "cpu":
        return
    for block, name, value in (
        ("recipe", "hidden_size", spec.recipe.hidden_size),
        ("training", "batch_size", spec.training.batch_size),
    ):
        if value % 8:
            better = -(-value // 8) * 8
            yield Finding(
                (block, name),
                f"{block}.{name} = {value} is not a multiple of 8.",
                f"Tensor cores work on tiles of 8 half-precision numbers: {value} costs as much as "
                f"{better}, or more.",
                {f"/{block}/{name}": better},
            )


RULES = (
    precision_needs_gpu,
    bf16_not_supported,
    fp16_where_bf16,
    tf32_off,
    fp16_overflow,
    odd_sizes,
)
