"""Points of a script's curves: numbers by name, at a step."""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

# What other trainers call the curves that recipes have.
USUAL_NAMES = {
    "loss": "train_loss", "train/loss": "train_loss", "train_loss_step": "train_loss",
    "eval_loss": "val_loss", "eval/loss": "val_loss", "val/loss": "val_loss",
    "validation_loss": "val_loss", "learning_rate": "lr", "train/learning_rate": "lr",
    "train/grad_norm": "grad_norm",
}  # fmt: skip
STEP_NAMES = ("step", "global_step", "current_step", "iteration", "iter")


class CurvePoint(NamedTuple):
    """Numbers of one step."""

    step: int
    t: float
    values: dict[str, float]


def usual_name(name: str) -> str:
    """What recipes call it, where they have it."""
    return USUAL_NAMES.get(name, name)


def point_of(document: Mapping[str, Any]) -> CurvePoint | None:
    """The numbers of a document; None where none is finite. Texts that are numbers count."""
    step, values, t = 0, dict[str, float](), time.time()
    for name, value in document.items():
        number = number_of(value)
        if number is None:
            continue
        if name in STEP_NAMES:
            step = max(step, int(number))
        elif name == "t" and number > 10**9:
            t = number
        else:
            values[name] = number
    return CurvePoint(step, t, values) if values else None


def number_of(value: Any) -> float | None:
    """A finite number; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
