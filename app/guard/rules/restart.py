"""Rules about restarts that carry the whole state: steps that are left, and their learning rate."""

import math
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.rule import Finding, rule
from app.guard.wording import share, two_digits
from app.planning.schedule import LARGEST_JUMP, run_rate
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
    # Without commas: they are typed back.
    epochs = done.step // max(1, case.epoch_steps) + 1
    field, least = "epochs", epochs
    fix: dict[str, Any] = {"/training/epochs": max(epochs, spec.training.epochs)}
    most_steps = spec.training.max_steps
    if most_steps is not None and most_steps <= steps:
        field, least = "max_steps", done.step + 1
        fix["/training/max_steps"] = least
    how = f"set it to {least} or more to go on"
    # By one step more the rate hardly jumps: "or more" has to hold as well.
    twice = case.with_values({path: 2 * value for path, value in fix.items()})
    if any(rate_jumps_at_restart(twice)):
        fix = _lower_rate(spec)
        how = (
            "with more of them the learning rate would jump, so the fix takes the weights and "
            "trains as long again with a new, lower cycle"
        )
    yield Finding(
        ("training", field),
        f"The checkpoint is at step {done.step}, and the run would end at step {steps}.",
        f"It would end at once, with what its parent has. training.{field} counts what is done as "
        f"well: {how}. A restart from scratch trains anew.",
        fix,
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
    before = run_rate(spec, last, done.steps, case.epoch_steps)
    after = run_rate(spec, done.step, steps, case.epoch_steps)
    if after <= LARGEST_JUMP * before:
        return
    fix = _lower_cycle(case, steps - done.step)
    yield Finding(
        ("training", "epochs"),
        f"At step {done.step:,} the learning rate jumps from {before:.2g} to {after:.2g}.",
        f"The schedule runs over {steps:,} steps now and ran over {done.steps:,}, so weights "
        f"that have annealed get steps of {share(after / peak)} of the full rate. A new, lower "
        f"cycle over the {steps - done.step:,} steps that are still to come carries the weights "
        "and starts the optimizer and the count of steps anew. "
        f"{_counted_anew(spec.training.max_steps, fix)}",
        fix,
    )


def _counted_anew(max_steps: int | None, fix: dict[str, Any]) -> str:
    """What the number in the fix counts, which is less than the one that was asked for."""
    field = "epochs" if max_steps is None else "max_steps"
    return (
        f"In the fix training.{field} is therefore {fix[f'/training/{field}']}: what is still to "
        "come, without what the checkpoint already has."
    )


def _lower_rate(spec: RunSpec) -> dict[str, Any]:
    return {
        "/schedule": {"kind": "cosine_warmup"},
        "/optimizer/lr": two_digits(spec.optimizer.lr / 10),
    }


def _lower_cycle(case: Case, ahead: int) -> dict[str, Any]:
    """A schedule of its own, over the steps that are ahead of the parent's checkpoint."""
    epoch_steps = case.epoch_steps
    fix: dict[str, Any] = {
        **_lower_rate(case.spec),
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
