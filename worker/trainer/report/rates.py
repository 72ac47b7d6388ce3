"""Counts and rates of an attempt, and the progress document made of them."""

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from worker.trainer.agenda import Agenda
from worker.trainer.report.phases import PhaseClock
from worker.trainer.state import TrainState

LEAST_LAP_SECONDS = 1.0
# Upper bounds of the buckets of step durations, in seconds; one more bucket has none.
STEP_BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
Mark = tuple[int, int, float, float]


@dataclass
class PhaseProgress:
    """How far the running phase has come; `steps` 0: unknown. A resumed one began at `first`."""

    name: str
    steps: int = 0
    first: int = 0
    step: int = field(init=False)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.step = self.first

    def document(self) -> dict[str, Any]:
        rate = (self.step - self.first) / max(time.monotonic() - self.began, 1e-9)
        left = (self.steps - self.step) / rate if self.steps and rate else None
        return {
            "phase": self.name,
            "phase_step": self.step,
            "phase_steps": self.steps or None,
            "phase_rate": rate,
            "phase_eta_seconds": left,
        }


@dataclass
class Totals:
    """Of this attempt. Training iterations are optimizer steps, evaluation iterations batches."""

    train_iterations: int = 0
    train_samples: int = 0
    eval_iterations: int = 0
    eval_samples: int = 0
    written_seconds: float = 0.0
    """Of checkpoints, each until it was durable."""


class Rates:
    """Training speed in training time, which evaluations and checkpoints do not slow down.

    Rates are over the last LEAST_LAP_SECONDS and more up to a step boundary, as far as there were
    so many: an epoch often ends with a log point after one short batch, whose own speed says
    nothing. Durations are the host's, from step to step; on CUDA the device may be some behind.
    """

    def __init__(self, clock: PhaseClock, totals: Totals) -> None:
        self._clock = clock
        self._totals = totals
        self._counts = [0] * (len(STEP_BOUNDS) + 1)
        self._step_ended = 0.0
        self._boundary: Mark = (0, 0, 0.0, 0.0)
        self._marks = deque([self._boundary])
        self.latest: dict[str, float | None] = dict.fromkeys(
            ("iterations_per_second", "samples_per_second", "data_wait_ratio")
        )

    def step(self) -> None:
        """Count a step that has ended just now. Called at each; it takes 0.4 µs (lab notes)."""
        seconds, waited = self._clock.training()
        self._counts[bisect_left(STEP_BOUNDS, seconds - self._step_ended)] += 1
        self._step_ended = seconds
        totals = self._totals
        self._boundary = (totals.train_iterations, totals.train_samples, waited, seconds)

    def synchronized(self) -> None:
        """The device has just done all steps: what it took longer than the host is theirs too."""
        seconds, waited = self._clock.training()
        self._boundary = (*self._boundary[:2], waited, seconds)

    def lap(self) -> dict[str, float | None]:
        """The rates up to the last step boundary."""
        now = self._boundary
        while len(self._marks) > 1 and now[-1] - self._marks[1][-1] >= LEAST_LAP_SECONDS:
            self._marks.popleft()
        before = self._marks[0]
        if now != self._marks[-1]:
            self._marks.append(now)
        steps, samples, waited, seconds = (b - a for a, b in zip(before, now, strict=True))
        if steps and seconds > 0:
            self.latest = {
                "iterations_per_second": steps / seconds,
                "samples_per_second": samples / seconds,
                "data_wait_ratio": waited / seconds,
            }
        return self.latest

    def means(self) -> dict[str, float | None]:
        """Over the attempt so far, which is what the time to the end is reckoned with."""
        steps, samples, _, seconds = self._boundary
        trained = steps > 0 and seconds > 0
        return {
            "mean_iterations_per_second": steps / seconds if trained else None,
            "mean_samples_per_second": samples / seconds if trained else None,
        }

    def durations(self) -> dict[str, Any]:
        """How many steps took up to each bound, the last count without one; and all, in seconds."""
        return {
            "bounds": STEP_BOUNDS,
            "counts": tuple(self._counts),
            "seconds": self._step_ended,
        }


def training_progress(agenda: Agenda, state: TrainState, rates: Rates) -> dict[str, Any]:
    """Where the training stands; `epoch` is the one under way, from 1."""
    epochs, means = agenda.spec.training.epochs, rates.means()
    left, pace = agenda.total_steps - state.step, means["mean_iterations_per_second"]
    return {
        "epoch": min(state.epoch + 1, epochs),
        "epochs": epochs,
        "step": state.step,
        "steps": agenda.total_steps,
        "eta_seconds": left / pace if pace else None,
        "loss": state.last.get("train_loss"),
        "lr": state.last.get("lr"),
        "grad_norm": state.last.get("grad_norm"),
        "best": state.best.document() if state.best else None,
        **rates.lap(),
        **means,
    }
