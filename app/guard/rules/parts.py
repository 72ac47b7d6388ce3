"""Rules about the parts of a dataset: something to train on, and to measure on where it counts."""

import math
from collections.abc import Iterator

from app.guard.case import Case
from app.guard.rule import Finding, rule
from app.guard.wording import share

LARGEST_HELD_OUT = 0.25


@rule(
    "correctness.empty_part",
    overridable=False,
    stands_on="A part of no sample has no score; the share was asked for in vain.",
)
def empty_part(case: Case) -> Iterator[Finding]:
    """A validation or test part that is asked for has at least one sample."""
    sizes = case.sizes
    for name in ("validation", "test"):
        fraction = getattr(case.spec.data.split, f"{name}_fraction", 0.0)
        if fraction > 0 and getattr(sizes, name) == 0:
            yield Finding(
                ("data", "split", f"{name}_fraction"),
                f"{fraction:g} of {sum(sizes)} samples is none, so the {name} part is empty.",
                "There would be nothing to measure on.",
                {f"/data/split/{name}_fraction": 0.0},
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


@rule(
    "correctness.no_validation",
    overridable=False,
    stands_on="Early stopping compares validation scores.",
)
def no_validation(case: Case) -> Iterator[Finding]:
    """Early stopping has a validation part to watch."""
    sizes = case.sizes
    if sizes.validation == 0 and case.spec.early_stopping is not None:
        yield Finding(
            ("early_stopping",),
            "Early stopping watches a validation metric, but the validation part is empty.",
            f"The split leaves 0 of {sum(sizes)} samples for validation.",
            {"/early_stopping": None},
        )


@rule(
    "learning.small_part",
    severity="warning",
    stands_on="The standard error of a mean falls with the square root of the samples.",
)
def small_part(case: Case) -> Iterator[Finding]:
    """What is evaluated has at least as many samples as a batch, or 400."""
    sizes, wanted = case.sizes, case.enough_samples
    looked = case.evaluated_samples
    if 0 < looked < min(wanted, sizes.validation):
        yield Finding(
            ("evaluation", "max_batches"),
            f"An evaluation looks at {looked:,} of {sizes.validation:,} samples, fewer than "
            f"{wanted:,}.",
            _by_chance(looked),
            {"/evaluation/max_batches": math.ceil(wanted / case.evaluation_batch)},
        )
    if wanted > sum(sizes) * LARGEST_HELD_OUT:
        return  # of such a dataset no part can have as many
    for name in ("validation", "test"):
        samples = getattr(sizes, name)
        if not 0 < samples < wanted:
            continue
        field = f"{name}_fraction"
        enough = math.ceil(wanted / sum(sizes) * 1_000) / 1_000
        yield Finding(
            ("data", "split", field) if hasattr(case.spec.data.split, field) else ("data", "split"),
            f"The {name} part has {samples:,} samples, fewer than {wanted:,}.",
            _by_chance(samples),
            {f"/data/split/{field}": enough} if hasattr(case.spec.data.split, field) else {},
        )


def _by_chance(samples: int) -> str:
    return (
        f"A score over {samples:,} {'sample' if samples == 1 else 'samples'} is off by about "
        f"{share(samples**-0.5)} of their spread by chance alone; checkpoints that are closer than "
        "that cannot be told apart."
    )


RULES = (empty_part, no_training_steps, no_validation, small_part)
