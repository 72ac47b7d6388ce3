"""Everything a training consists of, and how it is saved."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from app.spec.run import RunSpec
from app.spec.schedule import schedule_version
from worker.trainer.agenda import Agenda
from worker.trainer.attempt import Attempt
from worker.trainer.checkpoint import Snapshot, Tensors, publish
from worker.trainer.checkpoint_writer import CheckpointWriter
from worker.trainer.compilation import Compilation
from worker.trainer.data.loader import DataSet
from worker.trainer.data.order import ORDER_VERSION
from worker.trainer.recipes import Task
from worker.trainer.recording import Recording
from worker.trainer.report import Report
from worker.trainer.snapshot import capture
from worker.trainer.state import TrainState
from worker.trainer.step import TrainingStep
from worker.trainer.stop import StopFlag


@dataclass
class Trainer:
    """`saved` is (step, evaluated_step) of the newest checkpoint of this run, which may still be
    on its way to the disk."""

    attempt: Attempt
    agenda: Agenda
    data: DataSet
    task: Task
    step: TrainingStep
    compilation: Compilation
    recording: Recording
    state: TrainState
    log: Report
    stop: StopFlag
    writer: CheckpointWriter
    versions: Mapping[str, Any]
    saved: tuple[int, int] = (0, 0)
    best_folder: Path | None = None
    _copies: Mapping[str, Tensors] = field(default_factory=dict)
    _saved_at: float = field(default_factory=time.monotonic)
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

    def mind_compilation(self) -> None:
        """Warn, once, of more that had to be compiled since the first step."""
        if not self._told_of_excess and (excess := self.compilation.excess()):
            self._told_of_excess = True
            self.log.warning("recompiled", excess)

    def checkpoint_due(self) -> bool:
        unsaved_seconds = time.monotonic() - self._saved_at
        return self.agenda.checkpoint_due(self.state, self.saved, unsaved_seconds)

    def save(self) -> None:
        """Begin a checkpoint of this step, unless there is nothing new to save.

        Training waits for the checkpoint before, if that is still being written, and for a copy
        of its state; not for this one to be written.
        """
        state, log = self.state, self.log
        if (state.step, state.evaluated_step) == self.saved:
            return
        stalled = time.monotonic()
        folder = self.attempt.folder / "checkpoints" / f"step-{state.step}"
        with log.within("checkpointing"), log.clock.part("checkpoint"):
            self.writer.wait()
            began = time.monotonic()
            if state.best is not None and state.best.step == state.step:
                self.best_folder = folder
            facts = self._manifest_facts(folder)
            snapshot = capture(self.step, state, facts, self._copies)
            self._copies = snapshot.parts
        self.saved = state.step, state.evaluated_step
        self._saved_at = time.monotonic()
        self.writer.begin(partial(self._write, snapshot, folder, began, self._saved_at - stalled))

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is durable; raises what kept it from being so.

        Not counted as `checkpoint`, which is for what holds the training up.
        """
        if self.writer.is_busy or self.writer.has_failed:
            with self.log.within("checkpointing"), self.log.clock.part("other"):
                self.writer.wait()

    def _write(self, snapshot: Snapshot, folder: Path, began: float, stalled: float) -> None:
        """In the writer's thread: only what does not change while training goes on."""
        self.log.losses.sync()
        size = publish(snapshot, folder)
        self.log.checkpoint(
            time.monotonic() - began,
            stalled,
            path=str(folder.relative_to(self.attempt.folder)),
            bytes=size,
            **{name: snapshot.body[name] for name in ("step", "epoch", "metrics")},
        )

    def _manifest_facts(self, folder: Path) -> dict[str, Any]:
        # Relative, so that the artifact root can be moved.
        best = os.path.relpath(self.best_folder, folder) if self.best_folder else None
        return {
            "run_id": self.attempt.run_id,
            "attempt": self.attempt.number,
            "created_at": time.time(),
            "losses_bytes": self.log.losses.length(),
            "best_folder": best,
            "order_version": ORDER_VERSION,
            "schedule_version": schedule_version(self.spec.schedule),
            "total_steps": self.agenda.total_steps,
            "device_type": self.step.precision.device.type,
            "precision": self.step.precision.name,
            "threads": torch.get_num_threads(),
            "versions": dict(self.versions),
            "recipe": self.task.parameters_json(),
        }
