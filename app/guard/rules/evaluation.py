"""Rules about evaluation: what is monitored is computed, at some time, and the right way round."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args

from app.guard.case import Case
from app.guard.rule import Finding, rule
from app.guard.rules.schedules import is_annealed
from app.spec.run import RunSpec
from app.spec.training import MetricName, better_when

EACH_EPOCH = {"/evaluation/every_epochs": 1}


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


WITHOUT: dict[str, Any] = {"/early_stopping": None}


def _can_act(case: Case) -> bool:
    """Whether patience can run out before the end."""
    patience = case.spec.early_stopping.patience if case.spec.early_stopping else 0
    return case.evaluations >= patience + 2


def _that_acts(case: Case, evaluations: int) -> dict[str, Any]:
    """The largest patience that may run out, if the rate has annealed by then."""
    patience = evaluations - 2
    if patience < 1:
        return WITHOUT
    step = case.step_of_evaluation(patience + 1)
    annealed = is_annealed(case.spec.schedule, step, case.steps)
    return {"/early_stopping/patience": patience} if annealed else WITHOUT


def _watched(spec: RunSpec) -> Iterator[tuple[str, str, str]]:
    """(Block, monitor, mode) of whatever compares scores."""
    yield "checkpoint", spec.checkpoint.monitor, spec.checkpoint.mode
    if spec.early_stopping is not None:
        yield "early_stopping", spec.early_stopping.monitor, spec.early_stopping.mode


@rule(
    "correctness.unknown_monitor",
    overridable=False,
    stands_on="A monitor that is never computed never improves.",
)
def unknown_monitor(case: Case) -> Iterator[Finding]:
    """A monitored metric is one that the evaluation computes."""
    metrics = case.spec.evaluation.metrics
    computed = ["val_loss", *(f"val_{name}" for name in metrics)]
    could_be = ["val_loss", *(f"val_{name}" for name in get_args(MetricName))]
    for block, monitor, _mode in _watched(case.spec):
        if monitor in computed:
            continue
        meant = next(iter(get_close_matches(monitor, could_be, n=1)), "val_loss")
        fix: dict[str, Any] = {} if meant == monitor else {f"/{block}/monitor": meant}
        if meant not in computed:
            fix["/evaluation/metrics"] = [*metrics, meant.removeprefix("val_")]
        yield Finding(
            (block, "monitor"),
            f"Nothing computes {monitor!r}; the evaluation gives {', '.join(computed)}.",
            "Nothing would ever be best. "
            f"evaluation.metrics may have {', '.join(get_args(MetricName))}.",
            fix,
        )


@rule(
    "learning.monitor_upside_down",
    stands_on="What each metric is: losses and errors fall as a model gets better.",
)
def monitor_upside_down(case: Case) -> Iterator[Finding]:
    """The mode of a monitor says what is better of it; left out, it does."""
    spec = case.spec
    for block, monitor, mode in _watched(spec):
        better = better_when(monitor)
        if mode != better:
            lower = "lower" if better == "min" else "higher"
            yield Finding(
                (block, "mode"),
                f"{block}.mode is {mode}, and a {lower} {monitor} is better.",
                "The worst checkpoint would be kept as the best."
                if block == "checkpoint"
                else f"The run would end after {spec.early_stopping.patience} evaluations that "
                "each got better."
                if spec.early_stopping
                else "",
                {f"/{block}/mode": better},
            )


RULES = (never_evaluated, unknown_monitor, monitor_upside_down)
