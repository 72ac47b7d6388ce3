"""From what an attempt took to points of a memory profile: the peaks less what is exact of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.guard.case import Case
from app.guard.facts import UnknownFact
from app.guard.memory.budget import Budget, Item
from app.guard.memory.memory_plan import held_there
from app.guard.memory.profile_key import profile_key
from app.planning.ladder import Use
from app.planning.profile import Measured, Point
from app.planning.residency import Residency

# Before so many steps the heap has not the holes that it gets; a run that is done may have fewer.
LEAST_STEPS = 10
# Rates of fewer steps, or of less time, are those of a beginning.
PACED_STEPS, PACED_SECONDS = 100, 20.0
# Where a GPU's batches were waited for longer, its steps may have gone on meanwhile.
MOST_WAITING = 0.1
EVALUATIONS = ("evaluating", "testing")


@dataclass(frozen=True)
class Taken:
    """What an attempt told of itself, as documents of the trainer have it."""

    applied: Mapping[str, Any]
    use: Use
    progress: Mapping[str, Any]
    saved: int
    """Checkpoints."""
    is_done: bool
    """Whether it trained to its end."""
    ran_out: Literal["training", "evaluating"] | None = None
    """In which phase memory ran out, where the model lay."""
    wanted_bytes: int = 0
    """What was asked for then."""
    torch: str | None = None


def measured(case: Case, taken: Taken) -> Measured | None:
    """What it says of runs like it: None where that is not known, or nothing was measured.

    `case`: of its spec, with the facts of the host and the device where it was. KeyError where a
    document is not as the trainer writes it.
    """
    peak, totals = taken.progress["peak_memory"], taken.progress["totals"]
    enough = taken.is_done or totals["train_iterations"] >= LEAST_STEPS
    if not enough and taken.ran_out is None:
        return None
    use = taken.use
    case = case.with_values(
        {"/training/batch_size": use.batch}
        | ({"/evaluation/batch_size": use.evaluation_batch} if use.evaluation_batch else {})
    )
    try:
        exact = _exact(case, taken)
        key = profile_key(case.workload, case.device)
    except UnknownFact:
        return None
    by_phase = peak["phases"] or {}
    whole = peak["device_bytes"] if use.device == "cuda" else peak["host_bytes"]
    trained = by_phase.get("training", whole)
    evaluated = max((by_phase.get(phase, 0) for phase in EVALUATIONS), default=0)
    looked = bool(totals["eval_samples"]) or taken.ran_out == "evaluating"
    beside = {
        "training": max(0, trained + _more(taken, "training") - exact["training"]),
        "evaluating": max(
            0, (evaluated or whole) + _more(taken, "evaluating") - exact["evaluating"]
        ),
    }
    point = Point(
        batch_size=use.batch,
        training_bytes=beside["training"] if enough or taken.ran_out == "training" else None,
        evaluation_batch_size=use.evaluation_batch if looked else 0,
        evaluation_bytes=beside["evaluating"] if looked and use.evaluation_batch else None,
        host_bytes=max(0, peak["host_bytes"] - exact["host"]) if use.device == "cuda" else None,
        accumulated=taken.applied["gradient_accumulation_steps"] > 1,
        ran_out=taken.ran_out,
        parameters=taken.applied["parameters"],
        samples_per_second=_rate(taken),
        torch=taken.torch,
    )
    return Measured(key, [point])


def _more(taken: Taken, phase: str) -> int:
    return taken.wanted_bytes if taken.ran_out == phase else 0


def _exact(case: Case, taken: Taken) -> dict[str, int]:
    """Bytes that the plan has exactly, by phase where the model lies, and of a GPU's host.

    A copy of the state is not always there: it counts once a checkpoint was followed by another.
    """
    use, need = taken.use, case.workload.need
    on_gpu = use.device == "cuda"
    held = held_there(case.workload, case.device, Residency(use.residency, "", 0, 0, 0))
    items = held.beside_data_on_gpu() if on_gpu else held.beside_data_on_cpu()
    absent = {"context", "compiler"} | ({"checkpoint_snapshot"} if taken.saved < 2 else set())
    data = use.data_bytes
    if use.residency == "stream" and not on_gpu:  # what no sample fills costs a host nothing
        samples = need.train_samples + sum(need.held_out)
        data = min(data, samples * need.slot_sample_bytes)
    kept = (*(item for item in items if item.name not in absent), Item("data", data))
    host = [item for item in held.beside_gpu(None).items if item.name not in absent]
    return {**Budget(kept, None).peaks, "host": Budget(tuple(host), None).peak_bytes}


def _rate(taken: Taken) -> float | None:
    """Samples a second of steps alone, where enough were made to tell."""
    spent, totals = taken.progress["phase_seconds"], taken.progress["totals"]
    steps = spent["compute"] + spent["sync"]
    whole = steps + spent["data_wait"] + spent["h2d"]
    few = totals["train_iterations"] < PACED_STEPS and whole < PACED_SECONDS
    if few or not steps:
        return None
    if taken.use.device == "cuda" and steps < (1 - MOST_WAITING) * whole:
        return None
    return float(totals["train_samples"] / steps)
