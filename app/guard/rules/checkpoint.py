"""Rules about checkpoint and early_stopping: what they watch, and when they act."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from app.guard.case import Case
from app.guard.facts import known
from app.guard.rule import LEAST_LOSS_SECONDS, Finding, rule
from app.guard.wording import duration, share, size
from app.planning.schedule import ANNEALED, is_annealed, learning_rate
from app.spec.optimization import Constant, Plateau, StochasticAveraging
from app.spec.training import MOST_PATIENCE, Checkpointing, EarlyStopping
from app.suggest import closest

MOST_CHECKPOINTING = 0.02
MOST_LOST_SECONDS = 600.0
# Of a run's steps, what a rollback may undo and leave out.
MOST_LEFT_OUT = 0.1


@rule(
    "correctness.unknown_monitor",
    overridable=False,
    stands_on="A monitor that is never computed never improves.",
)
def unknown_monitor(case: Case) -> Iterator[Finding]:
    """A monitored metric is one that the evaluation computes."""
    metrics, modes = case.spec.evaluation.metrics, case.spec.recipe.metric_modes
    known_metrics = [name for name, mode in modes.items() if mode is not None]
    computed = ["val_loss", *(f"val_{name}" for name in metrics if name in known_metrics)]
    could_be = ["val_loss", *(f"val_{name}" for name in known_metrics)]
    for block, watching in case.spec.watching().items():
        monitor = watching.monitor
        if monitor in computed:
            continue
        if modes.get(monitor.removeprefix("val_"), "min") is None:
            yield Finding(
                (block, "monitor"),
                f"{monitor} cannot be watched: neither a lower nor a higher one is better.",
                "It is best at its nominal value, so the weights with the most of it are no better "
                "than others.",
                {f"/{block}/monitor": "val_loss"},
            )
            continue
        meant = closest(monitor, could_be) or "val_loss"
        fix: dict[str, Any] = {} if meant == monitor else {f"/{block}/monitor": meant}
        if meant not in computed:
            fix["/evaluation/metrics"] = [*metrics, meant.removeprefix("val_")]
        yield Finding(
            (block, "monitor"),
            f"Nothing computes {monitor!r}; the evaluation gives {', '.join(computed)}.",
            f"Nothing would ever be best. evaluation.metrics may have {', '.join(known_metrics)}.",
            fix,
        )


@rule(
    "learning.monitor_upside_down",
    stands_on="What each metric is: losses and errors fall as a model gets better.",
)
def monitor_upside_down(case: Case) -> Iterator[Finding]:
    """The mode of a monitor says what is better of it; left out, it does."""
    spec = case.spec
    for block, watching in spec.watching().items():
        better = spec.better_when(watching.monitor)
        if watching.mode != better:
            lower = "lower" if better == "min" else "higher"
            yield Finding(
                (block, "mode"),
                f"{block}.mode is {watching.mode}, and a {lower} {watching.monitor} is better.",
                _what_upside_down_does(watching),
                {f"/{block}/mode": better},
            )


def _what_upside_down_does(watching: Checkpointing | EarlyStopping | Plateau) -> str:
    match watching:
        case EarlyStopping(patience=patience):
            return f"The run would end after {patience} evaluations that each got better."
        case Plateau(patience=patience):
            return f"The rate would fall after {patience + 1} evaluations that each got better."
        case Checkpointing():
            return "The worst checkpoint would be kept as the best."


@rule(
    "correctness.no_validation",
    overridable=False,
    stands_on="Early stopping compares validation scores.",
)
def no_validation(case: Case) -> Iterator[Finding]:
    """Early stopping has a validation part to watch."""
    sizes = case.sizes
    if sizes.validation == 0 and case.spec.early_stopping is not None:
        yield Finding(
            ("early_stopping",),
            "Early stopping watches a validation metric, but the validation part is empty.",
            f"The split leaves 0 of {sum(sizes)} samples for validation.",
            {"/early_stopping": None},
        )


@rule(
    "learning.never_anneals",
    severity="warning",
    stands_on="Smith & Topin, 2018; Loshchilov & Hutter, 2017: much of what a schedule gains comes "
    "in its last, annealing part.",
)
def never_anneals(case: Case) -> Iterator[Finding]:
    """Early stopping acts only once the rate is below a tenth of its peak."""
    stopping, schedule = case.spec.early_stopping, case.spec.schedule
    if stopping is None or isinstance(schedule, Constant | Plateau):
        return
    if isinstance(case.spec.averaging, StochasticAveraging):
        return  # the rate is its own in the end: learning.stops_before_averaging
    steps, evaluations = case.steps, case.evaluations
    patience = stopping.patience
    if evaluations < patience + 2:
        return  # it cannot act at all: correctness.never_evaluated
    step = case.step_of_evaluation(patience + 1)
    if is_annealed(schedule, step, steps):
        return
    enough = patience_to_anneal(case)
    yield Finding(
        ("early_stopping",),
        f"Early stopping may end the run at step {step:,} of {steps:,}, with the rate at "
        f"{share(learning_rate(schedule, 1.0, step, steps))} of its peak.",
        f"A score often stands still while the rate is high and falls with it, and {patience} of "
        f"{evaluations} evaluations without a better one end the run. The best checkpoint is kept "
        "in any case. "
        + (
            "At a constant rate it may act at any time, and so it may where more evaluations come "
            "after the fall."
            if enough is None
            else f"With a patience of {enough} it acts once the rate is below "
            f"{ANNEALED:.0%}; at a constant rate it may act at any time."
        ),
        {"/early_stopping": None} if enough is None else {"/early_stopping/patience": enough},
    )


def patience_to_anneal(case: Case) -> int | None:
    """The least with which early stopping acts only once the rate has annealed; None where it would
    not act at all then. UnknownFact.
    """
    steps, evaluations = case.steps, case.evaluations

    def anneals(patience: int) -> bool:
        return is_annealed(case.spec.schedule, case.step_of_evaluation(patience + 1), steps)

    able = range(1, min(evaluations - 1, MOST_PATIENCE + 1))
    found = bisect_left(able, True, key=anneals)
    return able[found] if found < len(able) else None


@rule(
    "learning.stops_before_averaging",
    severity="warning",
    stands_on="Izmailov et al., 2018: an average has to have weights of several epochs in it.",
)
def stops_before_averaging(case: Case) -> Iterator[Finding]:
    """Early stopping acts only once SWA has averaged weights."""
    stopping, averaging = case.spec.early_stopping, case.spec.averaging
    if stopping is None or not isinstance(averaging, StochasticAveraging):
        return
    averaged = averaging.start_epoch * case.epoch_steps
    if averaged > case.steps or case.evaluations < stopping.patience + 2:
        return  # one of both never acts: learning.averages_nothing, correctness.never_evaluated
    step = case.step_of_evaluation(stopping.patience + 1)
    if step >= averaged:
        return
    able = range(1, min(case.evaluations - 1, MOST_PATIENCE + 1))
    found = bisect_left(able, averaged, key=lambda n: case.step_of_evaluation(n + 1))
    yield Finding(
        ("early_stopping",),
        f"Early stopping may end the run at step {step:,}, and SWA has its first weights at step "
        f"{averaged:,}, the end of epoch {averaging.start_epoch:,}.",
        "The run would deliver weights that nothing was averaged into.",
        {"/early_stopping/patience": able[found]}
        if found < len(able)
        else {"/early_stopping": None},
    )


@rule(
    "learning.stops_before_plateau",
    severity="warning",
    stands_on="The rate falls at the first evaluation beyond schedule.patience; what it brings "
    "shows at the next one at the earliest.",
)
def stops_before_plateau(case: Case) -> Iterator[Finding]:
    """Early stopping has patience enough to see what a plateau schedule's lower rate brings."""
    stopping, schedule = case.spec.early_stopping, case.spec.schedule
    if stopping is None or not isinstance(schedule, Plateau):
        return
    falls = schedule.patience + 1
    if stopping.monitor != schedule.monitor or stopping.patience > falls:
        return
    enough = min(2 * falls, case.evaluations - 2, MOST_PATIENCE)
    yield Finding(
        ("early_stopping", "patience"),
        f"Early stopping ends the run after {stopping.patience:,} evaluations without a better "
        f"{stopping.monitor}, and the rate falls after {falls:,}.",
        "Whenever the rate would fall the run is over, so it is trained at one rate throughout.",
        {"/early_stopping/patience": enough} if enough > falls else {"/early_stopping": None},
    )


