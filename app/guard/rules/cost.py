"""Rules about what a run pays beside its steps: evaluation, checkpoints, log points."""

import math
from collections.abc import Iterator

from app.guard.derived import (
    device_of,
    evaluated_samples,
    evaluations,
    sizes_of,
    steps_of,
)
from app.guard.facts import Facts, known
from app.guard.rule import Finding, rule
from app.guard.wording import duration, share
from app.spec.arithmetic import log_interval, steps_per_epoch
from app.spec.run import RunSpec

# A sample of evaluation has the forward pass alone: about a third of a training step's flops.
FORWARD_SHARE = 1 / 3
MOST_EVALUATION = 0.25
MOST_CHECKPOINTING = 0.02
MOST_LOST_SECONDS = 600.0
HANG_MARGIN = 5.0


def evaluation_share(spec: RunSpec, facts: Facts) -> float:
    """Share of the run's time that goes into evaluation, by samples and passes; UnknownFact."""
    sizes = sizes_of(spec, facts)
    steps = steps_of(spec, facts)
    if not steps or not sizes.validation:
        return 0.0
    epoch_steps = steps_per_epoch(spec.training, sizes.training)
    looked_at = evaluations(spec, steps, epoch_steps) * evaluated_samples(spec, sizes.validation)
    evaluated = looked_at * FORWARD_SHARE
    trained = steps * sizes.training / epoch_steps
    return evaluated / (evaluated + trained)


