"""Rules about the optimization: rates, warm-up, decay, accumulation, and when it ends."""

import math
from collections.abc import Iterator
from typing import Any

from app.guard.derived import effective_batch, looks_of, sizes_of, steps_of
from app.guard.estimate import training_seconds
from app.guard.facts import Facts, known
from app.guard.rule import Finding, rule
from app.guard.wording import duration, share, two_digits
from app.spec.optimization import SGD, Adam, Constant, OneCycle, Optimizer, Schedule
from app.spec.run import RunSpec
from app.spec.schedule import learning_rate
from app.spec.training import Training

LARGE_BATCH = 1024
USUAL_BATCH: int = Training.model_fields["batch_size"].default
WARMUP_FRACTION = 0.05
# A rise that is over within this share of the steps is no warm-up; a run of so few steps is a trial
# that needs none.
SHORTEST_WARMUP = 0.01
FULL_RATE = 0.98
TRIAL_STEPS = 20
# Rates that work widely: for Adam at a batch of 128, by the square root of the batch (Malladi et
# al., 2022); for SGD at a batch of 256, linearly (Goyal et al., 2017). Ten times them is too much.
ADAM_RATE, ADAM_BATCH = 1e-3, 128
SGD_RATE, SGD_BATCH = 0.1, 256
TOO_MUCH = 10.0
MOST_DROPPED = 0.01


