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
STEP_NAMES = ("step", "global_step", "current_step", "iteration", "iter")


class CurvePoint(NamedTuple):
    """Numbers of one step; None where it says none, but may be an epoch."""

    step: int | None
    values: dict[str, float]
    epoch: int | None = None
    not_finite: tuple[tuple[str, float], ...] = ()
    """Names of what is NaN or infinite, and which of these."""

    @classmethod
    def of(cls, step: int | None, numbers: Mapping[str, float]) -> Self:
        """With what is not finite apart from the others."""
        values = {name: number for name, number in numbers.items() if math.isfinite(number)}
        not_finite = tuple((name, n) for name, n in numbers.items() if name not in values)
        epoch = values.get("epoch", -1.0)
        is_count = epoch >= 0 and epoch.is_integer()
        return cls(step, values, int(epoch) if is_count else None, not_finite)


class Places:
    """The steps of one source's points, where these do not say them."""

    def __init__(self, before: int) -> None:
        """`before`: the step that the script goes on from."""
        self._before, self._last = before, -1
        self._names: set[str] = set()
        """What was told at the last step."""

    def step_of(self, point: CurvePoint) -> int:
        """What the point says. Else its epoch, where that comes after the last one, or adds other
        numbers to it; else one more than the last.
        """
        if point.step is not None:
            return point.step
        epoch, names = point.epoch, {*point.values, *dict(point.not_finite)} - {"epoch"}
        if epoch is not None and epoch == self._last and not names & self._names:
            self._names |= names
        else:
            is_next = epoch is not None and epoch > self._last
            following = self._before + 1 if self._last < 0 else self._last + 1
            self._last, self._names = (epoch or 0) if is_next else following, names
        return self._last


def usual_name(name: str) -> str:
    """What recipes call it, where they have it."""
    return USUAL_NAMES.get(name, name)


def point_of(document: Mapping[str, Any]) -> CurvePoint | None:
    """The numbers of a document; None where there is none. Texts that are numbers count."""
    step: int | None = None
    numbers = dict[str, float]()
    for name, value in document.items():
        number = _float_of(value)
        if number is None:
            continue
        if name in STEP_NAMES:
            if math.isfinite(number):
                step = max(step or 0, int(number))
        elif name != "t" or not 10**9 < number < math.inf:  # which is a time
            numbers[name] = number
    return CurvePoint.of(step, numbers) if numbers else None


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
