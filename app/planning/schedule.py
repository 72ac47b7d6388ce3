"""The learning rate as a pure function of the step, so that resuming needs no scheduler state."""

import math

from app.spec.optimization import (
    Constant,
    CosineWarmup,
    LinearWarmup,
    OneCycle,
    Plateau,
    Schedule,
)

# Where a schedule is stretched over other steps: from one step to the next the rate may change by
# this factor, and by more only if it is meant to.
LARGEST_JUMP = 1.5
# Below this share of its peak a rate has annealed.
ANNEALED = 0.1


def learning_rate(schedule: Schedule, peak: float, step: int, total_steps: int) -> float:
    """The rate of optimizer step `step` (from 0) of `total_steps`, for a peak rate `peak`."""
    match schedule:
        case Constant():
            return peak
        case OneCycle():
            return _one_cycle(schedule, peak, step, total_steps)
        case CosineWarmup():
            risen, fallen = _rise_and_fall(schedule, step, total_steps)
            return peak * risen * 0.5 * (1.0 + math.cos(math.pi * fallen))
        case LinearWarmup():
            risen, fallen = _rise_and_fall(schedule, step, total_steps)
            return peak * risen * (1.0 - fallen)
        case Plateau():
            raise ValueError("schedule.kind plateau is not available yet")


def is_annealed(schedule: Schedule, step: int, steps: int) -> bool:
    """Whether the rate is near its end at a step; a constant rate always is."""
    if isinstance(schedule, Constant):
        return True
    now, then = (learning_rate(schedule, 1.0, min(s, steps - 1), steps) for s in (step, step + 1))
    return now <= ANNEALED and then <= now


def schedule_version(schedule: Schedule) -> int:
    """Part of every manifest: another number where the same spec gave other learning rates before.

    2: warm-ups of cosine and linear begin above 0, where 1 had a first step at a rate of 0.
    """
    return 2 if isinstance(schedule, CosineWarmup | LinearWarmup) else 1


def _one_cycle(schedule: OneCycle, peak: float, step: int, total_steps: int) -> float:
    """Smith & Topin 2018, with the turning points of torch.optim.lr_scheduler.OneCycleLR."""
    first, last = peak / schedule.div_factor, peak / schedule.div_factor / schedule.final_div_factor
    top = _warmup_steps(schedule, total_steps) - 1.0
    if step <= top:
        return _cosine_between(first, peak, step / top if top > 0 else 1.0)
    return _cosine_between(peak, last, (step - top) / max(total_steps - 1 - top, 1e-12))


def _cosine_between(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1.0)


def _warmup_steps(schedule: OneCycle | CosineWarmup | LinearWarmup, total_steps: int) -> float:
    if schedule.warmup_steps is not None:
        return float(min(schedule.warmup_steps, total_steps))
    return (schedule.warmup_fraction or 0.0) * total_steps


def _rise_and_fall(
    schedule: CosineWarmup | LinearWarmup, step: int, total_steps: int
) -> tuple[float, float]:
    """How far the warm-up has come and how far the decay after it, both 0 to 1.

    The first step is one step up already: at a rate of 0 it would change no weight.
    """
    warmup = _warmup_steps(schedule, total_steps)
    if step < warmup:
        return (step + 1.0) / (warmup + 1.0), 0.0
    return 1.0, (step - warmup) / max(total_steps - warmup, 1.0)