@rule(
    "memory.checkpoints_fill_disk",
    stands_on="A checkpoint holds weights, averaged ones beside them, and optimizer; a new one is "
    "written before an old one is removed.",
)
def checkpoints_fill_disk(case: Case) -> Iterator[Finding]:
    """The checkpoints that are kept, and the one being written, have room on the disk."""
    free = known(case.device.host.disk_free_bytes, "the free space below the artifact root")
    plan = case.memory
    parts = ("weights", "average", "optimizer")
    state = sum(item.bytes for item in plan.with_model.items if item.name in parts)
    kept = case.spec.checkpoint
    count = kept.keep_last + kept.keep_best + 1
    if count * state <= free:
        return
    room_for = free // state - 1
    best = min(kept.keep_best, max(0, room_for - 1))
    last = min(kept.keep_last, room_for - best)
    fix = {"/checkpoint/keep_last": last, "/checkpoint/keep_best": best} if last > 0 else {}
    yield Finding(
        ("checkpoint", "keep_last"),
        f"{count} checkpoints come to {size(count * state)}, and {size(free)} are available.",
        f"One takes {size(state)}; on a full disk none can be saved, and the run ends with it.",
        fix,
    )


@rule(
    "speed.frequent_checkpoints",
    stands_on="Seconds for which checkpoints held like runs up, in this service's own history: "
    "training waits for a copy of its state, and for the checkpoint before.",
    measured_by="frequent_checkpoints",
)
def frequent_checkpoints(case: Case) -> Iterator[Finding]:
    """Checkpoints take at most 2 % of a run's time, or a minute; ten minutes apart they may be."""
    settings = list(_saves(case))
    if not settings:
        return
    history = case.like_runs
    seconds = known(history.checkpoint_seconds, "how long checkpoints of runs like it take")
    trained = case.steps / history.iterations_per_second
    written = history.written_seconds or 0.0
    fastest = min(max(seconds / MOST_CHECKPOINTING, written), MOST_LOST_SECONDS)
    for name, unit in settings:
        interval = getattr(case.spec.checkpoint, name) / unit
        # Closer together than one is written, each waits for the one before.
        paid = max(seconds, written - interval)
        if interval >= fastest or trained / interval * paid <= LEAST_LOSS_SECONDS:
            continue
        yield Finding(
            ("checkpoint", name),
            f"A checkpoint every {duration(interval)} takes {share(min(1.0, paid / interval))} of "
            "the time.",
            f"Each holds up a run like this for {paid:.2g} s. With one every {duration(fastest)}, "
            f"a kill loses no more than that, and they take {share(seconds / fastest)} of the "
            "time.",
            {f"/checkpoint/{name}": math.ceil(fastest * unit)},
        )


