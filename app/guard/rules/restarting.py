"""Rules about restarts: that something is left to train, and at which learning rate it goes on."""

import math
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.rule import Finding, rule
from app.guard.wording import share, two_digits
from app.planning.schedule import LARGEST_JUMP, learning_rate
from app.spec.run import RunSpec


@rule(
    "correctness.nothing_left",
    overridable=False,
    stands_on="A run that carries the whole state goes on from its parent's step to its own last.",
)
def nothing_left(case: Case) -> Iterator[Finding]:
    """A restart that carries the whole state has steps left to train."""
    spec = case.spec
    parent = case.facts.parent
    if parent is None or parent.carried is None or not _same_schedule(spec, parent.spec):
        return
    steps, done = case.steps, parent.carried
    # What failed at its last step has its final evaluation before it.
    if not steps or done.step < steps or (done.step == steps and not done.succeeded):
        return
    # The test at the end is made by the new spec, also when nothing is left to train.
    if case.sizes.test and spec.evaluation != parent.spec.evaluation:
        return
    yield Finding(
        ("training", "epochs" if spec.training.max_steps is None else "max_steps"),
        f"The checkpoint is at step {done.step:,}, and the run would end at step {steps:,}.",
        f"It would end at once, with what its parent has. Give it more than {done.step:,} steps, "
        "or restart from scratch to train anew.",
    )


@rule(
    "learning.rate_jumps_at_restart",
    stands_on="The schedule itself: one cycle with a peak of 1e-3, stretched at step 100 from 130 "
    "to 260 steps, goes from 2.3e-4 to 9.6e-4 in one step.",
)
def rate_jumps_at_restart(case: Case) -> Iterator[Finding]:
    """A restart that carries the whole state goes on with the learning rate that it had."""
    spec = case.spec
    parent = case.facts.parent
    if parent is None or parent.carried is None or not _same_schedule(spec, parent.spec):
        return
    steps, done = case.steps, parent.carried
    if done.step >= steps:
        return
    peak, last = spec.optimizer.lr, min(done.step, done.steps - 1)
    before = learning_rate(spec.schedule, peak, last, done.steps)
    after = learning_rate(spec.schedule, peak, done.step, steps)
    if after <= LARGEST_JUMP * before:
        return
    yield Finding(
        ("training", "epochs"),
        f"At step {done.step:,} the learning rate jumps from {before:.2g} to {after:.2g}.",
        f"The schedule runs over {steps:,} steps now and ran over {done.steps:,}, so weights "
        f"that have annealed get steps of {share(after / peak)} of the full rate. A new, lower "
        f"cycle over the {steps - done.step:,} steps that are still to come carries the weights "
        "and starts the optimizer and the count of steps anew.",
        _lower_cycle(case, steps - done.step),
    )


def _lower_cycle(case: Case, ahead: int) -> dict[str, Any]:
    """A schedule of its own, over the steps that are ahead of the parent's checkpoint."""
    epoch_steps = case.epoch_steps
    fix: dict[str, Any] = {
        "/schedule": {"kind": "cosine_warmup"},
        "/optimizer/lr": two_digits(case.spec.optimizer.lr / 10),
        "/training/epochs": max(1, round(ahead / epoch_steps)),
    }
    if case.spec.training.max_steps is not None:
        fix["/training/max_steps"] = ahead
        fix["/training/epochs"] = math.ceil(ahead / epoch_steps)
    return fix


def _same_schedule(spec: RunSpec, parent: RunSpec) -> bool:
    """Otherwise the schedule starts anew, with the weights alone: as after these rules' own fixes,
    which are judged beside the same parent.
    """
    return (spec.schedule, spec.optimizer) == (parent.schedule, parent.optimizer)


RULES = (nothing_left, rate_jumps_at_restart)
