"""Rules about training: batches that fit, samples that count, and steps that are left."""

import math
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.memory.fitting import MOST_PARTS, fits_well, fitting, fitting_batch
from app.guard.rates import USUAL_BATCH
from app.guard.rule import Finding, rule
from app.guard.rules.loader import slots_over
from app.guard.wording import largest_items, one_of, share, size, two_digits
from app.planning.arithmetic import total_steps
from app.planning.schedule import LARGEST_JUMP, learning_rate
from app.spec.run import RunSpec

MOST_DROPPED = 0.01
# A run of fewer steps learns little, whatever its samples are.
FEW_STEPS = 50
ACCUMULATION = "/training/gradient_accumulation_steps"
LARGEST_BATCH = 1_048_576  # as the schema has it
MEASURED = "The memory plan, which is held against measured peaks: docs/memory.md."


@rule(
    "correctness.no_training_steps",
    overridable=False,
    stands_on="An epoch without a step trains nothing.",
)
def no_training_steps(case: Case) -> Iterator[Finding]:
    """An epoch has at least one step."""
    training, batch = case.sizes.training, case.spec.training.batch_size
    if training and case.epoch_steps:
        return
    yield Finding(
        ("training", "batch_size"),
        f"An epoch of {training} training samples in batches of {batch} has no step.",
        "With drop_last the only, smaller batch is left out."
        if training
        else "The training part is empty.",
        {"/training/drop_last": False} if training else {},
    )


@rule("memory.over_budget", stands_on=MEASURED)
def over_budget(case: Case) -> Iterator[Finding]:
    """Model, batch and data fit into what is free on the device, beside the runs that are there,
    and the slots of chunks into what the trainer gives to data."""
    case = case.read_in_trainer  # of which loader_over_budget tells
    plan = case.memory
    budget = plan.with_model
    if plan.data.kind == "stream" and plan.data.needed_bytes > plan.data_memory.limit_bytes:
        yield slots_over(case, plan)
        return
    if not budget.is_over:
        return
    device = case.device
    where = "host, beside the trainer's imports" if plan.device is None else device.name
    least, tried = "", ""
    if plan.measured is not None and plan.measured.ran_out is not None:
        least, tried = "at least ", f" One step was tried: {plan.measured.ran_out[2]}"
    fix = fitting(case)
    other = "" if fix else f" {_what_would_fit(case)}"
    yield Finding(
        ("training", "batch_size"),
        f"The run would take {least}{size(budget.peak_bytes)}, and "
        f"{size(budget.available_bytes or 0)} are available on the {where}.",
        f"It would run out of memory. {largest_items(budget)}{tried}{other}",
        fix,
    )


def _what_would_fit(case: Case) -> str:
    """What is left where no change fits that keeps the effective batch."""
    batch = fitting_batch(case)
    if batch is None:
        return "A batch of one sample does not fit either."
    return (
        f"No smaller chunk fits, and no cut of the batch into at most {MOST_PARTS} equal parts. "
        f"A batch of {batch:,} does, but it would be another training."
    )


@rule(
    "learning.batch_above_samples",
    severity="warning",
    stands_on="A batch larger than the part is the part: full-batch descent, one step an epoch.",
)
def batch_above_samples(case: Case) -> Iterator[Finding]:
    """A batch has at most as many samples as the training part."""
    training, batch = case.sizes.training, case.spec.training.batch_size
    if 0 < training < batch:
        yield Finding(
            ("training", "batch_size"),
            f"A batch of {batch:,} is larger than the training part of {training:,} samples.",
            f"Every epoch would be one step over {training:,} samples, and memory would be kept "
            f"for {batch:,}.",
            {"/training/batch_size": training},
        )


@rule(
    "learning.drop_last_drops",
    severity="warning",
    stands_on="Samples left out are samples not learned from.",
)
def drop_last_drops(case: Case) -> Iterator[Finding]:
    """drop_last leaves out at most 1 % of an epoch."""
    training = case.sizes.training
    dropped = training % case.spec.training.batch_size
    if not case.spec.training.drop_last or not training or dropped / training <= MOST_DROPPED:
        return
    yield Finding(
        ("training", "drop_last"),
        f"drop_last leaves out {dropped:,} of {training:,} samples in every epoch.",
        f"{share(dropped / training)} of the data is not learned from; a smaller last batch costs "
        "nothing here.",
        {"/training/drop_last": False},
    )


@rule(
    "learning.accumulation_beyond_epoch",
    stands_on="A step ends with its epoch: what is accumulated beyond it never comes.",
)
def accumulation_beyond_epoch(case: Case) -> Iterator[Finding]:
    """A step accumulates at most one epoch's batches."""
    spec = case.spec
    training, wanted = case.sizes.training, spec.training.gradient_accumulation_steps
    whole, rest = divmod(training, spec.training.batch_size)
    batches = whole if spec.training.drop_last or not rest else whole + 1
    if 0 < batches < wanted:
        yield Finding(
            ("training", "gradient_accumulation_steps"),
            f"{wanted} batches are to be accumulated, and an epoch has {batches}.",
            f"Every epoch would be one step over its {batches} batches, not over {wanted}.",
            {ACCUMULATION: batches},
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


@rule(
    "learning.few_steps",
    severity="warning",
    stands_on="Masters & Luschi, 2018: at a given number of epochs, a larger batch takes fewer "
    "steps, and reaches less.",
)
def few_steps(case: Case) -> Iterator[Finding]:
    """A run that is no trial has 50 steps or more, also where its batches are large."""
    training, samples, batch = case.spec.training, case.sizes.training, case.effective_batch
    steps = case.steps
    if training.max_steps is not None or batch <= USUAL_BATCH or not 0 < steps < FEW_STEPS:
        return
    epochs = f"{training.epochs:,} {'epoch' if training.epochs == 1 else 'epochs'}"
    yield Finding(
        ("training",),
        f"The whole run has {steps:,} {'step' if steps == 1 else 'steps'}, {epochs} of "
        f"{samples:,} samples with {min(batch, samples):,} in each step.",
        "Each step moves a weight by about the learning rate: so few hardly change a model, and "
        "its forecast may stay the mean of the target. More epochs, or smaller batches, give more "
        "steps.",
        _more_steps(case),
    )


def _more_steps(case: Case) -> dict[str, Any]:
    """The largest batch that makes enough steps of as many epochs; more epochs where none does."""
    training, samples, batch = case.spec.training, case.sizes.training, case.effective_batch
    for power in reversed(range(5, (batch - 1).bit_length())):
        fewer = training.model_copy(
            update={"batch_size": 2**power, "gradient_accumulation_steps": 1}
        )
        if total_steps(fewer, samples) >= FEW_STEPS:
            alone = {} if training.gradient_accumulation_steps == 1 else {ACCUMULATION: 1}
            return {"/training/batch_size": 2**power, **alone}
    return {"/training/epochs": -(-FEW_STEPS // case.epoch_steps)}


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
