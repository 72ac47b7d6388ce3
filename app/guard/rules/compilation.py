"""Rules about runtime.compile and runtime.cuda_graphs: they can be, and gain something."""

from collections.abc import Iterator

from app.guard.case import Case
from app.guard.facts import known
from app.guard.rule import LEAST_LOSS_SECONDS, Finding, rule
from app.guard.wording import duration
from app.spec.runtime import MOST_CAPTURED, RANDOM_BLOCKS

COMPILE_MODE = ("runtime", "compile", "mode")
EAGERLY = {"/runtime/compile/mode": "none"}
# The first GPUs that Triton has kernels for.
TRITON_SINCE = (7, 0)
CUDA_GRAPHS = ("runtime", "cuda_graphs")
WHERE_IT_CAN = {"/runtime/cuda_graphs": "auto"}
# Of a GPU's steps at such a pace, launching their operations from Python has a large part.
SHORT_STEPS_PER_SECOND = 100.0


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
            COMPILE_MODE,
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
            COMPILE_MODE,
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
    encoder = spec.recipe.recurrence
    if spec.runtime.compile.mode == "none" or encoder is None:
        return
    yield Finding(
        COMPILE_MODE,
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
        COMPILE_MODE,
        f"All steps would take {duration(steps)}, and compiling them {duration(compiling)}.",
        "No step can become so much faster that the run ends sooner.",
        EAGERLY,
    )


@rule(
    "correctness.graphs_need_gpu",
    overridable=False,
    stands_on="CUDA graphs are a GPU's; under always the trainer refuses to start without.",
)
def graphs_need_gpu(case: Case) -> Iterator[Finding]:
    """A run whose steps must be replayed from a CUDA graph is on a GPU."""
    if case.spec.runtime.cuda_graphs == "always" and case.device.kind == "cpu":
        yield Finding(
            CUDA_GRAPHS,
            "Steps must be replayed from a CUDA graph, and this run would be on a CPU.",
            "A CPU has none; auto takes one where there is a GPU.",
            WHERE_IT_CAN,
        )


@rule(
    "correctness.step_not_capturable",
    overridable=False,
    stands_on="The trainer compares captured steps with launched ones before it trains by them, "
    "and replays only steps that are like each other (worker/trainer/speed/cuda_graph.py).",
)
def step_not_capturable(case: Case) -> Iterator[Finding]:
    """Steps that must be replayed from a CUDA graph are such as the trainer captures."""
    spec = case.spec
    if spec.runtime.cuda_graphs != "always" or case.device.kind == "cpu":
        return
    recipe, batches = spec.recipe, spec.training.gradient_accumulation_steps
    if recipe.not_capturable is not None:
        why = recipe.not_capturable
    elif spec.runtime.activation_checkpointing and recipe.has_random_blocks:
        why = RANDOM_BLOCKS
    elif batches > MOST_CAPTURED:
        why = f"A graph has a place for each of its {batches} batches; up to {MOST_CAPTURED} are."
    elif (samples := case.sizes.training) < case.effective_batch:
        why = f"An epoch has {samples:,} samples and a step {case.effective_batch:,}."
    else:
        return
    yield Finding(
        CUDA_GRAPHS, "The steps of this run must be captured, and cannot be.", why, WHERE_IT_CAN
    )


@rule(
    "speed.launched_steps",
    severity="warning",
    stands_on="PyTorch, CUDA semantics: a graph is launched at once, where a step launches each of "
    "its kernels from Python. Timing it needs a GPU; not timed here. On an H100 (`python -m "
    "benchmarks training --device cuda`, 15 rounds): a small LSTM 2.6 ms launched, 0.17 replayed.",
)
def launched_steps(case: Case) -> Iterator[Finding]:
    """A long run of short steps on a GPU may have them replayed from a CUDA graph, or compiled."""
    runtime = case.spec.runtime
    if runtime.cuda_graphs != "never" or runtime.compile.mode != "none":
        return
    if case.device.kind == "cpu":
        return
    history = case.history
    if history is None or history.iterations_per_second < SHORT_STEPS_PER_SECOND:
        return
    seconds = case.steps / history.iterations_per_second
    if seconds < LEAST_LOSS_SECONDS:
        return
    yield Finding(
        CUDA_GRAPHS,
        f"{duration(seconds)} of steps would be launched one operation at a time.",
        f"At {history.iterations_per_second:.0f} steps a second the GPU often waits for them; auto "
        "replays whole steps where these are proved the same, and says in `applied` what it gave.",
        WHERE_IT_CAN,
    )
