"""Rules about the learning rate's way: its warm-up, its fall, and what may end before that."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.rates import USUAL_BATCH, usual_rate
from app.guard.rule import Finding, rule
from app.guard.wording import share, two_digits
from app.planning.schedule import learning_rate
from app.spec.optimization import Constant, Plateau, Schedule

LARGE_BATCH = 1024
WARMUP_FRACTION = 0.05
# A rise that is over within this share of the steps is no warm-up; so few steps need none.
SHORTEST_WARMUP = 0.01
FULL_RATE = 0.98
SHORT_RUN_STEPS = 20
# Below this share of its peak a rate has annealed.
ANNEALED = 0.1


@rule(
    "learning.no_warmup",
    severity="warning",
    stands_on="Goyal et al., Accurate, large minibatch SGD, 2017: rates that are scaled up for "
    "large batches diverge without warm-up; the rate of a usual batch needs none.",
)
def no_warmup(case: Case) -> Iterator[Finding]:
    """A large effective batch with a rate above that of a usual batch starts with a warm-up of at
    least 1 % of the steps."""
    spec = case.spec
    batch, schedule, lr = case.effective_batch, spec.schedule, spec.optimizer.lr
    usual = usual_rate(spec.optimizer, USUAL_BATCH)
    if batch < LARGE_BATCH or lr < usual:
        return
    steps = case.steps
    early = int(SHORTEST_WARMUP * steps)
    reached = [s for s in (0, early) if learning_rate(schedule, 1.0, s, steps) >= FULL_RATE]
    if steps < SHORT_RUN_STEPS or not reached:
        return
    yield Finding(
        ("schedule",),
        f"An effective batch of {batch:,} is at the full learning rate of {lr:g} by step "
        f"{reached[0]:,} of {steps:,}.",
        "The first gradients of a network are its largest; from about "
        f"{LARGE_BATCH:,} samples a step on, steps of {two_digits(usual):g} and more, the usual "
        f"rate of a batch of {USUAL_BATCH}, often diverge without a warm-up.",
        _warmed_up(schedule, steps),
    )


def _warmed_up(schedule: Schedule, steps: int) -> dict[str, Any]:
    """The fields of the warm-up alone, in the unit that they were given in."""
    fraction = max(WARMUP_FRACTION, two_digits(2 / steps))
    if isinstance(schedule, Constant):
        return {"/schedule": {"kind": "linear_warmup", "warmup_fraction": fraction}}
    return _warming_up(schedule, fraction, steps)


def _warming_up(schedule: Schedule, fraction: float, steps: int) -> dict[str, Any]:
    if getattr(schedule, "warmup_steps", None) is not None:
        return {"/schedule/warmup_steps": math.ceil(fraction * steps)}
    return {"/schedule/warmup_fraction": fraction}


@rule(
    "learning.warmup_never_ends",
    severity="warning",
    stands_on="The schedule itself: what falls after the warm-up does not fall within the run.",
)
def warmup_never_ends(case: Case) -> Iterator[Finding]:
    """A warm-up is over before the run is."""
    schedule = case.spec.schedule
    if isinstance(schedule, Constant | Plateau):
        return
    steps = case.steps
    rising = schedule.warmup_steps
    if rising is None:
        rising = int((schedule.warmup_fraction or 0.0) * steps)
    if steps < SHORT_RUN_STEPS or rising < steps:
        return
    usual = type(schedule).model_fields["warmup_fraction"].default
    last = learning_rate(schedule, 1.0, steps - 1, steps)
    name = "fraction" if schedule.warmup_steps is None else "steps"
    yield Finding(
        ("schedule", f"warmup_{name}"),
        f"The warm-up takes {rising:,} steps, and the run has {steps:,}.",
        f"The rate rises to the very end, where it is at {share(last)} of its peak; what makes a "
        "model settle, the fall after the peak, never comes.",
        _warming_up(schedule, usual, steps),
    )


def is_annealed(schedule: Schedule, step: int, steps: int) -> bool:
    """Whether the rate is near its end at a step; a constant rate always is."""
    if isinstance(schedule, Constant):
        return True
    now, then = (learning_rate(schedule, 1.0, min(s, steps - 1), steps) for s in (step, step + 1))
    return now <= ANNEALED and then <= now


def patience_to_anneal(case: Case) -> int | None:
    """The least with which early stopping acts only once the rate has annealed; None where it would
    not act at all then. UnknownFact.
    """
    steps, evaluations = case.steps, case.evaluations

    def anneals(patience: int) -> bool:
        return is_annealed(case.spec.schedule, case.step_of_evaluation(patience + 1), steps)

    able = range(1, evaluations - 1)
    found = bisect_left(able, True, key=anneals)
    return able[found] if found < len(able) else None


@rule(
    "learning.never_anneals",
    severity="warning",
    stands_on="Smith & Topin, 2018; Loshchilov & Hutter, 2017: much of what a schedule gains comes "
    "in its last, annealing part.",
)
def never_anneals(case: Case) -> Iterator[Finding]:
    """Early stopping acts only once the rate is below a tenth of its peak."""
    stopping, schedule = case.spec.early_stopping, case.spec.schedule
    if stopping is None or isinstance(schedule, Constant | Plateau):
        return
    steps, evaluations = case.steps, case.evaluations
    patience = stopping.patience
    if evaluations < patience + 2:
        return  # it cannot act at all: correctness.never_evaluated
    step = case.step_of_evaluation(patience + 1)
    if is_annealed(schedule, step, steps):
        return
    enough = patience_to_anneal(case)
    yield Finding(
        ("early_stopping",),
        f"Early stopping may end the run at step {step:,} of {steps:,}, with the rate at "
        f"{share(learning_rate(schedule, 1.0, step, steps))} of its peak.",
        f"A score often stands still while the rate is high and falls with it, and {patience} of "
        f"{evaluations} evaluations without a better one end the run. The best checkpoint is kept "
        "in any case. "
        + (
            "At a constant rate it may act at any time, and so it may where more evaluations come "
            "after the fall."
            if enough is None
            else f"With a patience of {enough} it acts once the rate is below "
            f"{ANNEALED:.0%}; at a constant rate it may act at any time."
        ),
        {"/early_stopping": None} if enough is None else {"/early_stopping/patience": enough},
    )


RULES = (no_warmup, warmup_never_ends, never_anneals)
