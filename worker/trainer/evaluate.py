"""Looking at the validation and test parts: sums on the device, one synchronization at the end."""

import math
from collections.abc import Iterable, Iterator, Mapping

from torch.optim.swa_utils import update_bn

from app.lifecycle import Reason
from app.spec.optimization import Plateau
from worker.trainer.averaging import AveragedWeights
from worker.trainer.checkpoints.format import TornCheckpoint, load
from worker.trainer.checkpoints.snapshot import restore_weights
from worker.trainer.data.batch import Batch, Batches
from worker.trainer.errors import NothingToScore, TrainerError
from worker.trainer.recipes.sums import Sums
from worker.trainer.report.report import not_finite
from worker.trainer.state import Scores, improves
from worker.trainer.step import ForwardPass
from worker.trainer.trainer import Trainer

# Which part is looked at in each phase.
PARTS = {"evaluating": "validation", "testing": "test"}
# Reasons for which a test part has no scores. The run succeeds without them.
UNSCORED = {Reason.data_error, Reason.dataset_changed, Reason.nonfinite}


def validate(trainer: Trainer) -> None:
    """Evaluate, and keep book of the best and of early stopping. A stop leaves it all undone."""
    spec, state, part = trainer.spec, trainer.state, trainer.data.validation
    if part is None:
        return
    with trainer.saver.rescuable():
        scores = measure(trainer, part, "evaluating")
    if scores is None:
        return
    named = {f"val_{name}": score for name, score in scores.items()}
    state.evaluated_step = state.step
    state.last |= named
    epoch = state.running_epoch()
    trainer.log.evaluation("validation", scores["loss"], named, state.step, epoch)
    if state.note_best(spec.checkpoint) and spec.checkpoint.keep_best == 0:
        trainer.saver.best_folder = None  # unless it is saved for another reason
    if stopping := spec.early_stopping:
        value = named[stopping.monitor]
        if improves(value, state.patience_best, stopping.mode, stopping.min_delta):
            state.patience_best, state.patience_used = value, 0
        else:
            state.patience_used += 1
    if isinstance(spec.schedule, Plateau) and trainer.agenda.follows_schedule(state):
        state.note_plateau(named[spec.schedule.monitor], spec.schedule)


def update_average(trainer: Trainer) -> None:
    """Have the weights enter their average when it is time, and batch norm's statistics be those
    of what came of it. A stop leaves these due.
    """
    average, state = trainer.step.average, trainer.state
    if average is None:
        return
    if average.step < state.step and trainer.agenda.average_due(state):
        average.take(state.step)
    if average.statistics_due:
        with trainer.saver.rescuable():
            _update_statistics(trainer, average)


def _update_statistics(trainer: Trainer, average: AveragedWeights) -> None:
    """One pass, as torch.optim.swa_utils.update_bn makes it, over what was trained on in the epoch
    that entered last: what a rollback left out may hold what made the loss NaN.
    """
    step, log, state = trainer.step, trainer.log, trainer.state
    epoch = _entered_epoch(trainer)
    count = trainer.data.train.plan.epoch_micro_batches

    def batches() -> Iterator[Batch]:
        for position, batch in trainer.training_batches(epoch):
            if trainer.stop.requested:
                return
            if state.was_left_out(epoch, position):
                step.forget_carried()
            else:
                yield batch
            log.visited_batch()
        average.statistics_due = False

    in_phase = log.within("evaluating", count)
    with in_phase, log.clock.part("eval"), average.in_model(), step.untouched():
        step.task.begin("epoch", step.model)
        update_bn(batches(), ForwardPass(step))


def _entered_epoch(trainer: Trainer) -> int:
    """The last one, counted from 0, at whose end weights entered the average: none do at an end
    that was left out.
    """
    state, end = trainer.state, trainer.data.train.plan.usable_samples - 1
    epoch = state.epoch - 1
    while state.was_left_out(epoch, end):
        epoch -= 1
    return epoch


