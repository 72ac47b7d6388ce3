"""The training loop: epochs → batches → step → log → evaluate → checkpoint → stop check."""

from collections.abc import Iterator
from typing import NamedTuple

from app.lifecycle import Reason
from worker.trainer.data.batch import Batch
from worker.trainer.evaluate import update_average, validate
from worker.trainer.trainer import Trainer


def train(trainer: Trainer) -> Reason:
    """Train from where the state stands until the end or a stop; says which it was. Its last
    checkpoint may still be on its way to the disk.

    Only `log.flush` and `log.epoch` wait for the device between evaluations and checkpoints.
    """
    agenda, state = trainer.agenda, trainer.state
    step, log, stop, saver = trainer.step, trainer.log, trainer.stop, trainer.saver
    plan = trainer.data.train.plan
    held_up = trainer.data.train.counters.held_up
    batches = log.clock.waiting(micro_batches(trainer), held_up)
    log.enter("training", agenda.total_steps, state.step)

    while True:
        # A step boundary. What is due follows from the spec and the state alone, so an attempt
        # that was restored here takes the turns that the interrupted one would have taken.
        state.trained_seconds = trainer.trained_seconds()
        update_average(trainer)
        due = trainer.due()
        if due.log:
            log.flush(step)
            trainer.warn_if_recompiled()
        if due.evaluation:
            validate(trainer)  # left undone, and so still due, when a stop is asked for meanwhile
            due = trainer.due()  # it may end the training, and lets the epoch be reported
        if due.epoch_report:
            log.epoch(step)
        stopping = stop.requested  # asked once, so that a checkpoint was begun where this ends
        if saver.has_failed:
            saver.finish()
        if due.checkpoint or stopping:
            saver.save(stopping=stopping)
        else:
            saver.keep_best()
        if due.ending and not due.evaluation:
            return due.ending
        if stopping:
            return Reason.interrupted

        completes_step = False
        while not completes_step:
            batch, share, completes_step = next(batches)
            step.accumulate(batch, share)
            log.trained_batch(batch.size)
        state.learning_rate = agenda.learning_rate(state)
        step.apply(state.learning_rate)
        state.advance(plan.usable_samples)
        log.trained_step()


class MicroBatch(NamedTuple):
    batch: Batch
    share: float
    """Its part of the samples of its optimizer step, 0 to 1."""
    completes_step: bool


def micro_batches(trainer: Trainer) -> Iterator[MicroBatch]:
    """The rest of the running epoch, then epoch after epoch without end, each of which the step is
    told of. The state's position moves on with each; whoever completes a step ends the epoch.

    A step takes `accumulation` batches, in as many micro-batches as the plan cuts them into; an
    epoch's last step takes what is left, and its batches then weigh more, so that every sample of
    a step counts the same.
    """
    plan, state, training = trainer.data.train.plan, trainer.state, trainer.spec.training
    samples = plan.usable_samples
    step_samples = plan.batch_size * training.gradient_accumulation_steps
    with trainer.saver.rescuable():
        while True:
            if state.position == 0:
                trainer.step.begin_epoch()
            for position, batch in trainer.training_batches(state.epoch, state.position):
                step_begin = position // step_samples * step_samples
                step_end = min(step_begin + step_samples, samples)
                share = batch.size / (step_end - step_begin)
                state.position += batch.size
                yield MicroBatch(batch, share, state.position == step_end)
