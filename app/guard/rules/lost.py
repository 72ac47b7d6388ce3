"""Rules about training that would be lost: state that is saved too rarely, attempts ended early."""

import math
from collections.abc import Iterator

from app.guard.case import Case
from app.guard.facts import known
from app.guard.memory.worker_pools import START_SECONDS
from app.guard.rule import Finding, rule
from app.guard.wording import duration
from app.spec.data import DataLoaderLoader, Loader

MOST_LOST_SECONDS = 600.0
HANG_MARGIN = 5.0


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
    "learning.hang_timeout",
    stands_on="The seconds of a step and of a checkpoint in like runs of this service's history.",
)
def hang_timeout(case: Case) -> Iterator[Finding]:
    """A run is taken for hanging only after several times what its slowest turn takes."""
    limit = case.spec.policy.hang_timeout_seconds
    if limit == "auto":
        return
    history = case.like_runs
    saving = history.written_seconds or history.checkpoint_seconds or 0.0
    slowest = max(1 / history.iterations_per_second, saving, _start_seconds(case.spec.data.loader))
    needed = math.ceil(HANG_MARGIN * slowest)
    if limit < needed:
        yield Finding(
            ("policy", "hang_timeout_seconds"),
            f"An attempt would be ended as hanging after {duration(limit)} without progress.",
            f"A step or a checkpoint of like runs, or the start of the loader's processes, takes "
            f"{duration(slowest)}; on a busy machine "
            f"{HANG_MARGIN:g} times that is no hang.",
            {"/policy/hang_timeout_seconds": float(needed)},
        )


def _start_seconds(loader: Loader) -> float:
    """Of the loader's processes, where they begin anew in mid-run; at first there is more time."""
    if not isinstance(loader, DataLoaderLoader) or loader.persistent_workers:
        return 0.0
    return START_SECONDS[loader.multiprocessing_context] if loader.num_workers else 0.0


RULES = (hang_timeout, rare_checkpoints)
