"""The learning rate as a pure function of the step, so that resuming needs no scheduler state."""

import math

from app.spec.optimization import (
    Constant,
    CosineWarmup,
    LinearWarmup,
    OneCycle,
    Plateau,
    Schedule,
    StochasticAveraging,
)
from app.spec.run import RunSpec

# Where a schedule is stretched over other steps: from one step to the next the rate may change by
# this factor, and by more only if it is meant to.
LARGEST_JUMP = 1.5
# Below this share of its peak a rate has annealed.
ANNEALED = 0.1


def learning_rate(schedule: Schedule, peak: float, step: int, total_steps: int) -> float:
    """The rate of optimizer step `step` (from 0) of `total_steps`, for a peak rate `peak`.

    Of a plateau that before its first fall, which hangs on the evaluations.
    """
    match schedule:
        case Constant() | Plateau():
            return peak
        case OneCycle():
            return _one_cycle(schedule, peak, step, total_steps)
        case CosineWarmup():
            risen, fallen = _rise_and_fall(schedule, step, total_steps)
            return peak * risen * 0.5 * (1.0 + math.cos(math.pi * fallen))
        case LinearWarmup():
            risen, fallen = _rise_and_fall(schedule, step, total_steps)
            return peak * risen * (1.0 - fallen)


def run_rate(
    spec: RunSpec, step: int, total_steps: int, epoch_steps: int, lowered: float | None = None
) -> float:
    """The rate of a run's step `step` (from 0): that of its schedule, until SWA has its own.

    `lowered`: what a plateau has come to, which nobody can plan. As torch's SWALR, whose step comes
    once an epoch, SWA goes from the rate that the schedule would have at its first step to its own.
    """
    averaging = spec.averaging
    if not isinstance(averaging, StochasticAveraging):
        return _scheduled(spec, step, total_steps, lowered)
    begins = (averaging.start_epoch - 1) * epoch_steps
    before = _scheduled(spec, min(step, begins), total_steps, lowered)
    if step < begins:
        return before
    epochs = (step - begins) // epoch_steps + 1
    share = min(1.0, epochs / averaging.anneal_epochs) if averaging.anneal_epochs else 1.0
    gone = (1.0 - math.cos(math.pi * share)) / 2.0
    return averaging.lr * gone + before * (1.0 - gone)


def _scheduled(spec: RunSpec, step: int, total_steps: int, lowered: float | None) -> float:
    if lowered is not None and isinstance(spec.schedule, Plateau):
        return lowered
    return learning_rate(spec.schedule, spec.optimizer.lr, step, total_steps)


def is_annealed(schedule: Schedule, step: int, steps: int) -> bool:
    """Whether the rate is near its end at a step; one that no step changes always is."""
    if isinstance(schedule, Constant | Plateau):
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
