"""What a training says about itself: phases, log points, evaluations, epochs, progress.

`flush` is the training loop's one synchronization with the device; the rest tells what is known.
"""

import json
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from worker.reporting import EventLog, Pulse
from worker.trainer.agenda import Agenda
from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.dataset import DataSet
from worker.trainer.errors import Diverged
from worker.trainer.report.losses import LossFile
from worker.trainer.report.memory import LeakWatch, MemoryMeter
from worker.trainer.report.phases import PhaseClock
from worker.trainer.report.rates import PhaseProgress, Rates, Totals, training_progress
from worker.trainer.state import Scores, TrainState
from worker.trainer.step import EPOCH, WINDOW, TrainingStep

logger = logging.getLogger(__name__)

MIN_PROGRESS_SECONDS = 0.25  # no more than four progress events a second
MAX_PROGRESS_SECONDS = 1.0  # and no fewer than one while batches flow


class Report:
    """Writes events, pulse and losses.csv. One for an attempt, once model and data are there."""

    def __init__(
        self,
        events: EventLog,
        pulse: Pulse,
        losses: LossFile,
        clock: PhaseClock,
        agenda: Agenda,
        state: TrainState,
        data: DataSet,
        memory: MemoryMeter,
    ) -> None:
        self.events = events
        self.losses = losses
        self.clock = clock
        self._pulse = pulse
        self._agenda = agenda
        self._state = state
        self._data = data
        self._memory = memory
        self._totals = Totals()
        self._rates = Rates(clock, self._totals)
        self._phase = PhaseProgress(pulse.phase)
        self._progress_at = 0.0
        self._leaks = LeakWatch()

    def applied(self, applied: dict[str, Any], environment: dict[str, Any]) -> None:
        """What this attempt really uses; `applied.json` says the same."""
        document = {"applied": applied, "environment": environment}
        self.events.emit("applied", **document)
        with whole_file(self.events.path.with_name("applied.json")) as file:
            file.write_text(json.dumps(document, indent=1))

    def enter(self, phase: str, steps: int = 0, first: int = 0, **details: Any) -> None:
        """Go on to a phase of so many batches or steps (0: unknown), of which `first` are done.

        `details` stand in its event.
        """
        self._enter(PhaseProgress(phase, steps, first), **details)

    @contextmanager
    def within(self, phase: str, steps: int = 0) -> Iterator[None]:
        """A phase in between; then the one before goes on. An error leaves the phase as it is."""
        outer = self._phase
        self.enter(phase, steps)
        yield
        self._enter(outer)

    def _enter(self, phase: PhaseProgress, **details: Any) -> None:
        self._phase = phase
        self._pulse.enter(phase.name)
        self._memory.enter(phase.name)
        self.events.emit("phase", phase=phase.name, **details)

    def warning(self, code: str, message: str) -> None:
        self.events.emit("warning", code=code, message=message)
        logger.warning("%s", message)

    def trained_batch(self, size: int) -> None:
        self._totals.train_samples += size
        self._beat()

    def trained_step(self) -> None:
        self._totals.train_iterations += 1
        self._phase.step = self._state.step
        self._rates.step()
        if self._totals.train_iterations == 1:
            self.progress()  # at once: somebody waits to see that it trains

    def evaluated_batch(self, size: int) -> None:
        self._totals.eval_iterations += 1
        self._totals.eval_samples += size
        self._phase.step += 1
        self._beat()

    def visited_batch(self) -> None:
        """One that counts for the progress of its phase alone: no loss or score is of it."""
        self._phase.step += 1
        self._beat()

    def _beat(self) -> None:
        self._pulse.beat()
        if self._progress_age() >= MAX_PROGRESS_SECONDS:
            self.progress()

    def _progress_age(self) -> float:
        return time.monotonic() - self._progress_at

    def flush(self, step: TrainingStep) -> None:
        """A log point: the mean loss since the last one, in losses.csv and as an event."""
        state = self._state
        with self.clock.part("sync"):
            *loss_sums, weight, grad_norm = torch.cat(
                (step.loss_sums[WINDOW], step.grad_norm.double().reshape(1))
            ).tolist()
        self._rates.synchronized()
        # The sums are 0 as well where nothing counts.
        loss, *terms = (one / (weight or 1.0) for one in loss_sums)
        lr = step.learning_rate
        if not math.isfinite(loss):
            raise not_finite("training loss", loss, state.step, lr)
        step.restart_loss(WINDOW)
        state.logged_step = state.step
        values = {"train_loss": loss, "lr": lr, "grad_norm": grad_norm}
        values |= {f"train_{n}": x for n, x in zip(step.loss_names[1:], terms, strict=True)}
        # Under fp16 a skipped step has an infinite norm, which a manifest could not hold.
        state.last |= {name: value for name, value in values.items() if math.isfinite(value)}
        self.losses.append(state.step, state.running_epoch(), "train", loss)
        values |= {name: rate for name, rate in self._rates.lap().items() if rate is not None}
        # Asking the driver takes its time, so the sizes are told no oftener than progress is.
        tells_progress = self._progress_age() >= MIN_PROGRESS_SECONDS
        memory = self._memory.in_use(self._data.pids) if tells_progress else {}
        values |= {name: size for name, size in memory.items() if isinstance(size, int)}
        self.events.emit("metrics", step=state.step, epoch=state.running_epoch(), values=values)
        if tells_progress:
            self.progress(memory)
            logger.info("step %d/%d: loss %.6g", state.step, self._agenda.total_steps, loss)

    def checkpoint(self, seconds: float, stall_seconds: float, **saved: Any) -> None:
        """A checkpoint is durable; in the thread that wrote it."""
        self._totals.written_seconds += seconds
        timing = {"seconds": seconds, "stall_seconds": stall_seconds}
        self.events.emit("checkpoint", action="saved", **saved, **timing)

    def evaluation(self, split: str, loss: float, scores: Scores, step: int, epoch: int) -> None:
        """The scores (val_loss, test_mae, …) of a whole part, with the weights of `step`."""
        self.losses.append(step, epoch, split, loss)
        self.events.emit("metrics", step=step, epoch=epoch, values=scores)
        if self._progress_age() >= MIN_PROGRESS_SECONDS:
            self.progress()
        listed = ", ".join(f"{name} {value:.6g}" for name, value in scores.items())
        logger.info("step %d, %s: %s", step, split, listed)

    def epoch(self, step: TrainingStep) -> None:
        """An epoch is done. Synchronizes with the device, once an epoch."""
        state = self._state
        with self.clock.part("sync"):
            loss_sum, *_, weight = step.loss_sums[EPOCH].tolist()
        scores = {name: x for name, x in state.metrics().items() if name.startswith("val_")}
        self.events.emit(
            "epoch",
            epoch=state.epoch,
            epochs=self._agenda.spec.training.epochs,
            step=state.step,
            train_loss=loss_sum / (weight or 1.0),
            **scores,
        )
        step.restart_loss(EPOCH)
        state.reported_epoch = state.epoch
        if leaks := self._leaks.epoch_done(self._data.pids):
            self.warning("memory_grows", leaks)

    def progress(self, memory: dict[str, Any] | None = None) -> None:
        self._progress_at = time.monotonic()
        counters = self._data.counters
        totals = {"bytes_read": counters.bytes_read, "h2d_seconds": counters.copy_seconds}
        self.events.emit(
            "progress",
            **self._phase.document(),
            **training_progress(self._agenda, self._state, self._rates),
            **(memory or self._memory.in_use(self._data.pids)),
            totals=asdict(self._totals) | totals,
            phase_seconds=self.clock.read(),
            step_durations=self._rates.durations(),
            queue_depth=counters.queue_depth,
        )


def not_finite(what: str, value: float, step: int, lr: float) -> Diverged:
    return Diverged(
        f"The {what} became {value} at or before step {step}; checkpoints hold only finite "
        "weights.",
        f"Lower optimizer.lr (it was {lr:.3g}), set training.clip_grad_norm, or look for extreme "
        "values in the data, and restart the run (from its latest checkpoint, if any).",
    )
