"""Rules about what a run pays beside its steps: evaluation and checkpoints."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from app.guard.case import Case
from app.guard.facts import known
from app.guard.memory.fitting import fits_well
from app.guard.rule import LEAST_LOSS_SECONDS, Finding, rule
from app.guard.rules.lost import MOST_LOST_SECONDS
from app.guard.wording import duration, one_of, share, size

# A sample of evaluation has the forward pass alone: about a third of a training step's flops.
FORWARD_SHARE = 1 / 3
# Evaluation beyond the first share is told, beyond the second refused where it was measured. They
# are so far apart that no two timings of one run lie on both sides.
MOST_EVALUATION, REFUSED_EVALUATION = 0.25, 0.5
MOST_CHECKPOINTING = 0.02
LARGEST_BATCH = 1_048_576  # as the schema has it


@dataclass(frozen=True)
class _Evaluating:
    """The evaluations before the end; the last one is every run's."""

    evaluations: int
    samples: int
    """Of one evaluation."""
    trained: float
    """Cost of the steps: seconds where the history is known, else training samples."""
    for_a_sample: float
    """Cost of a sample of evaluation, in the same unit."""

    @property
    def cost(self) -> float:
        return self.evaluations * self.samples * self.for_a_sample

    @property
    def share(self) -> float:
        return self.cost / (self.cost + self.trained) if self.cost else 0.0

    @property
    def most_samples(self) -> int:
        """So many before the end are no more than their share."""
        return int(self.trained * MOST_EVALUATION / (1 - MOST_EVALUATION) / self.for_a_sample)


def _evaluating(case: Case) -> _Evaluating:
    """By what like runs took; without them by samples and passes. UnknownFact."""
    sizes, steps, history = case.sizes, case.steps, case.history
    evaluations = max(0, case.evaluations - 1)
    samples = case.evaluated_samples
    trained = case.epochs * sizes.training
    if history is None:
        return _Evaluating(evaluations, samples, trained, FORWARD_SHARE)
    seconds = steps / history.iterations_per_second
    for_a_sample = history.evaluation_seconds
    if for_a_sample is None:
        for_a_sample = FORWARD_SHARE * seconds / trained if trained else 0.0
    return _Evaluating(evaluations, samples, seconds, for_a_sample)


@rule(
    "speed.evaluation_share",
    stands_on="A forward pass is about a third of a training step's work; the reference reports "
    "had validation at 2.1 s a batch. Where like runs were timed, their figures.",
    measured_by="evaluation_share",
)
def evaluation_is_short(case: Case) -> Iterator[Finding]:
    """Before a run's end, evaluation takes at most a quarter of its time, or a minute; where it was
    measured to take more than half of it, and ten minutes, the run is refused."""
    found = _evaluating(case)
    if found.share <= MOST_EVALUATION:
        return
    if case.facts.history is not None and found.cost <= LEAST_LOSS_SECONDS:
        return
    measured = case.facts.history is not None and case.facts.history.evaluation_seconds is not None
    refused = found.share > REFUSED_EVALUATION and found.cost > MOST_LOST_SECONDS
    yield Finding(
        ("evaluation",),
        f"About {share(found.share)} of the time would go into evaluation.",
        f"{found.evaluations:,} evaluations of {found.samples:,} samples before the end, beside "
        f"{case.steps:,} steps; "
        + (
            f"they would take {duration(found.cost)}, as in like runs."
            if measured
            else "a sample of evaluation costs about a third of one of training."
        ),
        _rarer_evaluation(case, found),
        severity=None if measured and refused else "warning",
    )


