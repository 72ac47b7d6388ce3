"""The training loop: epochs → batches → step → log → evaluate → checkpoint → stop check."""

from collections.abc import Iterator
from typing import NamedTuple

from app.lifecycle import Reason
from app.planning.schedule import learning_rate
from worker.trainer.data.batch import Batch, Batches
from worker.trainer.evaluate import validate
from worker.trainer.state import TrainState
from worker.trainer.trainer import Trainer


def train(trainer: Trainer) -> Reason:
    """Train from where the state stands until the end or a stop; says which it was. Its last
    checkpoint may still be on its way to the disk.

    Only `log.flush` and `log.epoch` wait for the device between evaluations and checkpoints.
    """
    spec, agenda, state = trainer.spec, trainer.agenda, trainer.state
    step, log, stop, plan = trainer.step, trainer.log, trainer.stop, trainer.data.train.plan
    accumulation = spec.training.gradient_accumulation_steps
    held_up = trainer.data.train.counters.held_up
    reading = micro_batches(trainer.data.train, state, accumulation)
    batches = log.clock.waiting(trainer.at_rest_during(reading), held_up)
    log.enter("training", agenda.total_steps, state.step)

    while True:
        # A step boundary. What is due follows from the spec and the state alone, so an attempt
        # that was restored here takes the turns that the interrupted one would have taken.
        state.trained_seconds = trainer.trained_seconds()
        if agenda.log_due(state):
            log.flush(step)
            trainer.mind_compilation()
        if agenda.evaluation_due(state):
            validate(trainer)  # left undone, and so still due, when a stop is asked for meanwhile
        if agenda.epoch_report_due(state):
            log.epoch(step)
        stopping = stop.requested  # asked once, so that a checkpoint was begun where this ends
        if trainer.writer.has_failed:
            trainer.finish_saving()
        if trainer.checkpoint_due() or stopping:
            trainer.save(stopping=stopping)
        else:
            trainer.keep_best()
        ending = agenda.ending(state)
        if ending and not agenda.evaluation_due(state):
            return ending
        if stopping:
            return Reason.interrupted

        completes_step = False
        while not completes_step:
            batch, share, completes_step = next(batches)
            step.accumulate(batch.arrays, batch.size, share)
            state.position = batch.position_after
            log.trained_batch(batch.size)
        state.learning_rate = learning_rate(
            spec.schedule, spec.optimizer.lr, state.step, agenda.total_steps
        )
        step.apply(state.learning_rate)
        state.advance(plan.usable_samples)
        log.trained_step()


class MicroBatch(NamedTuple):
    batch: Batch
    share: float
    """Its part of the samples of its optimizer step, 0 to 1."""
    completes_step: bool


def micro_batches(part: Batches, state: TrainState, accumulation: int) -> Iterator[MicroBatch]:
    """The rest of the running epoch, then epoch after epoch without end.

    A step takes `accumulation` batches, in as many micro-batches as the plan cuts them into; an
    epoch's last step takes what is left, and its batches then weigh more, so that every sample of
    a step counts the same.
    """
    samples, step_samples = part.plan.usable_samples, part.plan.batch_size * accumulation
    while True:
        for batch in part.iterate(state.epoch, state.position):
            step_begin = (batch.position_after - 1) // step_samples * step_samples
            step_end = min(step_begin + step_samples, samples)
            share = batch.size / (step_end - step_begin)
            yield MicroBatch(batch, share, batch.position_after == step_end)
