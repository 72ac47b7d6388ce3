"""Rules about the optimization: batches, steps, rates, decay, and the time that it has."""

import math
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.rates import USUAL_BATCH, usual_rate
from app.guard.rule import Finding, rule
from app.guard.wording import duration, share, two_digits
from app.planning.arithmetic import total_steps
from app.spec.optimization import Adam

# Ten times what works widely is too much; less than a thousandth of what works for a usual batch is
# too little for any.
TOO_MUCH, TOO_LITTLE = 10.0, 1e-3
MOST_DROPPED = 0.01
# A run of fewer steps learns little, whatever its samples are.
FEW_STEPS = 50
ACCUMULATION = "/training/gradient_accumulation_steps"


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
    "learning.rate_beyond_batch",
    severity="warning",
    stands_on="Malladi et al., 2022 (square-root scaling for Adam); Goyal et al., 2017 (linear "
    "scaling for SGD).",
)
def rate_beyond_batch(case: Case) -> Iterator[Finding]:
    """The learning rate is within ten times of what scales with the batch."""
    spec = case.spec
    batch, lr = case.effective_batch, spec.optimizer.lr
    usual = usual_rate(spec.optimizer, batch)
    if lr > TOO_MUCH * usual:
        yield Finding(
            ("optimizer", "lr"),
            f"A learning rate of {lr:g} is {lr / usual:,.0f} times what usually works for an "
            f"effective batch of {batch:,}.",
            f"{spec.optimizer.kind} is used with about {two_digits(usual):g} there; far above it, "
            "the loss rises or becomes NaN.",
            {"/optimizer/lr": two_digits(usual)},
        )


@rule(
    "learning.rate_too_low",
    severity="warning",
    stands_on="A step of Adam moves a weight by about the rate (Kingma & Ba, 2015, section 2.1), "
    "one of SGD by the rate times a gradient that is mostly below 1.",
)
def rate_too_low(case: Case) -> Iterator[Finding]:
    """The learning rate is at least a thousandth of what works for a usual batch."""
    spec = case.spec
    lr, least = spec.optimizer.lr, TOO_LITTLE * usual_rate(spec.optimizer, USUAL_BATCH)
    if lr >= least:
        return
    steps, usual = case.steps, usual_rate(spec.optimizer, case.effective_batch)
    yield Finding(
        ("optimizer", "lr"),
        f"With a learning rate of {lr:g}, all {steps:,} steps together move a weight by about "
        f"{two_digits(lr * steps):g} at most.",
        "Weights begin at about 0.1, so the score would stay that of a model that was not trained. "
        f"{spec.optimizer.kind} is used with about {two_digits(usual):g} for an effective batch of "
        f"{case.effective_batch:,}, and with a hundredth of that to fine-tune.",
        {"/optimizer/lr": two_digits(usual)},
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
    "learning.adam_weight_decay",
    severity="warning",
    stands_on="Loshchilov & Hutter, Decoupled weight decay regularization, 2019.",
)
def adam_weight_decay(case: Case) -> Iterator[Finding]:
    """Weight decay is given to adamw, not to adam."""
    spec = case.spec
    if isinstance(spec.optimizer, Adam) and spec.optimizer.weight_decay > 0:
        yield Finding(
            ("optimizer", "weight_decay"),
            f"adam takes a weight decay of {spec.optimizer.weight_decay:g} as an L2 penalty.",
            "Adam divides the penalty by the gradient's size, so weights with large gradients "
            "hardly decay; adamw decays all alike.",
            {"/optimizer/kind": "adamw"},
        )


@rule(
    "learning.ends_before_its_epochs",
    severity="warning",
    stands_on="The iterations a second of like runs in this service's own history.",
)
def ends_before_its_epochs(case: Case) -> Iterator[Finding]:
    """max_duration_seconds is enough for the epochs that are asked for."""
    limit = case.spec.policy.max_duration_seconds
    if limit is None:
        return
    history = case.like_runs
    steps = case.steps
    seconds = case.training_seconds
    if seconds <= limit:
        return
    yield Finding(
        ("policy", "max_duration_seconds"),
        f"The run would need about {duration(seconds)} and is ended after {duration(limit)}.",
        f"Like runs do {history.iterations_per_second:.3g} it/s; with evaluations and checkpoints "
        f"it would end at about {share(limit / seconds)} of its {steps:,} steps, with the learning "
        "rate of that place.",
        {"/policy/max_duration_seconds": math.ceil(seconds * 1.2)},
    )


RULES = (
    batch_above_samples,
    drop_last_drops,
    accumulation_beyond_epoch,
    few_steps,
    rate_beyond_batch,
    rate_too_low,
    adam_weight_decay,
    ends_before_its_epochs,
)
