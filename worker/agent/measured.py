"""What an attempt took of memory, for the profile of runs like it."""

from typing import Literal

import structlog

from app.guard.case import Case
from app.guard.memory.measuring import Taken, measured
from app.lifecycle import REASON_POLICY, Reason
from app.planning.profile import Measured
from app.service.script_profile import measured_script
from app.spec.script import ScriptSpec
from worker.agent.beat_report import BeatReport
from worker.start.starting import Prepared

log = structlog.get_logger("stoker.worker")

PHASES: dict[str, Literal["training", "evaluating"]] = {
    "training": "training",
    "evaluating": "evaluating",
    "testing": "evaluating",
}


def measured_by(
    prepared: Prepared | None, reason: Reason, report: BeatReport, seconds: float
) -> Measured | None:
    """None where the attempt, which took so many seconds, has not told what it took, or too little
    of it.
    """
    if prepared is None:
        return None
    spec, on_gpu = prepared.spec, prepared.on_gpu
    if isinstance(spec, ScriptSpec):
        peak = (report.progress or {}).get("peak_memory") or {}
        return measured_script(spec, prepared.code, peak, reason, seconds, on_gpu=on_gpu)
    taken = taken_by(reason, report)
    if prepared.facts is None or taken is None:
        return None
    try:
        return measured(Case(spec, prepared.facts), taken)
    except (KeyError, TypeError, ValueError) as error:
        where = str(report.attempt_dir)
        log.warning("what a run took cannot be understood", attempt=where, why=repr(error))
        return None


def taken_by(reason: Reason, report: BeatReport) -> Taken | None:
    """What an attempt told of itself; None where it told too little."""
    applied, use, progress = report.applied, report.memory_use, report.progress
    if applied is None or use is None or not (progress or {}).get("peak_memory"):
        return None
    where_the_model_lies = Reason.device_oom if use.device == "cuda" else Reason.host_oom
    figures = (report.end or {}).get("memory") or {}
    return Taken(
        applied=applied,
        use=use,
        progress=progress or {},
        saved=report.saved,
        is_done=REASON_POLICY[reason].outcome == "succeed",
        ran_out=PHASES.get(report.phase or "") if reason is where_the_model_lies else None,
        wanted_bytes=figures.get("wanted_bytes") or 0,
        torch=report.torch,
    )
