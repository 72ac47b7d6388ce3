"""Rules about training: batches that fit, samples that count, and steps that are enough."""

from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.memory.fitting import (
    MOST_PARTS,
    fits_well,
    fitting,
    fitting_batch,
    largest_chunk,
)
from app.guard.memory.memory_plan import MemoryPlan
from app.guard.rates import USUAL_BATCH
from app.guard.rule import Finding, rule
from app.guard.rules.loader import nothing_left_for_data
from app.guard.wording import largest_items, one_of, share, size
from app.planning.arithmetic import total_steps

MOST_DROPPED = 0.01
# A run of fewer steps learns little, whatever its samples are.
FEW_STEPS = 50
ACCUMULATION = "/training/gradient_accumulation_steps"
# A batch is far too small for a GPU where a larger one makes so many times as many samples a second
# and leaves so much of its memory free.
MORE_SAMPLES, MOST_FILLED = 1.5, 0.5
LARGEST_BATCH = 1_048_576  # as the schema has it
MEASURED = (
    "The memory plan: what is exact, and what like runs or a probe were measured to take "
    "(docs/memory.md)."
)


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
        yield _slots_over(case, plan)
        return
    if not budget.is_over and plan.ran_out is None:
        return
    fix = fitting(case)
    other = "" if fix else f" {_what_would_fit(case)}"
    if not budget.is_over and (probe := plan.ran_out) is not None:
        message = (
            f"{probe.who.capitalize()} made a step with a batch of {probe.batch_size:,} and ran "
            "out of memory."
        )
    else:
        device = case.device
        where = "host, beside the trainer's imports" if plan.device is None else device.name
        message = (
            f"The run would take at least {size(budget.least_bytes)}, and "
            f"{size(budget.available_bytes or 0)} are available on the {where}."
        )
    yield Finding(
        ("training", "batch_size"),
        message,
        f"It would run out of memory. {largest_items(budget)}{_by_whom(plan)}{other}",
        fix,
    )


def _slots_over(case: Case, plan: MemoryPlan) -> Finding:
    """More than the trainer, which keeps a reserve for the model, would begin with."""
    limit, loc = plan.data_memory.limit_bytes, ("data", "loader", "chunk_size")
    asked = getattr(case.spec.data.loader, "chunk_size", "auto")
    if not limit:
        return nothing_left_for_data(case, loc)
    return Finding(
        loc,
        f"Chunks of {asked} make slots of {size(plan.data.needed_bytes)}; {size(limit)} may be "
        "used for them.",
        "A part of the data that is not read at once has two slots, one in use and one being "
        "filled; what they leave has to hold model, optimizer and activations.",
        _smaller_chunk(case, limit),
    )


def _smaller_chunk(case: Case, limit: int) -> dict[str, Any]:
    for size_asked in ("75%", "auto"):
        values = {"/data/loader/chunk_size": size_asked}
        plan = case.with_values(values).memory
        if plan.data.needed_bytes <= limit and plan.fits and plan.data.holds(plan.batch):
            return values
    return largest_chunk(case) or {}


def _by_whom(plan: MemoryPlan) -> str:
    """Who measured what the plan has of activations."""
    if plan.profile is None:
        return " This is the exact part alone: activations come on top."
    return f" Activations as measured: {plan.profile.points[0].who}."


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
    if not 0 < training < batch:
        return
    why = (
        f"Every epoch would be one step over {training:,} samples, and memory would be kept "
        f"for {batch:,}."
    )
    fix: dict[str, Any] = {"/training/batch_size": training}
    if case.spec.training.max_steps is None and 0 < case.steps < FEW_STEPS:
        why += f" The whole run would have {_counted(case.steps, 'step')}, too few to learn much."
        fix |= _more_steps(case)
    yield Finding(
        ("training", "batch_size"),
        f"A batch of {batch:,} is larger than the training part of {training:,} samples.",
        why,
        fix,
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
    if plan.unknown or not fits_well(plan):
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
    "speed.batch_too_small",
    severity="warning",
    stands_on="Samples a second of steps alone with both batches, as like runs or a probe made "
    "them. Timing it needs a GPU; not timed here.",
)
def batch_too_small(case: Case) -> Iterator[Finding]:
    """A batch is not far too small for its GPU: one that leaves half of its memory free, and was
    measured, makes at most 1.5 times as many samples a second."""
    training, device = case.spec.training, case.device
    profile = None if device.kind == "cpu" else case.memory.profile
    rates = {} if profile is None else profile.rates
    own = rates.get(training.batch_size)
    larger = [n for n in rates if training.batch_size < n <= case.sizes.training]
    if own is None or not larger:
        return
    best = max(larger, key=lambda batch: rates[batch])
    fix = _of_larger_batches(case, best)
    plan = case.with_values(fix).memory
    free = device.memory_bytes or 0
    is_roomy = not plan.unknown and plan.with_model.peak_bytes <= MOST_FILLED * free
    if rates[best] < MORE_SAMPLES * own or not is_roomy or not plan.fits:
        return
    yield Finding(
        ("training", "batch_size"),
        f"Batches of {best:,} were measured to make {rates[best] / own:,.1f} times as many samples "
        f"a second as those of {training.batch_size:,}.",
        f"{rates[best]:,.0f} a second and not {own:,.0f}, in {size(plan.with_model.peak_bytes)} of "
        f"{size(free)}: the GPU waits for each small step to be launched. {_of_rates(case, fix)}",
        fix,
    )


def _of_larger_batches(case: Case, batch: int) -> dict[str, Any]:
    """Steps of as many samples where they can be cut into such batches; else of one batch."""
    parts, rest = divmod(case.effective_batch, batch)
    steps = max(1, parts) if not rest else 1
    fix = {"/training/batch_size": batch, ACCUMULATION: steps}
    return {k: v for k, v in fix.items() if getattr(case.spec.training, k.split("/")[-1]) != v}


def _of_rates(case: Case, fix: dict[str, Any]) -> str:
    if case.with_values(fix).effective_batch == case.effective_batch:
        return "A step has as many samples as before, so what is learned stays."
    return (
        "A step of more samples is another training: it may want a larger learning rate, for Adam "
        "by the square root of the batch."
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
    # A batch above the samples is told of by itself, with a smaller one that makes enough steps.
    if training.batch_size > samples or not _has_few_steps(case):
        return
    together = f"{batch:,}" if batch < samples else "all of them"
    yield Finding(
        ("training",),
        f"The whole run has {_counted(case.steps, 'step')}, {_counted(training.epochs, 'epoch')} "
        f"of {samples:,} samples with {together} in each step.",
        "Each step moves a weight by about the learning rate: so few hardly change a model, and "
        "its forecast may stay the mean of the target. More epochs, or smaller batches, give more "
        "steps.",
        _more_steps(case),
    )


def _has_few_steps(case: Case) -> bool:
    is_large = case.spec.training.max_steps is None and case.effective_batch > USUAL_BATCH
    return is_large and 0 < case.steps < FEW_STEPS


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


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