def _saves(case: Case) -> Iterator[tuple[str, float]]:
    """Each setting by which checkpoints are asked for, and how many of its unit a second has. The
    best are not: the trainer writes them when they take little of its time. UnknownFact.
    """
    pace = case.like_runs.iterations_per_second
    if case.spec.checkpoint.every_seconds is not None:
        yield "every_seconds", 1.0
    if case.spec.checkpoint.every_steps is not None:
        yield "every_steps", pace


@rule(
    "learning.rare_checkpoints",
    severity="warning",
    stands_on="A kill or a crash loses what was trained since the last checkpoint.",
)
def rare_checkpoints(case: Case) -> Iterator[Finding]:
    """A kill loses at most ten minutes of training."""
    wanted, limit = case.spec.checkpoint, case.spec.policy.max_duration_seconds
    if any(
        most is not None and most <= MOST_LOST_SECONDS for most in (wanted.every_seconds, limit)
    ):
        return
    history = case.history
    if history and case.training_seconds <= MOST_LOST_SECONDS:
        return
    interval = wanted.every_seconds
    if wanted.every_steps is not None:
        pace = known(history, "how fast runs like it are").iterations_per_second
        by_steps = wanted.every_steps / pace
        interval = by_steps if interval is None else min(interval, by_steps)
    if interval is not None and interval <= MOST_LOST_SECONDS:
        return
    often = (
        "only by a new best score or at the end"
        if interval is None
        else f"every {duration(interval)}"
    )
    yield Finding(
        ("checkpoint", "every_seconds"),
        f"The state is saved {often}.",
        "A power cut, a kill or a crash would lose all training since; every 300 seconds, it "
        "loses five minutes at most.",
        {"/checkpoint/every_seconds": 300.0},
    )


@rule(
    "learning.rollback_undoes_much",
    severity="warning",
    stands_on="A rollback undoes the steps since the newest checkpoint, and their data is left "
    "out; without a checkpoint there is none.",
)
def rollback_undoes_much(case: Case) -> Iterator[Finding]:
    """Where a loss that is not finite is rolled back, that undoes at most a tenth of the run."""
    steps = case.steps
    if case.spec.policy.on_nonfinite != "rollback" or not steps:
        return
    between = _steps_between_checkpoints(case)
    if between <= max(1.0, MOST_LEFT_OUT * steps):
        return
    wanted = max(1, int(MOST_LEFT_OUT * steps))
    often = f"every {math.ceil(between):,} steps"
    if between >= steps:
        often = "by a new best score or at the end"
    yield Finding(
        ("checkpoint", "every_steps"),
        f"A rollback may undo up to {math.ceil(min(between, steps)):,} of the run's {steps:,} "
        f"steps: the state is saved {often}.",
        "The data of these steps would be left out, and a run that has saved nothing yet fails. "
        f"With a checkpoint every {wanted:,} steps, at most {share(wanted / steps)} are lost.",
        {"/checkpoint/every_steps": wanted},
    )


def _steps_between_checkpoints(case: Case) -> float:
    """Infinite where none comes before the end. UnknownFact where they come by time alone, and
    nobody knows how fast the run is.
    """
    wanted = case.spec.checkpoint
    by_steps = math.inf if wanted.every_steps is None else float(wanted.every_steps)
    if by_steps <= MOST_LEFT_OUT * case.steps or wanted.every_seconds is None:
        return by_steps
    pace = known(case.history, "how fast runs like it are").iterations_per_second
    return min(by_steps, wanted.every_seconds * pace)
