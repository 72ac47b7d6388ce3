"""Rules about CUDA graphs: a step that must be recorded can be, and short steps are."""

from collections.abc import Iterator

from app.guard.case import Case
from app.guard.rule import LEAST_LOSS_SECONDS, Finding, rule
from app.guard.wording import duration
from app.spec.runtime import MOST_RECORDED

WHERE = ("runtime", "cuda_graphs")
WHERE_IT_CAN = {"/runtime/cuda_graphs": "auto"}
# Of a GPU's steps at such a pace, launching their operations from Python has a large part.
SHORT_STEPS_PER_SECOND = 100.0


@rule(
    "correctness.graphs_need_gpu",
    overridable=False,
    stands_on="CUDA graphs are a GPU's; under always the trainer refuses to start without.",
)
def graphs_need_gpu(case: Case) -> Iterator[Finding]:
    """A run whose steps must be replayed from a CUDA graph is on a GPU."""
    if case.spec.runtime.cuda_graphs == "always" and case.device.kind == "cpu":
        yield Finding(
            WHERE,
            "Steps must be replayed from a CUDA graph, and this run would be on a CPU.",
            "A CPU has none; auto takes one where there is a GPU.",
            WHERE_IT_CAN,
        )


@rule(
    "correctness.step_not_recordable",
    overridable=False,
    stands_on="The trainer compares recorded steps with launched ones before it trains by them, "
    "and replays only steps that are like each other (worker/trainer/recording.py).",
)
def step_not_recordable(case: Case) -> Iterator[Finding]:
    """Steps that must be replayed from a CUDA graph are such as the trainer records."""
    spec = case.spec
    if spec.runtime.cuda_graphs != "always" or case.device.kind == "cpu":
        return
    recipe, batches = spec.recipe, spec.training.gradient_accumulation_steps
    if recipe.num_layers > 1 and recipe.dropout > 0:
        why = (
            f"Dropout of {recipe.dropout:g} between {recipe.num_layers} layers is drawn from a "
            "state of cuDNN that cannot be put back, so no recorded step could be proved right."
        )
    elif batches > MOST_RECORDED:
        why = f"A graph has a place for each of its {batches} batches; up to {MOST_RECORDED} are."
    elif (samples := case.sizes.training) < case.effective_batch:
        why = f"An epoch has {samples:,} samples and a step {case.effective_batch:,}."
    else:
        return
    yield Finding(
        WHERE, "The steps of this run must be recorded, and cannot be.", why, WHERE_IT_CAN
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
        WHERE,
        f"{duration(seconds)} of steps would be launched one operation at a time.",
        f"At {history.iterations_per_second:.0f} steps a second the GPU often waits for them; auto "
        "replays whole steps where these are proved the same, and says in `applied` what it gave.",
        WHERE_IT_CAN,
    )


RULES = (graphs_need_gpu, step_not_recordable, launched_steps)
