"""What is due at a step boundary: decided by the spec and the state alone, so a resume agrees."""

from dataclasses import dataclass
from functools import cached_property

from app.lifecycle import Reason
from app.planning.arithmetic import is_due, log_interval, steps_per_epoch, total_steps
from app.planning.schedule import run_rate
from app.spec.optimization import ExponentialAveraging, StochasticAveraging
from app.spec.run import RunSpec
from worker.trainer.state import TrainState


@dataclass(frozen=True)
class Due:
    """What is due at one step boundary."""

    log: bool
    evaluation: bool
    epoch_report: bool
    checkpoint: bool
    ending: Reason | None
    """Why the training is over, once the evaluation is done; None while it is not."""


@dataclass(frozen=True)
class Agenda:
    spec: RunSpec
    train_samples: int
    has_validation: bool

    @cached_property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(self.spec.training, self.train_samples)

    @cached_property
    def total_steps(self) -> int:
        return total_steps(self.spec.training, self.train_samples)

    @cached_property
    def log_every_steps(self) -> int:
        return log_interval(self.spec.training, self.total_steps)

    def learning_rate(self, state: TrainState) -> float:
        """Of the next step."""
        lowered = state.lowered.rate if state.lowered else None
        return run_rate(self.spec, state.step, self.total_steps, self.steps_per_epoch, lowered)

    def follows_schedule(self, state: TrainState) -> bool:
        """Whether the rate of the latest step was that of the schedule, and not SWA's."""
        averaging = self.spec.averaging
        if not isinstance(averaging, StochasticAveraging):
            return True
        return state.step <= (averaging.start_epoch - 1) * self.steps_per_epoch

    def average_due(self, state: TrainState) -> bool:
        """Whether the weights of this step boundary enter the average, if they have not yet."""
        match self.spec.averaging:
            case ExponentialAveraging():
                return state.step > 0
            case StochasticAveraging(start_epoch=start):
                return state.position == 0 and state.epoch >= start
            case _:
                return False

    def due(self, state: TrainState, saved: tuple[int, int], seconds_since_save: float) -> Due:
        """`saved` is (step, evaluated_step) of the newest checkpoint: the state moves with both."""
        return Due(
            log=self.log_due(state),
            evaluation=self.evaluation_due(state),
            epoch_report=self.epoch_report_due(state),
            checkpoint=self.checkpoint_due(state, saved, seconds_since_save),
            ending=self.ending(state),
        )

    def ending(self, state: TrainState) -> Reason | None:
        """Why the training is over, or None while it is not."""
        stopping, limit = self.spec.early_stopping, self.spec.policy.max_duration_seconds
        if state.step >= self.total_steps:
            return Reason.completed
        if stopping is not None and state.patience_used >= stopping.patience:
            return Reason.early_stopped
        if limit is not None and state.trained_seconds >= limit:
            return Reason.max_duration
        return None

    def evaluation_due(self, state: TrainState) -> bool:
        """By steps, by epochs, and always at the end."""
        if not self.has_validation or state.step in (0, state.evaluated_step):
            return False
        wanted = self.spec.evaluation
        epoch_ended = state.position == 0 and state.epoch > 0
        return (
            is_due(wanted.every_steps, state.step)
            or (epoch_ended and is_due(wanted.every_epochs, state.epoch))
            or self.ending(state) is not None
        )

    def log_due(self, state: TrainState) -> bool:
        """Every so many steps, and before each evaluation, so that both losses share a step."""
        return state.step > state.logged_step and (
            is_due(self.log_every_steps, state.step)
            or self.evaluation_due(state)
            or self.ending(state) is not None
        )

    def epoch_report_due(self, state: TrainState) -> bool:
        """After an epoch, once its evaluation (if it has one) is done too."""
        ended = state.position == 0 and state.epoch > state.reported_epoch
        return ended and not self.evaluation_due(state)

    def checkpoint_due(
        self, state: TrainState, saved: tuple[int, int], seconds_since_save: float
    ) -> bool:
        """By steps, by seconds, and always at the end; the best has `CheckpointSaver.keep_best`."""
        if (state.step, state.evaluated_step) == saved:
            return False
        wanted = self.spec.checkpoint
        return (
            is_due(wanted.every_steps, state.step)
            or (wanted.every_seconds is not None and seconds_since_save >= wanted.every_seconds)
            or self.ending(state) is not None
        )
