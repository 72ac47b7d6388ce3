"""After a loss that was not finite: on from the checkpoint before it, past the data since."""

import logging

from worker.trainer.state import LeftOut
from worker.trainer.step import EPOCH, WINDOW
from worker.trainer.trainer import Trainer

logger = logging.getLogger(__name__)


def go_past(trainer: Trainer) -> None:
    """Have a state that was restored stand where the loss was not finite, with the weights that it
    has, as if the steps up to there had been made: schedule, evaluations and the order of samples
    go on from there. It follows from both places alone, so each attempt from there does the same.

    What has come so far already, as a checkpoint after the rollback has, stays as it is.
    """
    rollback, state, step = trainer.attempt.rollback, trainer.state, trainer.step
    if rollback is None or not 0 < state.step < rollback.step:
        return
    from_step, from_epoch = state.step, state.epoch
    epochs = rollback.epoch - from_epoch
    usable = trainer.data.train.plan.usable_samples
    samples = epochs * usable + rollback.position - state.position
    state.left_out_steps += rollback.step - from_step
    state.left_out.append(LeftOut(from_epoch, state.position, rollback.epoch, rollback.position))
    state.step, state.epoch, state.position = rollback.step, rollback.epoch, rollback.position
    state.logged_step = state.step
    step.restart_loss(WINDOW)
    if epochs:
        # The mean of an epoch of which the rest was left out is not told.
        state.reported_epoch = state.epoch
        step.restart_loss(EPOCH)
    step.forget_carried()
    if step.average is not None:
        step.average.step = state.step  # these weights have entered, and those left out never do
    trainer.log.events.emit(
        "rollback",
        number=rollback.number,
        from_step=from_step,
        step=state.step,
        epoch=state.running_epoch(),
        position=state.position,
        steps=state.step - from_step,
        samples=samples,
    )
    logger.warning("%s", rollback.sentence)
