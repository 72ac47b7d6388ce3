"""What a run would come to: samples, steps, and seconds as like runs needed them."""

from app.guard.derived import evaluated_samples, evaluations_of, sizes_of
from app.guard.facts import Facts, HistoryFacts, UnknownFact
from app.planning.arithmetic import PartSizes, steps_per_epoch, total_steps
from app.spec.layers import Document
from app.spec.run import RunSpec


def estimate_of(spec: RunSpec, facts: Facts) -> Document | None:
    """Samples of each part, steps, and `seconds` from the start of the attempt to its end, by the
    runs of `from_runs`.

    None while a dataset is unknown; `seconds` is null when no run was like it.
    """
    try:
        sizes = sizes_of(spec, facts)
    except UnknownFact:
        return None
    history = facts.history
    return {
        "training_samples": sizes.training,
        "validation_samples": sizes.validation,
        "test_samples": sizes.test,
        "steps_per_epoch": steps_per_epoch(spec.training, sizes.training),
        "steps": total_steps(spec.training, sizes.training),
        "seconds": None if history is None else round(_seconds(spec, sizes, history), 1),
        "from_runs": [] if history is None else list(history.runs),
    }


def training_seconds(spec: RunSpec, sizes: PartSizes, history: HistoryFacts) -> float:
    """What the trainer's clock shows at the last step: steps, and evaluations and checkpoints
    before the end. It is what `max_duration_seconds` limits.

    Every evaluation may bring a new best checkpoint.
    """
    steps = total_steps(spec.training, sizes.training)
    trained = steps / history.iterations_per_second
    evaluations, wanted = max(0, evaluations_of(spec, sizes) - 1), spec.checkpoint
    saves = evaluations if wanted.keep_best else 0
    saves += max(0, steps - 1) // wanted.every_steps if wanted.every_steps else 0
    saves += int(trained / wanted.every_seconds) if wanted.every_seconds else 0
    return (
        trained
        + evaluations
        * evaluated_samples(spec, sizes.validation)
        * (history.evaluation_seconds or 0.0)
        + saves * (history.checkpoint_seconds or 0.0)
    )


def _seconds(spec: RunSpec, sizes: PartSizes, history: HistoryFacts) -> float:
    """With the last evaluation, the test and the last checkpoint, and with what is no training."""
    at_the_end = evaluated_samples(spec, sizes.validation) + sizes.test
    return (
        training_seconds(spec, sizes, history)
        + at_the_end * (history.evaluation_seconds or 0.0)
        + (history.checkpoint_seconds or 0.0)
        + (history.other_seconds or 0.0)
    )
