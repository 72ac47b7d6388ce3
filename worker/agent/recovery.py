"""What comes after an attempt that failed: when the run is tried again, and what is done otherwise.

Out of memory it takes the next rung of its ladder; after a loss that was not finite it goes back.
"""

import random
from dataclasses import asdict
from itertools import takewhile

from app.guard.memory.items import CUDA_CONTEXT_BYTES
from app.lifecycle import FAIL, FREE_RETRY, Reason
from app.planning.ladder import RanOut, Rung, Use, next_step
from app.planning.requirements import NOTHING_KNOWN, Requirements
from app.planning.rollback import Rollback, next_rollback
from app.spec.run import RunSpec
from app.spec.stored import AnySpec
from app.store.records import Document, Finish, Lease, NextRung
from app.store.store import Store
from worker.agent.beat_report import BeatReport
from worker.agent.classify import Verdict

FIRST_SECONDS = 1.0
MOST_SECONDS = 60.0
# A disk that is away may be so for hours, and each look at it costs an attempt.
MOST_UNREADABLE_SECONDS = 300.0
LESS_MEMORY = (
    "Lower training.batch_size and raise training.gradient_accumulation_steps by the same factor, "
    "which keeps the result, or have the loader hold less (data.loader.residency stream; of the "
    "PyTorch loader fewer num_workers); with policy.on_oom ladder a run does so by itself."
)
TOO_EARLY = (
    "It had not opened its data by then, so there was nothing that it could make smaller: free the "
    "memory that others hold, or train it on a worker with more."
)


def retry_delay_seconds(store: Store, run_id: int, verdict: Verdict) -> float:
    """Doubling from one second on, less a jitter so that runs do not come in step."""
    if verdict.retry_seconds:
        return verdict.retry_seconds * random.uniform(1.0, 1.25)
    if verdict.reason is Reason.checkpoint_error:
        failures, most = _unreadable_in_a_row(store, run_id), MOST_UNREADABLE_SECONDS
    else:
        run = store.runs.get(run_id)
        failures, most = max(run.retries_used, run.losses), MOST_SECONDS
    return min(FIRST_SECONDS * 2.0 ** min(failures, 10), most) * random.uniform(0.75, 1.0)


def _unreadable_in_a_row(store: Store, run_id: int) -> int:
    """Attempts, the last ones, that ended so; they are free, and so the run does not count them."""
    ended = [one for one in store.attempts.list(run_id) if one.reason is not None]
    alike = takewhile(lambda one: one.reason is Reason.checkpoint_error, reversed(ended))
    return sum(1 for _ in alike)


def finish_of(verdict: Verdict, spec: AnySpec | None, lease: Lease, report: BeatReport) -> Finish:
    """The end of an attempt, with what the next one does otherwise."""
    if isinstance(spec, RunSpec) and verdict.reason is Reason.nonfinite:
        return roll_back(verdict, spec, lease.rollback, report)
    return step_down(verdict, spec, lease.memory_rung, report)


def roll_back(
    verdict: Verdict, spec: RunSpec, before: Document | None, report: BeatReport
) -> Finish:
    """After a loss that was not finite; `before`: the run's last rollback. Where it lies in the
    data of an evaluation, the trainer does not say how far it was: to go back would not help.
    """
    reached = (report.end or {}).get("nonfinite")
    if spec.policy.on_nonfinite == "fail" or reached is None:
        return Finish(verdict.reason, verdict.message)
    place = (reached[name] for name in ("step", "epoch", "position"))
    found = next_rollback(Rollback.from_json(before), report.newest_checkpoint, *place)
    if isinstance(found, str):
        return Finish(verdict.reason, f"{verdict.message} {found}")
    return Finish(verdict.reason, reached["what"], policy=FREE_RETRY, rollback=found)


def step_down(
    verdict: Verdict,
    spec: AnySpec | None,
    memory_rung: Document | None,
    report: BeatReport,
) -> Finish:
    """Where the run goes from here. `memory_rung` is that of the attempt; an end for another reason
    than memory is left as it is.
    """
    reason, message = verdict.reason, verdict.message
    if not isinstance(spec, RunSpec) or reason not in (Reason.device_oom, Reason.host_oom):
        return Finish(reason, message, needs=verdict.needs)
    if spec.policy.on_oom == "fail":
        return Finish(reason, f"{message} {LESS_MEMORY}", policy=FAIL)
    if report.memory_use is None:
        return Finish(reason, f"{message} {TOO_EARLY}")
    rung, ran_out = Rung.from_json(memory_rung), _ran_out(reason, report)
    step = next_step(rung, report.memory_use, ran_out)
    if step is None:
        why = _end_of(rung, report.memory_use, ran_out)
        return Finish(reason, f"{message} {why}", policy=FAIL)
    next_rung = NextRung(step.rung.as_json(), asdict(ran_out), step.sentence)
    needs = _needed(reason, report, rung, step.rung)
    return Finish(reason, message, policy=FREE_RETRY, next_rung=next_rung, needs=needs)


def _needed(reason: Reason, report: BeatReport, rung: Rung, below: Rung) -> Requirements:
    """What the attempt had taken when memory ran out, less what the next rung gives back of it: a
    place with less would end it sooner. Nothing where it had not told yet.
    """
    use, peak = report.memory_use, (report.progress or {}).get("peak_memory") or {}
    given_back = 0
    if use is not None and below.data_bytes is not None and below.data_bytes != rung.data_bytes:
        given_back = use.data_bytes - below.data_bytes
    on_device, on_host = peak.get("device_bytes"), peak.get("host_bytes")
    if reason is Reason.device_oom and on_device is not None:
        return Requirements(device_bytes=CUDA_CONTEXT_BYTES + on_device - given_back)
    if reason is Reason.host_oom and on_host is not None:
        if use is not None and use.device == "cuda":
            return Requirements(host_bytes=on_host)
        return Requirements(cpu_bytes=on_host - given_back)
    return NOTHING_KNOWN


def _ran_out(reason: Reason, report: BeatReport) -> RanOut:
    """As the trainer told it; one that the kernel killed could not."""
    figures = (report.end or {}).get("memory") or {}
    return RanOut(
        where="device" if reason is Reason.device_oom else "host",
        phase=report.phase or "starting",
        wanted_bytes=figures.get("wanted_bytes"),
        free_bytes=figures.get("free_bytes"),
    )


def _end_of(rung: Rung, use: Use, ran_out: RanOut) -> str:
    tried = f"It tried {'; '.join(rung.changed)}. " if rung.changed else ""
    if ran_out.where == "host" and use.device == "cuda":
        return (
            f"{tried}What else a run on a GPU takes of its host it cannot make smaller: run fewer "
            "trainers there, or free the memory that others hold."
        )
    return (
        f"{tried}The memory ladder ends here: less data or fewer samples at once would not give "
        "back what is lacking, and neither would activations that are computed anew. Make the "
        "model smaller, or train on a device with more memory."
    )
