"""Where a training stands: the plain numbers that, with the tensors, are saved and restored."""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from pydantic import ConfigDict, with_config

from app.spec.optimization import Plateau
from app.spec.training import Checkpointing

Scores = dict[str, float]

# torch's ReduceLROnPlateau leaves a rate that would change by less.
LEAST_FALL = 1e-8

# How what was saved is checked before it is restored; see worker/trainer/checkpoints/manifest.py.
as_saved = with_config(ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))


@as_saved
@dataclass(frozen=True)
class Yardstick:
    """How evaluations are judged; values by different ones must not be compared."""

    monitor: str
    mode: str
    max_batches: int | None
    spaced: bool = False
    """True if these batches are spaced evenly. Earlier versions took the first ones."""

    @property
    def batches(self) -> tuple[int | None, bool]:
        """Equal where evaluations look at the same batches."""
        return self.max_batches, self.spaced


@as_saved
@dataclass
class Best:
    """The best evaluation by `checkpoint.monitor`."""

    step: int
    epoch: int
    value: float
    scores: Scores

    def document(self) -> dict[str, float | int]:
        return {"step": self.step, "epoch": self.epoch, **self.scores}


@as_saved
@dataclass
class Lowered:
    """What `schedule.kind: plateau` has come to, by the rules of torch's ReduceLROnPlateau,
    but for values below 0 (`improves_by_share`).
    """

    rate: float
    """The learning rate."""
    by: Yardstick
    """By which evaluations are judged."""
    best: float | None = None
    """Value that it wants improved."""
    used: int = 0
    """Evaluations in a row without that improvement, since the rate fell last."""

    def note(self, value: float, schedule: Plateau) -> None:
        """An evaluation: after more than `patience` without an improvement the rate falls."""
        if improves_by_share(value, self.best, schedule.mode, schedule.threshold):
            self.best, self.used = value, 0
            return
        self.used += 1
        if self.used > schedule.patience:
            self.used = 0
            rate = max(self.rate * schedule.factor, schedule.min_lr)
            if self.rate - rate > LEAST_FALL:
                self.rate = rate


@as_saved
@dataclass(frozen=True)
class LeftOut:
    """What a rollback went past, up to `position` in `epoch`, in epochs done and samples."""

    from_epoch: int
    from_position: int
    epoch: int
    position: int

    def has(self, epoch: int, position: int) -> bool:
        begin, end = (self.from_epoch, self.from_position), (self.epoch, self.position)
        return begin <= (epoch, position) < end


