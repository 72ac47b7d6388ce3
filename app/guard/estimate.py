"""What a run would come to: samples, steps, and seconds as like runs needed them."""

from app.guard.case import Case
from app.guard.facts import UnknownFact
from app.spec.layers import Document


def estimate_of(case: Case) -> Document | None:
    """Samples of each part, steps, and `seconds` from the start of the attempt to its end, by the
    runs of `from_runs`.

    None while a dataset is unknown; `seconds` is null when no run was like it.
    """
    try:
        sizes = case.sizes
    except UnknownFact:
        return None
    history = case.facts.history
    return {
        "training_samples": sizes.training,
        "validation_samples": sizes.validation,
        "test_samples": sizes.test,
        "steps_per_epoch": case.epoch_steps,
        "steps": case.steps,
        "seconds": None if history is None else round(_seconds(case), 1),
        "from_runs": [] if history is None else list(history.runs),
        "batch_worth": _batch_worth(case),
    }


def _batch_worth(case: Case) -> Document | None:
    """The samples of a step, and how many independent ones they are worth; None: not known."""
    try:
        worth = case.batch_worth
    except UnknownFact:
        return None
    if worth is None:
        return None
    return {
        "samples": worth.samples,
        "independent": round(worth.independent),
        "target": worth.target,
    }


def _seconds(case: Case) -> float:
    """With the last evaluation, the test and the last checkpoint, and with what is no training."""
    history, at_the_end = case.like_runs, case.evaluated_samples + case.sizes.test
    return (
        case.training_seconds
        + at_the_end * (history.evaluation_seconds or 0.0)
        + (history.checkpoint_seconds or 0.0)
        + (history.other_seconds or 0.0)
    )
