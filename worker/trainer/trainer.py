"""Everything a training consists of."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from app.spec.run import RunSpec
from worker.trainer.agenda import Agenda, Due
from worker.trainer.attempt import TrainerAttempt
from worker.trainer.checkpoints.saver import CheckpointSaver
from worker.trainer.data.batch import Batch
from worker.trainer.data.dataset import DataSet
from worker.trainer.recipes.base import Task
from worker.trainer.report.report import Report
from worker.trainer.speed.compiled import Compilation
from worker.trainer.speed.cuda_graph import CaptureOutcome
from worker.trainer.state import TrainState
from worker.trainer.step import TrainingStep
from worker.trainer.stop import StopFlag


@dataclass
class Trainer:
    """One attempt at a run, from its first step on."""

    attempt: TrainerAttempt
    agenda: Agenda
    data: DataSet
    task: Task
    step: TrainingStep
    compilation: Compilation
    captured: CaptureOutcome
    state: TrainState
    log: Report
    stop: StopFlag
    saver: CheckpointSaver
    _told_of_excess: bool = False
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = time.monotonic() - self.state.trained_seconds

    @property
    def spec(self) -> RunSpec:
        return self.attempt.spec

    def trained_seconds(self) -> float:
        """Of this attempt and those before it."""
        return time.monotonic() - self._began

    def training_batches(self, epoch: int, position: int = 0) -> Iterator[tuple[int, Batch]]:
        """The rest of an epoch, each micro-batch with the position at which it begins. The step is
        told before each in which places of it another series begins.
        """
        for batch in self.data.train.iterate(epoch, position):
            if (begins := self.data.lane_breaks_at(position)) is not None:
                self.step.begin_lanes(begins)
            yield position, batch
            position += batch.size

    def warn_if_recompiled(self) -> None:
        """Once, where more had to be compiled since the first step."""
        if not self._told_of_excess and (excess := self.compilation.excess()):
            self._told_of_excess = True
            self.log.warning("recompiled", excess)

    def due(self) -> Due:
        """What is due at this step boundary."""
        return self.agenda.due(self.state, self.saver.saved, self.saver.seconds_since_save())