def _rarer_evaluation(case: Case, found: _Evaluating) -> dict[str, int | None]:
    """By epochs alone where that is enough; otherwise so many batches, or epochs, that it is."""
    spec = case.spec
    wanted = spec.evaluation
    by_epochs: dict[str, int | None] = {}
    if wanted.every_steps is not None:
        by_epochs["/evaluation/every_steps"] = None
        if wanted.every_epochs is None:
            by_epochs["/evaluation/every_epochs"] = 1
        if _evaluating(case.with_values(by_epochs)).share <= MOST_EVALUATION:
            return by_epochs
    batch = case.evaluation_batch
    batches = found.most_samples // (found.evaluations * batch)
    if batches * batch >= case.enough_samples:
        return {"/evaluation/max_batches": batches}
    epochs, most_looks = spec.training.epochs, found.most_samples // found.samples
    return by_epochs | {"/evaluation/every_epochs": epochs // (most_looks + 1) + 1}


def _saves(case: Case) -> Iterator[tuple[str, float]]:
    """Each setting by which checkpoints are asked for, and how many of its unit a second has. The
    best are not: the trainer writes them when they take little of its time. UnknownFact.
    """
    pace = case.like_runs.iterations_per_second
    if case.spec.checkpoint.every_seconds is not None:
        yield "every_seconds", 1.0
    if case.spec.checkpoint.every_steps is not None:
        yield "every_steps", pace


@rule(
    "speed.frequent_checkpoints",
    stands_on="Seconds for which checkpoints held like runs up, in this service's own history: "
    "training waits for a copy of its state, and for the checkpoint before.",
    measured_by="frequent_checkpoints",
)
def frequent_checkpoints(case: Case) -> Iterator[Finding]:
    """Checkpoints take at most 2 % of a run's time, or a minute; ten minutes apart they may be."""
    settings = list(_saves(case))
    if not settings:
        return
    history = case.like_runs
    seconds = known(history.checkpoint_seconds, "how long checkpoints of runs like it take")
    trained = case.steps / history.iterations_per_second
    written = history.written_seconds or 0.0
    fastest = min(max(seconds / MOST_CHECKPOINTING, written), MOST_LOST_SECONDS)
    for name, unit in settings:
        interval = getattr(case.spec.checkpoint, name) / unit
        # Closer together than one is written, each waits for the one before.
        paid = max(seconds, written - interval)
        if interval >= fastest or trained / interval * paid <= LEAST_LOSS_SECONDS:
            continue
        yield Finding(
            ("checkpoint", name),
            f"A checkpoint every {duration(interval)} takes {share(min(1.0, paid / interval))} of "
            "the time.",
            f"Each holds up a run like this for {paid:.2g} s. With one every {duration(fastest)}, "
            f"a kill loses no more than that, and they take {share(seconds / fastest)} of the "
            "time.",
            {f"/checkpoint/{name}": math.ceil(fastest * unit)},
        )


@rule(
    "speed.needless_accumulation",
    severity="warning",
    stands_on="Each micro-batch launches all operations of a step anew, on fewer samples. Timing "
    "it needs a GPU; not timed here.",
)
def needless_accumulation(case: Case) -> Iterator[Finding]:
    """On a GPU, batches are accumulated only where they do not fit as one."""
    spec = case.spec
    training, parts = spec.training, spec.training.gradient_accumulation_steps
    if parts == 1 or case.device.kind == "cpu":
        return
    whole = case.effective_batch
    if whole > min(LARGEST_BATCH, case.sizes.training):
        return
    fix = {"/training/batch_size": whole, "/training/gradient_accumulation_steps": 1}
    if spec.evaluation.batch_size == "auto" and spec.evaluation.max_batches is not None:
        fix["/evaluation/batch_size"] = training.batch_size  # it evaluations at as many samples
    plan = case.with_values(fix).memory
    if not fits_well(plan):
        return
    budget = plan.with_model
    yield Finding(
        ("training", "gradient_accumulation_steps"),
        f"A step is accumulated from {parts:,} batches, although one of {whole:,} samples fits.",
        f"It would take {size(budget.peak_bytes)} of the {size(budget.available_bytes or 0)} that "
        f"are available, give the same gradients, and launch {one_of(parts)} of the operations.",
        fix,
    )


RULES = (evaluation_is_short, frequent_checkpoints, needless_accumulation)
