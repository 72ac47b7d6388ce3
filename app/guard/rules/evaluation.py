"""Rules about evaluation: it comes at some time, and takes little of the time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.guard.case import Case
from app.guard.rule import LEAST_LOSS_SECONDS, Finding, rule
from app.guard.rules.checkpoint import MOST_LOST_SECONDS
from app.guard.wording import duration, share
from app.planning.schedule import is_annealed
from app.spec.optimization import StochasticAveraging
from app.spec.training import MOST_PATIENCE
from app.suggest import closest, did_you_mean

EACH_EPOCH = {"/evaluation/every_epochs": 1}
WITHOUT: dict[str, Any] = {"/early_stopping": None}
# A sample of evaluation has the forward pass alone: about a third of a training step's flops.
FORWARD_SHARE = 1 / 3
# Evaluation beyond the first share is told, beyond the second refused where it was measured: in
# each of the like runs, so that a timing that swings about the half refuses nothing.
MOST_EVALUATION, REFUSED_EVALUATION = 0.25, 0.5


@rule(
    "correctness.unknown_metric",
    overridable=False,
    stands_on="A metric is computed by the recipe, which declares all that it has.",
)
def unknown_metric(case: Case) -> Iterator[Finding]:
    """Every metric of the evaluation is one that the recipe has."""
    metrics, recipe = case.spec.evaluation.metrics, case.spec.recipe
    for position, name in enumerate(metrics):
        if name in recipe.metric_modes:
            continue
        spare = [other for other in recipe.metric_modes if other not in metrics]
        meant = closest(name, spare) or (spare[0] if len(spare) == 1 else None)
        others = [other for other in metrics if other != name]
        yield Finding(
            ("evaluation", "metrics", position),
            f"The recipe {recipe.kind} has no metric {name!r}; it has "
            f"{', '.join(recipe.metric_modes) or 'none but the loss'}.{did_you_mean(meant)}",
            "Nothing would compute it.",
            {"/evaluation/metrics": [*others, meant] if meant else others},
        )


@rule(
    "correctness.never_evaluated",
    overridable=False,
    stands_on="Early stopping compares validation scores: the first is the best so far, and at the "
    "last the run ends anyway.",
)
def never_evaluated(case: Case) -> Iterator[Finding]:
    """What early stopping watches is computed at some time, and more often than its patience."""
    spec = case.spec
    stopping = spec.early_stopping
    if stopping is None:
        return
    if spec.evaluation.every_epochs is None and spec.evaluation.every_steps is None:
        yield Finding(
            ("evaluation",),
            "Early stopping watches a validation metric, but nothing is evaluated before the end.",
            "The run would never end early.",
            EACH_EPOCH if _can_act(case.with_values(EACH_EPOCH)) else WITHOUT,
        )
        return
    evaluations = case.evaluations
    if 0 < evaluations < stopping.patience + 2:
        yield Finding(
            ("early_stopping", "patience"),
            f"Early stopping with a patience of {stopping.patience:,} can never act: the run has "
            f"{evaluations:,} {'evaluation' if evaluations == 1 else 'evaluations'}.",
            f"The first is the best so far, so that it acts at evaluation {stopping.patience + 1:,}"
            " at the earliest, and at the last one the run ends anyway: it trains all its steps.",
            _that_acts(case, evaluations),
            severity="warning",
        )


def _can_act(case: Case) -> bool:
    """Whether patience can run out before the end."""
    patience = case.spec.early_stopping.patience if case.spec.early_stopping else 0
    return case.evaluations >= patience + 2


def _that_acts(case: Case, evaluations: int) -> dict[str, Any]:
    """The largest patience that may run out, if the rate has annealed by then."""
    patience = min(evaluations - 2, MOST_PATIENCE)
    if patience < 1:
        return WITHOUT
    step = case.step_of_evaluation(patience + 1)
    averaging = case.spec.averaging
    if isinstance(averaging, StochasticAveraging):
        annealed = step >= averaging.start_epoch * case.epoch_steps
    else:
        annealed = is_annealed(case.spec.schedule, step, case.steps)
    return {"/early_stopping/patience": patience} if annealed else WITHOUT


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


def _evaluating(case: Case, *, at_least: bool = False) -> _Evaluating:
    """By what like runs took, or the one that evaluated least beside its own steps; without
    them by samples and passes. UnknownFact.
    """
    sizes, steps, history = case.sizes, case.steps, case.history
    evaluations = max(0, case.evaluations - 1)
    samples = case.evaluated_samples
    trained = case.epochs * sizes.training
    if history is None:
        return _Evaluating(evaluations, samples, trained, FORWARD_SHARE)
    seconds = steps / history.iterations_per_second
    for_a_sample = history.evaluation_seconds
    if at_least and history.least_evaluation_steps is not None:
        for_a_sample = history.least_evaluation_steps / history.iterations_per_second
    if for_a_sample is None:
        for_a_sample = FORWARD_SHARE * seconds / trained if trained else 0.0
    return _Evaluating(evaluations, samples, seconds, for_a_sample)


@rule(
    "speed.evaluation_share",
    stands_on="A forward pass is about a third of a training step's work; the reference reports "
    "had validation at 2.1 s a batch. Where like runs were timed, their medians; to refuse, the "
    "one that evaluated least beside its own steps, for timings swing.",
    measured_by="evaluation_share",
)
def evaluation_is_short(case: Case) -> Iterator[Finding]:
    """Before a run's end, evaluation takes at most a quarter of its time, or a minute; where it was
    measured to take more than half of it in each like run, and ten minutes, the run is refused."""
    found = _evaluating(case)
    if found.share <= MOST_EVALUATION:
        return
    if case.facts.history is not None and found.cost <= LEAST_LOSS_SECONDS:
        return
    measured = case.facts.history is not None and case.facts.history.evaluation_seconds is not None
    least = _evaluating(case, at_least=True)
    refused = least.share > REFUSED_EVALUATION and least.cost > MOST_LOST_SECONDS
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


@rule(
    "learning.same_average_again",
    severity="warning",
    stands_on="The mean of SWA changes at the end of an epoch, and evaluations look at it.",
)
def same_average_again(case: Case) -> Iterator[Finding]:
    """While SWA averages, evaluations come at the ends of epochs."""
    averaging, often = case.spec.averaging, case.spec.evaluation.every_steps
    if not isinstance(averaging, StochasticAveraging) or often is None:
        return
    epoch_steps, steps = case.epoch_steps, case.steps
    begins = averaging.start_epoch * epoch_steps
    if begins >= steps:
        return
    all_of_them, at_ends = (
        (steps - 1) // every - begins // every for every in (often, math.lcm(often, epoch_steps))
    )
    again = all_of_them - at_ends
    if not again:
        return
    fix: dict[str, Any] = {"/evaluation/every_steps": None}
    if case.spec.evaluation.every_epochs is None:
        fix["/evaluation/every_epochs"] = 1
    yield Finding(
        ("evaluation", "every_steps"),
        f"{again:,} evaluations would come in the middle of epochs after SWA has begun.",
        "The average changes at the ends of epochs alone: they would look at the same weights "
        "again, and early stopping would count each as one without improvement.",
        fix,
    )
