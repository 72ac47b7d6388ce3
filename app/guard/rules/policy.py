"""Rules about policy: an attempt has the time that it needs."""

import math
from collections.abc import Iterator

from app.guard.case import Case
from app.guard.memory.worker_pools import START_SECONDS
from app.guard.rule import Finding, rule
from app.guard.wording import duration, share
from app.spec.data import DataLoaderLoader, Loader

HANG_MARGIN = 5.0


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


@rule(
    "learning.ends_before_its_epochs",
    severity="warning",
    stands_on="The iterations a second of like runs in this service's own history.",
)
def ends_before_its_epochs(case: Case) -> Iterator[Finding]:
    """max_duration_seconds is enough for the epochs that are asked for."""
    limit = case.spec.policy.max_duration_seconds
    if limit is None:
        return
    history = case.like_runs
    steps = case.steps
    seconds = case.training_seconds
    if seconds <= limit:
        return
    yield Finding(
        ("policy", "max_duration_seconds"),
        f"The run would need about {duration(seconds)} and is ended after {duration(limit)}.",
        f"Like runs do {history.iterations_per_second:.3g} it/s; with evaluations and checkpoints "
        f"it would end at about {share(limit / seconds)} of its {steps:,} steps, with the learning "
        "rate of that place.",
        {"/policy/max_duration_seconds": math.ceil(seconds * 1.2)},
    )
