"""When a training is saved: copied at a step boundary, and written beside it."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from app.planning.schedule import schedule_version
from worker.trainer.agenda import Agenda
from worker.trainer.attempt import TrainerAttempt
from worker.trainer.checkpoints.format import Snapshot, Tensors, publish
from worker.trainer.checkpoints.inherited import InheritedBest
from worker.trainer.checkpoints.snapshot import capture
from worker.trainer.checkpoints.writer import CheckpointWriter
from worker.trainer.data.order import ORDER_VERSION
from worker.trainer.out_of_memory import of_gpu, which_memory
from worker.trainer.report.report import Report
from worker.trainer.state import TrainState
from worker.trainer.step import TrainingStep

# To write a best state takes at most this share of the time since the write before was begun.
SHARE_OF_WRITING = 0.02


@dataclass(frozen=True)
class Copied:
    """A state on the CPU, to be written to `folder`; `key` is its (step, evaluated_step)."""

    snapshot: Snapshot
    folder: Path
    key: tuple[int, int]
    at: float
    seconds: float
    """That the copy took."""
    stall_seconds: float
    """That training waited, also for the checkpoint before."""


class CheckpointSaver:
    """`saved` is (step, evaluated_step) of the newest checkpoint of this run, `best_folder` that of
    the best one that was begun; both may still be on their way to the disk.
    """

    def __init__(
        self,
        attempt: TrainerAttempt,
        agenda: Agenda,
        step: TrainingStep,
        state: TrainState,
        log: Report,
        versions: Mapping[str, Any],
    ) -> None:
        self.saved = (0, 0)
        self.best_folder: Path | None = None
        self._attempt = attempt
        self._agenda = agenda
        self._step = step
        self._state = state
        self._log = log
        self._writer = CheckpointWriter()
        self._versions = versions
        self._copies: Mapping[str, Tensors] = {}
        self._saved_at = time.monotonic()
        self._best: Copied | None = None
        self._inherited: InheritedBest | None = None
        self._begun_at = 0.0
        self._write_seconds = 0.0
        self._is_whole = False

    def seconds_since_save(self) -> float:
        """Since the last checkpoint was begun, or else since the attempt began to train."""
        return time.monotonic() - self._saved_at

    def save(self, *, stopping: bool = False) -> None:
        """Begin a checkpoint of this step, unless there is nothing new to save.

        Training waits for the checkpoint before, if that is still being written, and for a copy
        of its state; not for this one to be written. A best state that waits goes first: a kill
        between both keeps the best, and the steps since then are made again. At a stop, after
        which nothing is trained, it comes second: a stop has only so much time, and after one write
        no step is lost.
        """
        if self._key() == self.saved:
            return
        if self._best is None or self._best.key != self._key():
            if not stopping:
                self._begin_best()
            self._begin(self._copy(in_place=stopping))
        self._begin_best()

    def keep_best(self) -> None:
        """Copy a new best state, and write it once that takes little of the time. Until then it
        waits in memory; a better one takes its place, and the next save writes it too.
        """
        best = self._state.best
        if best and best.step == self._state.step and self._is_wanted():
            self._best = self._copy()
        if self._best and not self._writer.is_busy:
            allowed_at = self._begun_at + self._write_seconds / SHARE_OF_WRITING
            if time.monotonic() >= allowed_at:
                self._begin_best()

    def keep_inherited(self, inherited: InheritedBest, *, at_once: bool) -> None:
        """Show the best checkpoint of another run as this run's own: with the first one that is
        saved, or at once, where the run has newer ones. OSError.
        """
        self._inherited = inherited
        if at_once:
            self._show_inherited()
            self._tell_inherited(inherited)

    @property
    def has_failed(self) -> bool:
        """Whether `finish` would raise at once."""
        return self._writer.has_failed

    def finish(self) -> None:
        """Wait until the last checkpoint is durable; raises what kept it from being so.

        Not counted as `checkpoint`, which is for what holds the training up.
        """
        if self._writer.is_busy or self._writer.has_failed:
            with self._log.within("checkpointing"), self._log.clock.part("other"):
                self._writer.wait()

    def close(self) -> None:
        """End the thread that writes, and let it finish what it has begun."""
        self._writer.close()
        self._drop_inherited()

    @contextmanager
    def rescuable(self) -> Iterator[None]:
        """Around what makes no step: after an error in here `rescue` saves the state, unless a step
        is under way or the GPU is lost.
        """
        try:
            yield
        except Exception as error:
            lost_gpu = of_gpu(error) and which_memory(error) is None
            self._is_whole = not self._step.under_way and not lost_gpu
            raise

    def rescue(self) -> None:
        """Before an error ends the attempt, save what is whole: the state at this step boundary,
        or at least the best one that waits in memory. Raises what goes wrong with it.
        """
        # What is not finite would be met again by whoever goes on from there.
        step, is_whole = self._step, self._is_whole
        if is_whole and bool(step.loss_sums.isfinite().all()) and step.has_finite_weights:
            self.save()
        self._begin_best()
        self.finish()

    def _key(self) -> tuple[int, int]:
        return self._state.step, self._state.evaluated_step

    def _is_wanted(self) -> bool:
        """Whether the best state of now has to be copied."""
        copied = self._best.key if self._best else None
        kept = self._agenda.spec.checkpoint.keep_best
        return kept > 0 and self._key() not in (self.saved, copied)

    def _copy(self, *, in_place: bool = False) -> Copied:
        """In the memory of the copy before, which is waited for; for `in_place` see `capture`."""
        log, asked = self._log, time.monotonic()
        folder = self._attempt.folder / "checkpoints" / f"step-{self._state.step}"
        with log.within("checkpointing"), log.clock.part("checkpoint"):
            self._writer.wait()
            began = time.monotonic()
            facts, before = self._manifest_facts(folder), self._copies
            if in_place:
                self._copies = before = {}  # a best state that waits keeps its own
            snapshot = capture(self._step, self._state, facts, before, in_place=in_place)
            if not in_place:
                self._copies = snapshot.parts
        now = time.monotonic()
        return Copied(snapshot, folder, self._key(), now, now - began, now - asked)

    def _begin_best(self) -> None:
        """Begin to write the best state that waits, if there is one that is not outdone."""
        if self._best and self._is_best(self._best):
            self._begin(self._best)
        self._best = None  # only now: if the write before has failed, `rescue` writes this one

    def _is_best(self, copied: Copied) -> bool:
        return self._state.best is not None and self._state.best.step == copied.key[0]

    def _begin(self, copied: Copied) -> None:
        self.finish()
        self.saved, self._saved_at = max(self.saved, copied.key), copied.at
        if self._is_best(copied):
            self.best_folder = copied.folder
            self._drop_inherited()
        self._begun_at = time.monotonic()
        self._writer.begin(partial(self._write, copied))

    def _write(self, copied: Copied) -> None:
        """In the writer's thread: only what does not change while training goes on."""
        began, snapshot = time.monotonic(), copied.snapshot
        self._log.losses.sync()
        size = publish(snapshot, copied.folder)
        # Before this one is told of: from then on the other run may be deleted.
        inherited = self._show_inherited()
        seconds = copied.seconds + time.monotonic() - began
        self._write_seconds = seconds
        self._log.checkpoint(
            seconds,
            copied.stall_seconds,
            path=str(copied.folder.relative_to(self._attempt.folder)),
            bytes=size,
            **{name: snapshot.body[name] for name in ("step", "epoch", "metrics")},
        )
        if inherited is not None:
            self._tell_inherited(inherited)

    def _show_inherited(self) -> InheritedBest | None:
        inherited = self._inherited
        if inherited is not None:
            inherited.show()
            self._inherited, self.best_folder = None, inherited.folder
        return inherited

    def _tell_inherited(self, inherited: InheritedBest) -> None:
        # Its whole path: it may lie in the folder of an earlier attempt.
        self._log.checkpoint(0.0, 0.0, path=str(inherited.folder), **inherited.told)

    def _drop_inherited(self) -> None:
        if self._inherited is not None:
            self._inherited.drop()
            self._inherited = None

    def _manifest_facts(self, folder: Path) -> dict[str, Any]:
        # Relative, so that the artifact root can be moved.
        best = os.path.relpath(self.best_folder, folder) if self.best_folder else None
        precision, task = self._step.precision, self._step.task
        return {
            "run_id": self._attempt.run_id,
            "attempt": self._attempt.number,
            "created_at": time.time(),
            "losses_bytes": self._log.losses.length(),
            "best_folder": best,
            "order_version": ORDER_VERSION,
            "schedule_version": schedule_version(self._agenda.spec.schedule),
            "total_steps": self._agenda.total_steps,
            "device_type": precision.device.type,
            "precision": precision.name,
            "threads": torch.get_num_threads(),
            "versions": dict(self._versions),
            "recipe": task.parameters_json(),
        }
