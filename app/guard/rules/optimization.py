"""Rules about optimizer and schedule: the learning rate, its warm-up, and weight decay."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.rates import USUAL_BATCH, usual_rate
from app.guard.rule import Finding, rule
from app.guard.wording import share, two_digits
from app.planning.schedule import learning_rate
from app.spec.optimization import Adam, Constant, Plateau, Schedule, StochasticAveraging

# Ten times what works widely is too much; less than a thousandth of what works for a usual batch is
# too little for any.
TOO_MUCH, TOO_LITTLE = 10.0, 1e-3
LARGE_BATCH = 1024
WARMUP_FRACTION = 0.05
# Of the rate for new weights: what trained ones are mostly tuned with, and what is too much.
GENTLE, GENTLE_AT_MOST = 0.1, 0.5
# A rise that is over within this share of the steps is no warm-up; so few steps need none.
SHORTEST_WARMUP = 0.01
FULL_RATE = 0.98
SHORT_RUN_STEPS = 20


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
    "learning.pretrained_rate",
    severity="warning",
    stands_on="Howard & Ruder, Universal language model fine-tuning, 2018, section 3.2: weights "
    "that were trained already forget at the rate of new ones.",
)
def pretrained_rate(case: Case) -> Iterator[Finding]:
    """Weights that were trained before are tuned at less than half the rate of new ones."""
    optimizer = case.spec.optimizer
    source = case.facts.source
    goes_on = source is not None and not source.is_needed
    if case.spec.init_from is None or goes_on or optimizer.backbone_lr is not None:
        return
    usual = usual_rate(optimizer, case.effective_batch)
    if optimizer.lr < GENTLE_AT_MOST * usual:
        return
    gentle = two_digits(GENTLE * usual)
    yield Finding(
        ("optimizer", "lr"),
        "The run begins with trained weights (init_from), and its learning rate of "
        f"{optimizer.lr:g} is one for new weights, which usually take {two_digits(usual):g}.",
        "At so high a rate they lose in the first steps what they have learned. A tenth of what "
        f"new weights take, {gentle:g}, is usual.",
        {"/optimizer/lr": gentle},
    )


@rule(
    "learning.backbone_lr_above_lr",
    severity="warning",
    stands_on="Howard & Ruder, Universal language model fine-tuning, 2018, section 3.2: rates fall "
    "from the last layers to the first.",
)
def backbone_lr_above_lr(case: Case) -> Iterator[Finding]:
    """What was trained before learns no faster than what is new."""
    optimizer = case.spec.optimizer
    if optimizer.backbone_lr is not None and optimizer.backbone_lr > optimizer.lr:
        yield Finding(
            ("optimizer", "backbone_lr"),
            f"The backbone's rate of {optimizer.backbone_lr:g} is above that of all other weights, "
            f"{optimizer.lr:g}.",
            "A backbone mostly has weights that were trained before, which a high rate spoils "
            "while new heads still give it gradients of no meaning.",
            {"/optimizer/backbone_lr": two_digits(GENTLE * optimizer.lr)},
        )


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
    if isinstance(schedule, Constant | Plateau):
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


@rule(
    "correctness.plateau_never_acts",
    overridable=False,
    stands_on="A plateau is one of validation scores: the first is the best so far, and what comes "
    "at the end lowers no rate any more.",
)
def plateau_never_acts(case: Case) -> Iterator[Finding]:
    """A plateau schedule has evaluations to watch, more than its patience."""
    schedule, wanted = case.spec.schedule, case.spec.evaluation
    if not isinstance(schedule, Plateau):
        return
    other = {"/schedule": {"kind": "cosine_warmup"}}
    if not case.sizes.validation:
        yield Finding(
            ("schedule",),
            "A plateau schedule watches a validation metric, but the validation part is empty.",
            f"The rate would stay at {case.spec.optimizer.lr:g}: nothing says when to lower it.",
            other,
        )
    elif wanted.every_epochs is None and wanted.every_steps is None:
        yield Finding(
            ("evaluation",),
            "A plateau schedule watches a validation metric, but nothing is evaluated before the "
            "end.",
            f"The rate would stay at {case.spec.optimizer.lr:g} to the last step.",
            _evaluated_each_epoch(case, schedule) or other,
        )
    elif (looks := _looks(case)) < schedule.patience + 2:
        lower = {"/schedule/patience": looks - 2} if looks >= 2 else {}
        yield Finding(
            ("schedule", "patience"),
            f"A plateau schedule with a patience of {schedule.patience:,} can never lower the rate "
            f"here: it needs {schedule.patience + 2:,} evaluations {_in_time(case)}, and there "
            f"{'is' if looks == 1 else 'are'} {looks or 'none'}.",
            "The first evaluation is the best so far, and the rate falls once "
            f"{schedule.patience + 1:,} more are no better.",
            lower or _evaluated_each_epoch(case, schedule) or other,
            severity="warning",
        )


def _evaluated_each_epoch(case: Case, schedule: Plateau) -> dict[str, Any]:
    """With a patience that these evaluations are enough for; empty where none is."""
    each_epoch = {"/evaluation/every_epochs": 1}
    looks = _looks(case.with_values(each_epoch))
    if looks < 2:
        return {}
    shorter = {"/schedule/patience": looks - 2} if looks < schedule.patience + 2 else {}
    return each_epoch | shorter


def _in_time(case: Case) -> str:
    averaging = case.spec.averaging
    if isinstance(averaging, StochasticAveraging):
        return f"before SWA sets the rate in epoch {averaging.start_epoch:,}"
    return "before the end of the run"


def _looks(case: Case) -> int:
    """Evaluations after which a plateau may lower the rate of steps to come; UnknownFact."""
    averaging, end = case.spec.averaging, case.steps
    if isinstance(averaging, StochasticAveraging):
        end = min(end, (averaging.start_epoch - 1) * case.epoch_steps)
    numbers = range(1, case.evaluations + 1)
    return bisect_left(numbers, end, key=case.step_of_evaluation)