def test(trainer: Trainer, part: Batches) -> Scores | None:
    """Returns the scores of the test part with the best weights; None when stopped.

    A test part that cannot be scored is warned of, because the training is worth keeping. Then the
    scores are those of the other metrics, or none.
    """
    step, epoch = _load_best(trainer)
    try:
        scores = measure(trainer, part, "testing")
    except TrainerError as error:
        if error.reason not in UNSCORED or not trainer.step.has_finite_weights:
            raise
        scores = Scores(error.others if isinstance(error, NothingToScore) else {})
        outcome = "The other test scores are" if scores else "No test score is"
        told = f"{error.message} {outcome} in the result."
        trainer.log.warning("test_not_scored", told)
        if not scores:
            return scores
    if scores is None:
        return None
    named = {f"test_{name}": score for name, score in scores.items()}
    trainer.log.evaluation("test", scores["loss"], named, step, epoch)
    return {"step": step, "epoch": epoch, **named}


def measure(trainer: Trainer, part: Batches, phase: str) -> Scores | None:
    """Loss and metrics over a part, every sample weighing the same; None when stopped. DataError
    where nothing of it can be scored.
    """
    log, count = trainer.log, part.plan.epoch_micro_batches
    with log.within(phase, count), log.clock.part("eval"), trainer.step.evaluating():
        sums = _sums(trainer, part.iterate(0))
    if sums is None:
        return None
    try:
        scores = sums.scores()
    except NothingToScore as error:
        _require_finite(trainer, error.others, phase)
        is_cut = phase == "evaluating" and trainer.data.is_cut
        raise error.of_part(PARTS[phase], is_cut=is_cut) from None
    _require_finite(trainer, scores, phase)
    return scores


def _require_finite(trainer: Trainer, scores: Mapping[str, float], phase: str) -> None:
    for name, score in scores.items():
        if not math.isfinite(score):
            raise _not_finite(trainer, f"{name} while {phase}", score)


def _not_finite(trainer: Trainer, what: str, score: float) -> TrainerError:
    """Blames the training only if the weights say so."""
    step, state = trainer.step, trainer.state
    if not step.has_finite_weights:
        return not_finite(what, score, state.step, step.learning_rate)
    names = ", ".join((*trainer.spec.data.inputs, *trainer.spec.data.targets))
    return TrainerError(
        Reason.nonfinite,
        f"The {what} became {score} at step {state.step}, though the weights are finite: that part "
        f"of the data ({names}) holds NaN, infinity, or values too large for "
        f"{step.precision.name}. Fill or remove these values, register the file again and restart "
        "the run from its latest checkpoint.",
    )


def _sums(trainer: Trainer, batches: Iterable[Batch]) -> Sums | None:
    """Returns what the task measured over all batches; None when stopped."""
    sums = Sums(trainer.task)
    for batch in batches:
        if trainer.stop.requested:
            return None
        sums.add(trainer.step.measure(batch), batch.size)
        trainer.log.evaluated_batch(batch.size)
    return sums


def _load_best(trainer: Trainer) -> tuple[int, int]:
    """Put the best weights into the model; returns the step and epoch of those that are in it.

    Where no best ones were kept, the last ones stay, with a warning when some were wanted.
    """
    state, folder = trainer.state, trainer.saver.best_folder
    last = state.step, state.running_epoch()
    if state.best is None or state.best.step == state.step:
        return last
    problem = "it was not kept (checkpoint.keep_best is 0)"
    if folder is not None:
        try:
            best = load(folder, ("model",))
            restore_weights(trainer.step.model, best.parts["model"])
            if trainer.step.average:
                trainer.step.average.put_aside = True
        except TornCheckpoint as error:
            problem = str(error)
        else:
            return state.best.step, state.best.epoch
    trainer.log.warning(
        "best_weights_gone",
        f"The best checkpoint (step {state.best.step}) cannot be used: {problem}. "
        "The test was made with the last weights instead.",
    )
    return last
