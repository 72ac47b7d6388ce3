"""Points of a script's curves: numbers by name, at a step."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

# What other trainers call the curves that recipes have.
USUAL_NAMES = {
    "loss": "train_loss", "train/loss": "train_loss", "train_loss_step": "train_loss",
    "eval_loss": "val_loss", "eval/loss": "val_loss", "val/loss": "val_loss",
    "validation_loss": "val_loss", "learning_rate": "lr", "train/learning_rate": "lr",
    "train/grad_norm": "grad_norm",
}  # fmt: skip
MEANS = ("train/train_loss",)
"""Names of a mean over the whole training, which is no point of a curve."""
EPOCH = "epoch"
STEP_NAMES = ("step", "global_step", "current_step", "iteration", "iter")


class PointOrigin(NamedTuple):
    """Where a point was read: so many bytes of its file end with it, and were written by then (unix
    seconds).
    """

    offset: int
    written: float


class CurvePoint(NamedTuple):
    """Numbers of one step; None where it says none, but may be an epoch."""

    step: int | None
    values: dict[str, float]
    epoch: int | None = None
    not_finite: tuple[tuple[str, float], ...] = ()
    """Names of what is NaN or infinite, and which of these."""
    origin: PointOrigin | None = None

    @classmethod
    def of(cls, step: int | None, numbers: Mapping[str, float]) -> Self:
        """With what is not finite apart from the others."""
        values = {name: number for name, number in numbers.items() if math.isfinite(number)}
        not_finite = tuple((name, n) for name, n in numbers.items() if name not in values)
        epoch = values.get(EPOCH, -1.0)
        is_count = epoch >= 0 and epoch.is_integer()
        return cls(step, values, int(epoch) if is_count else None, not_finite)


class LastPoint(NamedTuple):
    """Where a curve ended when the checkpoint was made that the script goes on from."""

    step: int
    epoch: float | None

    def was_at(self, epoch: int) -> bool:
        """Whether the steps were epochs, and the script still counts them so: one that begins anew
        with 0 or 1 does not.
        """
        return self.step == self.epoch and epoch > 1


class Places:
    """The steps of one source's points, where these do not say them."""

    def __init__(self, before: int) -> None:
        """`before`: the step that the script goes on from."""
        self._before, self._last = before, -1
        self._names: frozenset[str] = frozenset()
        """What was told at the last step."""

    def step_of(self, point: CurvePoint, names: frozenset[str], past: LastPoint | None) -> int:
        """What the point says. Else its epoch, where that comes after the last one, or adds other
        numbers to it; else one more than the last. `names`: of its numbers; `past`: of these, the
        last of the attempts before.
        """
        if point.step is not None:
            return point.step
        epoch, last = point.epoch, self._last
        if epoch is not None and epoch == last and not names & self._names:
            self._names |= names
            return last
        if epoch is None:
            last = max(last, self._before)
        if past is not None and (epoch is None or not past.was_at(epoch)):
            last = max(last, past.step)
        self._last = epoch if epoch is not None and epoch > last else last + 1
        self._names = names
        return self._last


def usual_name(name: str) -> str:
    """What recipes call it, where they have it."""
    return USUAL_NAMES.get(name, name)


def point_of(document: Mapping[str, Any], origin: PointOrigin | None = None) -> CurvePoint | None:
    """The numbers of a document; None where there is none. Texts that are numbers count. Beside the
    time of a whole training, its loss is the mean and no point.
    """
    step: int | None = None
    numbers = dict[str, float]()
    is_summary = "train_runtime" in document
    for name, value in document.items():
        number = _float_of(value)
        if number is None or (is_summary and name == "train_loss"):
            continue
        if name in STEP_NAMES:
            if math.isfinite(number):
                step = max(step or 0, int(number))
        elif name != "t" or not 10**9 < number < math.inf:  # which is a time
            numbers[name] = number
    return CurvePoint.of(step, numbers)._replace(origin=origin) if numbers else None


def number_of(value: Any) -> float | None:
    """A finite number; None for what is none."""
    number = _float_of(value)
    return number if number is not None and math.isfinite(number) else None


def _float_of(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        return None