@rule(
    "speed.evaluation_share",
    stands_on="A forward pass is about a third of a training step's work; the reference reports "
    "had validation at 2.1 s a batch.",
    measured_by="evaluation_share",
)
def evaluation_is_short(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """Evaluation takes at most a quarter of a run's time."""
    part = evaluation_share(spec, facts)
    if part <= MOST_EVALUATION:
        return
    sizes, steps = sizes_of(spec, facts), steps_of(spec, facts)
    count = evaluations(spec, steps, steps_per_epoch(spec.training, sizes.training))
    yield Finding(
        ("evaluation",),
        f"About {share(part)} of the time would go into evaluation.",
        f"{count:,} looks at {sizes.validation:,} samples beside {steps:,} steps; a sample of "
        "evaluation costs about a third of one of training.",
        _rarer_evaluation(spec, facts),
    )


def _rarer_evaluation(spec: RunSpec, facts: Facts) -> dict[str, int | None]:
    """By epochs alone where that is enough; otherwise so many batches that it is."""
    evaluation = spec.evaluation
    if evaluation.every_steps is not None:
        by_epochs = evaluation.model_copy(
            update={"every_steps": None, "every_epochs": evaluation.every_epochs or 1}
        )
        rarer = spec.model_copy(update={"evaluation": by_epochs})
        if evaluation_share(rarer, facts) <= MOST_EVALUATION:
            fix: dict[str, int | None] = {"/evaluation/every_steps": None}
            return fix if evaluation.every_epochs else {**fix, "/evaluation/every_epochs": 1}
    sizes, steps = sizes_of(spec, facts), steps_of(spec, facts)
    epoch_steps = steps_per_epoch(spec.training, sizes.training)
    trained = steps * sizes.training / epoch_steps
    most = trained * MOST_EVALUATION / (1 - MOST_EVALUATION) / FORWARD_SHARE
    batch = evaluation.batch_size
    batch = spec.training.batch_size if batch == "auto" else batch
    batches = int(most / evaluations(spec, steps, epoch_steps) / batch)
    return {"/evaluation/max_batches": batches} if batches else {}


@rule(
    "speed.frequent_checkpoints",
    stands_on="Seconds that the checkpoints of like runs took, in this service's own history.",
    measured_by="frequent_checkpoints",
)
def frequent_checkpoints(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """Checkpoints take at most 2 % of a run's time."""
    wanted = spec.checkpoint
    if wanted.every_steps is None and wanted.every_seconds is None:
        return
    history = known(facts.history, "how fast runs like it are")
    seconds = known(history.checkpoint_seconds, "how long checkpoints of runs like it take")
    fastest = seconds / MOST_CHECKPOINTING
    for name, interval in (
        ("every_seconds", wanted.every_seconds),
        (
            "every_steps",
            wanted.every_steps and wanted.every_steps / history.iterations_per_second,
        ),
    ):
        if interval is None or interval >= fastest:
            continue
        unit = 1.0 if name == "every_seconds" else history.iterations_per_second
        yield Finding(
            ("checkpoint", name),
            f"A checkpoint every {duration(interval)} takes {share(seconds / interval)} of the "
            "time.",
            f"One takes {seconds:.2g} s in runs like it; with one every {duration(fastest)} a kill "
            "loses no more than that, and 2 % of the time is paid.",
            {f"/checkpoint/{name}": math.ceil(fastest * unit)},
        )


@rule(
    "speed.rare_checkpoints",
    stands_on="A kill or a crash loses what was trained since the last checkpoint.",
)
def rare_checkpoints(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A kill loses at most ten minutes of training."""
    wanted = spec.checkpoint
    if wanted.every_seconds is not None and wanted.every_seconds <= MOST_LOST_SECONDS:
        return
    interval = wanted.every_seconds
    if wanted.every_steps is not None:
        history = known(facts.history, "how fast runs like it are")
        by_steps = wanted.every_steps / history.iterations_per_second
        interval = by_steps if interval is None else min(interval, by_steps)
    if interval is not None and interval <= MOST_LOST_SECONDS:
        return
    often = (
        "only by a new best score or at the end"
        if interval is None
        else (f"every {duration(interval)}")
    )
    yield Finding(
        ("checkpoint", "every_seconds"),
        f"The state is saved {often}.",
        "A power cut, a kill or a crash would lose all training since; every 300 seconds, it "
        "loses five minutes at most.",
        {"/checkpoint/every_seconds": 300.0},
    )


@rule(
    "speed.log_points",
    stands_on="A log point waits for the device and writes an event: measured with "
    "`python -m benchmarks claims`.",
    measured_by="log_points",
)
def log_points(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A long run does not log every step."""
    if spec.training.log_every_steps == "auto":
        return
    steps = steps_of(spec, facts)
    auto = log_interval(spec.training.model_copy(update={"log_every_steps": "auto"}), steps)
    if spec.training.log_every_steps > 1 or auto < 10:
        return
    yield Finding(
        ("training", "log_every_steps"),
        f"Every one of {steps:,} steps would be logged.",
        "Each log point waits until the device has finished its work; 200 of them draw the same "
        f"curve, which is one every {auto} steps.",
        {"/training/log_every_steps": "auto"},
    )


@rule(
    "speed.deterministic",
    severity="warning",
    stands_on="PyTorch, Reproducibility: deterministic algorithms are often slower. Timing it "
    "needs a GPU; not timed here.",
)
def deterministic(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A GPU may choose its fastest algorithms."""
    if spec.runtime.deterministic and device_of(spec, facts).kind == "cuda":
        yield Finding(
            ("runtime", "deterministic"),
            "Only deterministic algorithms are allowed on the GPU.",
            "Where the fastest one is not deterministic, a slower one runs; the price depends on "
            "the model and is not known before it is measured.",
            {"/runtime/deterministic": False},
        )


@rule(
    "speed.hang_timeout",
    stands_on="The seconds of a step and of a checkpoint in like runs of this service's history.",
)
def hang_timeout(spec: RunSpec, facts: Facts) -> Iterator[Finding]:
    """A run is taken for hanging only after several times what its slowest turn takes."""
    limit = spec.policy.hang_timeout_seconds
    if limit == "auto":
        return
    history = known(facts.history, "how fast runs like it are")
    slowest = max(1 / history.iterations_per_second, history.checkpoint_seconds or 0.0)
    needed = math.ceil(HANG_MARGIN * slowest)
    if limit < needed:
        yield Finding(
            ("policy", "hang_timeout_seconds"),
            f"An attempt would be ended as hanging after {duration(limit)} without progress.",
            f"A step or a checkpoint of like runs takes {duration(slowest)}; on a busy machine "
            f"{HANG_MARGIN:g} times that is no hang.",
            {"/policy/hang_timeout_seconds": float(needed)},
        )


RULES = (
    hang_timeout,
    evaluation_is_short,
    frequent_checkpoints,
    rare_checkpoints,
    log_points,
    deterministic,
)