@rule(
    "learning.batch_above_samples",
    stands_on="A batch larger than the part is the part: full-batch descent, one step an epoch.",
)
def batch_above_samples(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A batch has at most as many samples as the training part."""
    training, batch = sizes_of(spec, facts).training, spec.training.batch_size
    if 0 < training < batch:
        yield Finding(
            ("training", "batch_size"),
            f"A batch of {batch:,} is larger than the training part of {training:,} samples.",
            f"Every epoch would be one step over {training:,} samples, and memory would be kept "
            f"for {batch:,}.",
            {"/training/batch_size": min(USUAL_BATCH, training)},
        )


@rule(
    "learning.drop_last_drops",
    stands_on="Samples left out are samples not learned from.",
)
def drop_last_drops(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """drop_last leaves out at most 1 % of an epoch."""
    training = sizes_of(spec, facts).training
    dropped = training % spec.training.batch_size
    if not spec.training.drop_last or not training or dropped / training <= MOST_DROPPED:
        return
    yield Finding(
        ("training", "drop_last"),
        f"drop_last leaves out {dropped:,} of {training:,} samples in every epoch.",
        f"{share(dropped / training)} of the data is paid for and not used; a smaller last batch "
        "costs nothing here.",
        {"/training/drop_last": False},
    )


@rule(
    "learning.accumulation_beyond_epoch",
    stands_on="A step ends with its epoch: what is accumulated beyond it never comes.",
)
def accumulation_beyond_epoch(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A step accumulates at most one epoch's batches."""
    training, wanted = sizes_of(spec, facts).training, spec.training.gradient_accumulation_steps
    whole, rest = divmod(training, spec.training.batch_size)
    batches = whole if spec.training.drop_last or not rest else whole + 1
    if 0 < batches < wanted:
        yield Finding(
            ("training", "gradient_accumulation_steps"),
            f"{wanted} batches are to be accumulated, and an epoch has {batches}.",
            f"Every epoch would be one step over its {batches} batches, not over {wanted}.",
            {"/training/gradient_accumulation_steps": batches},
        )


@rule(
    "learning.no_warmup",
    stands_on="Goyal et al., Accurate, large minibatch SGD, 2017: large batches diverge without "
    "warm-up.",
)
def no_warmup(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A large effective batch starts with a warm-up of at least 1 % of the steps."""
    batch, schedule = effective_batch(spec), spec.schedule
    if batch < LARGE_BATCH:
        return
    steps = steps_of(spec, facts)
    early = int(SHORTEST_WARMUP * steps)
    reached = [s for s in (0, early) if learning_rate(schedule, 1.0, s, steps) >= FULL_RATE]
    if steps < TRIAL_STEPS or not reached:
        return
    yield Finding(
        ("schedule",),
        f"An effective batch of {batch:,} is at the full learning rate of {spec.optimizer.lr:g} "
        f"by step {reached[0]:,} of {steps:,}.",
        f"The first gradients of a network are its largest; from about {LARGE_BATCH:,} samples a "
        "step on, steps of full size often diverge.",
        _warmed_up(schedule, steps),
    )


def _warmed_up(schedule: Schedule, steps: int) -> dict[str, Any]:
    """The fields of the warm-up alone, in the unit that they were given in."""
    fraction = max(WARMUP_FRACTION, two_digits(2 / steps))
    if isinstance(schedule, Constant):
        return {"/schedule": {"kind": "linear_warmup", "warmup_fraction": fraction}}
    if getattr(schedule, "warmup_steps", None) is not None:
        return {"/schedule/warmup_steps": math.ceil(fraction * steps)}
    return {"/schedule/warmup_fraction": fraction}


@rule(
    "learning.rate_beyond_batch",
    severity="warning",
    stands_on="Malladi et al., 2022 (square-root scaling for Adam); Goyal et al., 2017 (linear "
    "scaling for SGD).",
)
def rate_beyond_batch(spec: RunSpec, _: Facts) -> Iterator[Finding]:
    """The learning rate is within ten times of what scales with the batch."""
    batch, lr = effective_batch(spec), spec.optimizer.lr
    usual = _usual_rate(spec.optimizer, batch)
    if lr > TOO_MUCH * usual:
        yield Finding(
            ("optimizer", "lr"),
            f"A learning rate of {lr:g} is {lr / usual:,.0f} times what usually works for an "
            f"effective batch of {batch:,}.",
            f"{spec.optimizer.kind} is used with about {two_digits(usual):g} there; far above it, "
            "the loss rises or becomes NaN.",
            {"/optimizer/lr": two_digits(usual)},
        )


def _usual_rate(optimizer: Optimizer, batch: int) -> float:
    if isinstance(optimizer, SGD):
        return SGD_RATE * batch / SGD_BATCH
    return ADAM_RATE * math.sqrt(batch / ADAM_BATCH)


@rule(
    "learning.adam_weight_decay",
    stands_on="Loshchilov & Hutter, Decoupled weight decay regularization, 2019.",
)
def adam_weight_decay(spec: RunSpec, _: Facts) -> Iterator[Finding]:
    """Weight decay is given to adamw, not to adam."""
    if isinstance(spec.optimizer, Adam) and spec.optimizer.weight_decay > 0:
        yield Finding(
            ("optimizer", "weight_decay"),
            f"adam takes a weight decay of {spec.optimizer.weight_decay:g} as an L2 penalty.",
            "Adam divides the penalty by the gradient's size, so weights with large gradients "
            "hardly decay; adamw decays all alike.",
            {"/optimizer/kind": "adamw"},
        )


@rule(
    "learning.never_anneals",
    stands_on="Smith & Topin, 2018: the gain of one cycle lies in its last, annealing part.",
)
def never_anneals(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A one-cycle schedule is trained to its end."""
    if not isinstance(spec.schedule, OneCycle) or spec.early_stopping is None:
        return
    steps, looks = steps_of(spec, facts), looks_of(spec, sizes_of(spec, facts))
    patience, every = spec.early_stopping.patience, spec.evaluation.every_epochs
    if looks < patience + 2:
        return  # the first look is the best so far, and at the last one the run ends anyway
    yield Finding(
        ("early_stopping",),
        "Early stopping ends a one-cycle schedule before it has annealed.",
        f"The rate falls to its end only at step {steps:,}; the validation score often stands "
        f"still while it is high, and {patience} of {looks} evaluations"
        + (f" ({patience * every} epochs)" if every else "")
        + " of that end the run. The best checkpoint is kept in any case.",
        {"/early_stopping": None},
    )


@rule(
    "learning.ends_before_its_epochs",
    stands_on="The iterations a second of like runs in this service's own history.",
)
def ends_before_its_epochs(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """max_duration_seconds is enough for the epochs that are asked for."""
    limit = spec.policy.max_duration_seconds
    if limit is None:
        return
    history = known(facts.history, "how fast runs like it are")
    steps = steps_of(spec, facts)
    seconds = training_seconds(spec, sizes_of(spec, facts), history)
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
    no_warmup,
    rate_beyond_batch,
    adam_weight_decay,
    never_anneals,
    ends_before_its_epochs,
)
