"""Rules about averaged weights: something enters the average, and what enters it is trained."""

from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.rule import Finding, rule
from app.guard.wording import share, two_digits
from app.spec.optimization import ExponentialAveraging, StochasticAveraging

WITHOUT: dict[str, Any] = {"/averaging": {"kind": "none"}}
# SWA takes the last quarter of a run (Izmailov et al., 2018, section 4.1).
STARTS_AT = 0.75
# Largest share of first weights in an average that is not worth a warning.
MOST_OF_FIRST = 0.05


@rule(
    "learning.averages_nothing",
    stands_on="Weights enter the average of SWA at the ends of epochs from averaging.start_epoch "
    "on.",
)
def averages_nothing(case: Case) -> Iterator[Finding]:
    """SWA averages the weights of two epochs at least."""
    averaging = case.spec.averaging
    if not isinstance(averaging, StochasticAveraging) or not case.epoch_steps:
        return
    epochs, start = case.steps // case.epoch_steps, averaging.start_epoch
    averaged = max(0, epochs - start + 1)
    if averaged > 1:
        return
    whole = f"{epochs:,} whole {'epoch' if epochs == 1 else 'epochs'}"
    yield Finding(
        ("averaging", "start_epoch"),
        f"SWA averages from epoch {start:,} on, and the run has {whole}.",
        "The mean of a single epoch's weights is those weights."
        if averaged
        else "No weights would ever enter the average: those of the last step would be delivered.",
        {"/averaging/start_epoch": max(1, int(STARTS_AT * epochs))} if epochs > 1 else WITHOUT,
        severity="warning" if averaged else None,
    )


@rule(
    "learning.average_of_first_weights",
    severity="warning",
    stands_on="The average itself: without a ramp, decay ** n of it is the weights that it began "
    "with after n steps. A decay of 0.9999 has 82 % of them after 2,000 steps. With a ramp it is "
    "2/11 · 3/12, below 5 %, after three.",
)
def average_of_first_weights(case: Case) -> Iterator[Finding]:
    """At the end of a run, at most 5 % of an exponential average is the weights it began with."""
    averaging, steps = case.spec.averaging, case.steps
    if not isinstance(averaging, ExponentialAveraging) or averaging.ramp or not steps:
        return
    first = averaging.decay**steps
    if first <= MOST_OF_FIRST:
        return
    yield Finding(
        ("averaging", "ramp"),
        f"With a decay of {averaging.decay:g} and no ramp, {share(first)} of the average is the "
        f"first weights after all {steps:,} steps.",
        f"It looks back over about {1 / (1 - averaging.decay):,.0f} steps. It is what is "
        "evaluated, kept as the best and delivered, and that part of it was never trained.",
        {"/averaging/ramp": True},
    )


@rule(
    "learning.averaging_rate_above_lr",
    severity="warning",
    stands_on="Izmailov et al., 2018, section 4: the rate of SWA is below the one that the "
    "training begins with.",
)
def averaging_rate_above_lr(case: Case) -> Iterator[Finding]:
    """SWA trains at no higher rate than the schedule's peak."""
    averaging, peak = case.spec.averaging, case.spec.optimizer.lr
    if isinstance(averaging, StochasticAveraging) and averaging.lr > peak:
        yield Finding(
            ("averaging", "lr"),
            f"SWA trains at a rate of {averaging.lr:g}, and the schedule at {peak:g} at most.",
            "Weights that have settled would be thrown about, and their mean with them.",
            {"/averaging/lr": two_digits(peak / 2)},
        )
