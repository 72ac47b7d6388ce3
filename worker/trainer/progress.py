"""Counts and rates of an attempt, and the progress document made of them."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from worker.trainer.agenda import Agenda
from worker.trainer.phases import TRAINING_PARTS, PhaseClock
from worker.trainer.state import TrainState

LEAST_LAP_SECONDS = 1.0


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
    """Training speed up to a log point, in training time: evaluations do not slow it down.

    Over the last LEAST_LAP_SECONDS and more, as far as there were so many: an epoch often ends with
    a log point after one short batch, whose own speed says nothing.
    """

    def __init__(self, clock: PhaseClock, totals: Totals) -> None:
        self._clock = clock
        self._totals = totals
        self._marks = deque([self._read()])
        self.latest: dict[str, float | None] = dict.fromkeys(
            ("iterations_per_second", "samples_per_second", "data_wait_ratio")
        )

    def lap(self) -> dict[str, float | None]:
        """The rates of the lap that ends now."""
        now = self._read()
        while len(self._marks) > 1 and now[-1] - self._marks[1][-1] >= LEAST_LAP_SECONDS:
            self._marks.popleft()
        before = self._marks[0]
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
        steps, samples, _, seconds = self._read()
        trained = steps > 0 and seconds > 0
        return {
            "mean_iterations_per_second": steps / seconds if trained else None,
            "mean_samples_per_second": samples / seconds if trained else None,
        }

    def _read(self) -> tuple[float, float, float, float]:
        seconds = self._clock.read()
        training = sum(seconds[part] for part in TRAINING_PARTS)
        totals = self._totals
        return totals.train_iterations, totals.train_samples, seconds["data_wait"], training


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
        **rates.latest,
        **means,
    }
