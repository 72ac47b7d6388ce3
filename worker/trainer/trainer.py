"""Everything a training consists of, and how it is saved."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from app.planning.schedule import schedule_version
from app.spec.run import RunSpec
from worker.trainer.agenda import Agenda, Due
from worker.trainer.attempt import TrainerAttempt
from worker.trainer.checkpoints.format import Snapshot, Tensors, publish
from worker.trainer.checkpoints.snapshot import capture
from worker.trainer.checkpoints.writer import CheckpointWriter
from worker.trainer.data.dataset import DataSet
from worker.trainer.data.order import ORDER_VERSION
from worker.trainer.out_of_memory import of_gpu, which_memory
from worker.trainer.recipes.base import Task
from worker.trainer.report.report import Report
from worker.trainer.speed.compiled import Compilation
from worker.trainer.speed.cuda_graph import CaptureOutcome
from worker.trainer.state import TrainState
from worker.trainer.step import TrainingStep
from worker.trainer.stop import StopFlag

Item = TypeVar("Item")

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


@dataclass
class Trainer:
    """`saved` is (step, evaluated_step) of the newest checkpoint of this run, `best_folder` that of
    the best one that was begun; both may still be on their way to the disk."""

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
    writer: CheckpointWriter
    versions: Mapping[str, Any]
    saved: tuple[int, int] = (0, 0)
    best_folder: Path | None = None
    _copies: Mapping[str, Tensors] = field(default_factory=dict)
    _saved_at: float = field(default_factory=time.monotonic)
    _best: Copied | None = None
    _begun_at: float = 0.0
    _write_seconds: float = 0.0
    _is_whole: bool = False
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

    def due(self) -> Due:
        """What is due at this step boundary."""
        return self.agenda.due(self.state, self.saved, time.monotonic() - self._saved_at)

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
        best = self.state.best
        if best and best.step == self.state.step and self._is_wanted():
            self._best = self._copy()
        if self._best and not self.writer.is_busy:
            allowed_at = self._begun_at + self._write_seconds / SHARE_OF_WRITING
            if time.monotonic() >= allowed_at:
                self._begin_best()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Within it nothing of the training changes, so what fails there can be saved before."""
        try:
            yield
        except Exception as error:
            lost_gpu = of_gpu(error) and which_memory(error) is None
            self._is_whole = not self.step.under_way and not lost_gpu
            raise

    def at_rest_during(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items; `at_rest` while one is made."""
        with self.at_rest():
            yield from items

    def rescue(self) -> None:
        """Before an error ends the attempt, save what is whole: the state at this step boundary,
        or at least the best one that waits in memory. Raises what goes wrong with it.
        """
        # What is not finite would be met again by whoever goes on from there.
        step, is_whole = self.step, self._is_whole
        if is_whole and bool(step.loss_sums.isfinite().all()) and step.has_finite_weights:
            self.save()
        self._begin_best()
        self.finish_saving()

    def _key(self) -> tuple[int, int]:
        return self.state.step, self.state.evaluated_step

    def _is_wanted(self) -> bool:
        """Whether the best state of now has to be copied."""
        copied = self._best.key if self._best else None
        return self.spec.checkpoint.keep_best > 0 and self._key() not in (self.saved, copied)

    def _copy(self, *, in_place: bool = False) -> Copied:
        """In the memory of the copy before, which is waited for; for `in_place` see `capture`."""
        log, asked = self.log, time.monotonic()
        folder = self.attempt.folder / "checkpoints" / f"step-{self.state.step}"
        with log.within("checkpointing"), log.clock.part("checkpoint"):
            self.writer.wait()
            began = time.monotonic()
            facts, before = self._manifest_facts(folder), self._copies
            if in_place:
                self._copies = before = {}  # a best state that waits keeps its own
            snapshot = capture(self.step, self.state, facts, before, in_place=in_place)
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
        return self.state.best is not None and self.state.best.step == copied.key[0]

    def _begin(self, copied: Copied) -> None:
        self.finish_saving()
        self.saved, self._saved_at = max(self.saved, copied.key), copied.at
        if self._is_best(copied):
            self.best_folder = copied.folder
        self._begun_at = time.monotonic()
        self.writer.begin(partial(self._write, copied))

    def finish_saving(self) -> None:
        """Wait until the last checkpoint is durable; raises what kept it from being so.

        Not counted as `checkpoint`, which is for what holds the training up.
        """
        if self.writer.is_busy or self.writer.has_failed:
            with self.log.within("checkpointing"), self.log.clock.part("other"):
                self.writer.wait()

    def _write(self, copied: Copied) -> None:
        """In the writer's thread: only what does not change while training goes on."""
        began, snapshot = time.monotonic(), copied.snapshot
        self.log.losses.sync()
        size = publish(snapshot, copied.folder)
        seconds = copied.seconds + time.monotonic() - began
        self._write_seconds = seconds
        self.log.checkpoint(
            seconds,
            copied.stall_seconds,
            path=str(copied.folder.relative_to(self.attempt.folder)),
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
