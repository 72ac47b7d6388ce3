"""Rules about compiled steps: the host can compile them, and they gain more than that takes."""

from collections.abc import Iterator

from app.guard.case import Case
from app.guard.facts import known
from app.guard.rule import LEAST_LOSS_SECONDS, Finding, rule
from app.guard.wording import duration

WHERE = ("runtime", "compile", "mode")
EAGERLY = {"/runtime/compile/mode": "none"}
# The first GPUs that Triton has kernels for.
TRITON_SINCE = (7, 0)


@rule(
    "correctness.cannot_compile",
    overridable=False,
    stands_on="PyTorch writes C++ for a CPU, and for a GPU Triton, which knows compute capability "
    "7.0 and newer; it builds both where the run trains.",
)
def cannot_compile(case: Case) -> Iterator[Finding]:
    """Where steps are to be compiled, the host has a compiler for its device."""
    if case.spec.runtime.compile.mode == "none":
        return
    device = case.device
    if device.kind == "cuda" and (device.capability or TRITON_SINCE) < TRITON_SINCE:
        yield Finding(
            WHERE,
            f"Steps cannot be compiled for {device.name}: Triton does not support GPUs that old.",
            "Its compute capability is {}.{}, and 7.0 is needed.".format(
                *(device.capability or (0, 0))
            ),
            EAGERLY,
        )
        return
    missing = known(device.host.missing_tools, "whether the host has a compiler").get(device.kind)
    if missing:
        yield Finding(
            WHERE,
            f"Steps cannot be compiled on the worker's host: it lacks {', and '.join(missing)}.",
            "PyTorch writes C++ for a CPU and Triton for a GPU, and builds it when a run starts. "
            "Install it there and restart the worker, or train without.",
            EAGERLY,
        )


@rule(
    "speed.compiled_recurrence",
    severity="warning",
    stands_on="`python -m benchmarks compile`, steps in turn on 2 busy cores, four models, n = 15 "
    "each, four times: medians of 1.01 to 1.13 for compiled over eager. On a GPU not measured.",
    measured_by="compiled_recurrence",
)
def compiled_recurrence(case: Case) -> Iterator[Finding]:
    """A model whose work is an LSTM or a GRU is not compiled."""
    spec = case.spec
    if spec.runtime.compile.mode == "none" or spec.recipe.kind != "sequence":
        return
    encoder = spec.recipe.encoder.upper()
    yield Finding(
        WHERE,
        f"PyTorch does not compile the {encoder}, which is nearly all of the work.",
        "Steps were no faster for it (they took 1.01 to 1.13 times as long, measured on a CPU), "
        "and the run starts later: by seconds if they were compiled before, else by a minute at "
        "most.",
        EAGERLY,
    )


@rule(
    "speed.compilation_outlasts_steps",
    stands_on="Seconds that compiling took in like runs of this service's history; what the cache "
    "had then took less. Not a claim about steps, so not timed here.",
)
def compilation_outlasts_steps(case: Case) -> Iterator[Finding]:
    """Compiling takes less time than the steps, or than a minute."""
    if case.spec.runtime.compile.mode == "none":
        return
    history = case.like_runs
    compiling = known(history.compiling_seconds, "how long the steps of runs like it compile")
    steps = case.steps / history.iterations_per_second
    if compiling <= max(steps, LEAST_LOSS_SECONDS):
        return
    yield Finding(
        WHERE,
        f"All steps would take {duration(steps)}, and compiling them {duration(compiling)}.",
        "No step can become so much faster that the run ends sooner.",
        EAGERLY,
    )


RULES = (cannot_compile, compiled_recurrence, compilation_outlasts_steps)
