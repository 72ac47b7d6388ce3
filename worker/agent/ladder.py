"""What becomes of a run that ran out of memory: the next rung of its ladder, or its end."""

from dataclasses import asdict, dataclass

from app.guard.memory.items import CUDA_CONTEXT_BYTES
from app.lifecycle import FAIL, FREE_RETRY, Reason, ReasonPolicy
from app.planning.ladder import RanOut, Rung, Use, next_step
from app.planning.requirements import NOTHING_KNOWN, Requirements
from app.spec.run import RunSpec
from app.spec.stored import AnySpec
from app.store.records import Document, NextRung
from worker.agent.beat_report import BeatReport
from worker.agent.classify import Verdict

LESS_MEMORY = (
    "Lower training.batch_size and raise training.gradient_accumulation_steps by the same factor, "
    "which keeps the result, or have the loader hold less (data.loader.residency stream; of the "
    "PyTorch loader fewer num_workers); with policy.on_oom ladder a run does so by itself."
)
TOO_EARLY = (
    "It had not opened its data by then, so there was nothing that it could make smaller: free the "
    "memory that others hold, or train it on a worker with more."
)


@dataclass(frozen=True)
class Outcome:
    """What to record of an end; `policy` in place of the reason's own."""

    message: str
    policy: ReasonPolicy | None = None
    next_rung: NextRung | None = None
    needs: Requirements = NOTHING_KNOWN


def step_down(
    verdict: Verdict,
    spec: AnySpec | None,
    memory_rung: Document | None,
    report: BeatReport,
) -> Outcome:
    """Where the run goes from here. `memory_rung` is that of the attempt; an end for another reason
    than memory is left as it is.
    """
    reason, message = verdict.reason, verdict.message
    if not isinstance(spec, RunSpec) or reason not in (Reason.device_oom, Reason.host_oom):
        return Outcome(message, needs=verdict.needs)
    if spec.policy.on_oom == "fail":
        return Outcome(f"{message} {LESS_MEMORY}", FAIL)
    if report.memory_use is None:
        return Outcome(f"{message} {TOO_EARLY}")
    rung, ran_out = Rung.from_json(memory_rung), _ran_out(reason, report)
    step = next_step(rung, report.memory_use, ran_out)
    if step is None:
        return Outcome(f"{message} {_end_of(rung, report.memory_use, ran_out)}", FAIL)
    next_rung = NextRung(step.rung.as_json(), asdict(ran_out), step.sentence)
    needs = _needed(reason, report, rung, step.rung)
    return Outcome(message, FREE_RETRY, next_rung, needs)


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