@as_saved
@dataclass
class TrainState:
    """Step, epoch and position count what is done; the rest is what decisions depend on."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done."""
    position: int = 0
    """Samples of the running epoch that have been trained on."""
    trained_seconds: float = 0.0
    """Wall time of the training loop, over all attempts."""
    learning_rate: float | None = None
    """Of the latest step."""
    logged_step: int = 0
    """Step of the last log point."""
    evaluated_step: int = 0
    """Step of the last finished evaluation; behind `step` when one was cut short."""
    reported_epoch: int = 0
    """Epochs that have been reported as done."""
    last: Scores = field(default_factory=dict)
    """Latest train_loss, lr, grad_norm, val_loss, …"""
    best: Best | None = None
    best_by: Yardstick | None = None
    """By which `best` is the best."""
    patience_by: Yardstick | None = None
    """By which early stopping counts its patience; None without early stopping."""
    patience_best: float | None = None
    """Value that early stopping wants improved."""
    patience_used: int = 0
    """Evaluations in a row without that improvement."""
    lowered: Lowered | None = None
    """None: another schedule than plateau."""
    left_out_steps: int = 0
    """Steps that were not made, since a rollback went past them; they count as done."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Where these steps lie."""

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        # Versions before rollbacks and plateaus do not know these.
        for name in ("left_out_steps", "left_out", "lowered"):
            if not document[name]:
                del document[name]
        return document

    def place(self) -> dict[str, int]:
        """How far it is: step, epoch, position."""
        return {"step": self.step, "epoch": self.epoch, "position": self.position}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        kinds = {"best": Best, "best_by": Yardstick, "patience_by": Yardstick, "lowered": Lowered}
        parts = {name: document.get(name) for name in kinds}
        if lowered := parts["lowered"]:
            parts["lowered"] = lowered | {"by": Yardstick(**lowered["by"])}
        whole = {name: kinds[name](**part) if part else None for name, part in parts.items()}
        left_out = [LeftOut(**one) for one in document.get("left_out", ())]
        return cls(**document | whole | {"left_out": left_out})

    def was_left_out(self, epoch: int, position: int) -> bool:
        """Whether no step was made of this sample of an epoch, counted from 0."""
        return any(one.has(epoch, position) for one in self.left_out)

    def judge_by(self, best_by: Yardstick, patience_by: Yardstick | None) -> list[str]:
        """Go on with these; says what of the book that was kept by others could not be kept.

        The best evaluation's scores hold every metric, so it stays as long as it was made of the
        same batches; patience starts anew from it.
        """
        lost = []
        if self.best is not None and self.best_by != best_by:
            value = self.best.scores.get(best_by.monitor)
            same_batches = self.best_by and self.best_by.batches == best_by.batches
            if same_batches and value is not None:
                self.best = replace(self.best, value=value)
            else:
                lost.append(f"the best evaluation so far (step {self.best.step})")
                self.best = None
        if self.patience_by != patience_by:
            if patience_by is not None and self.patience_best is not None:
                lost.append(f"{self.patience_used} evaluations of patience")
                scores = self.best.scores if self.best else {}
                self.patience_best = scores.get(patience_by.monitor)
            else:
                self.patience_best = None
            self.patience_used = 0
        self.best_by, self.patience_by = best_by, patience_by
        return lost

    def lower_by(self, peak: float, by: Yardstick) -> list[str]:
        """The same for a plateau, which begins at the peak rate."""
        if self.lowered is None:
            self.lowered = Lowered(peak, by)
        if self.lowered.by == by:
            return []
        self.lowered = Lowered(self.lowered.rate, by)
        return ["the evaluations that schedule.patience has counted"]

    def note_plateau(self, value: float, schedule: Plateau) -> None:
        """An evaluation, by which the rate of the next step may fall."""
        if self.lowered is not None:
            self.lowered.note(value, schedule)

    def note_best(self, kept: Checkpointing) -> bool:
        """Whether the evaluation of this step is the best so far; if so, it is `best` now."""
        scores = {name: value for name, value in self.last.items() if name.startswith("val_")}
        value = scores[kept.monitor]
        if not improves(value, self.best.value if self.best else None, kept.mode):
            return False
        self.best = Best(self.step, self.running_epoch(), value, scores)
        return True

    def metrics(self) -> Scores:
        """What is known of the weights of this very step."""
        if self.evaluated_step == self.step:
            return dict(self.last)
        return {name: value for name, value in self.last.items() if not name.startswith("val_")}

    def running_epoch(self) -> int:
        """The epoch, from 1, that the latest step belonged to."""
        return self.epoch + (self.position > 0)

    def advance(self, epoch_samples: int) -> None:
        """Count a finished step, and the epoch when `position` has reached its end."""
        self.step += 1
        if self.position >= epoch_samples:
            self.epoch += 1
            self.position = 0


def improves(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    if best is None:
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta


def improves_by_share(value: float, best: float | None, mode: str, threshold: float) -> bool:
    """By more than this share of the best value; of one below 0 by its size, unlike torch's, for
    which then a value that is a little worse would be better.
    """
    if best is None:
        return True
    share = math.copysign(threshold, best)
    return value < best * (1.0 - share) if mode == "min" else value > best * (1.0 + share)
