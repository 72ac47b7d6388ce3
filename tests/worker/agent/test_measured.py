"""What an agent makes of what an attempt told: a point of a profile, or nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.lifecycle import Reason
from app.planning.ladder import Use
from app.planning.profile import Point
from app.spec.run import RunSpec
from tests.guard.world import REQUEST, world
from worker.agent.beat_report import BeatReport
from worker.agent.checkpoint_folders import Reconciled
from worker.agent.measured import measured_by
from worker.start.starting import Earlier, Prepared

MIB = 2**20
SPEC = RunSpec.model_validate_json(json.dumps(REQUEST))
PREPARED = Prepared(SPEC, Earlier(Reconciled([], [], []), None, []), facts=world())


@pytest.fixture
def report() -> BeatReport:
    """Of an attempt on a CPU that made 200 steps and took 900 MiB."""
    told = BeatReport(Path("/artifacts"), Path("/artifacts/runs/1/attempt-1"))
    told.applied = {"gradient_accumulation_steps": 1, "parameters": 45_000}
    told.memory_use = Use("cpu", "resident", 83 * MIB, 21_000, 2, 128, 128, 0)
    told.phase, told.torch, told.saved = "training", "2.13.0+cpu", 2
    told.progress = {
        "peak_memory": {"host_bytes": 900 * MIB, "device_bytes": None, "phases": None},
        "totals": {"train_iterations": 200, "train_samples": 25_600, "eval_samples": 0},
        "phase_seconds": {"compute": 2.0, "sync": 0.0, "data_wait": 0.0, "h2d": 0.0},
    }
    return told


def point(report: BeatReport, reason: Reason, prepared: Prepared = PREPARED) -> Point | None:
    found = measured_by(prepared, reason, report, 30.0)
    if found is None:
        return None
    (one,) = found.points
    return one


def test_an_attempt_that_trained_tells_what_it_took(report: BeatReport) -> None:
    one = point(report, Reason.completed)
    assert one is not None
    assert (one.batch_size, one.torch, one.ran_out) == (128, "2.13.0+cpu", None)
    assert 700 * MIB < (one.training_bytes or 0) < 900 * MIB


@pytest.mark.parametrize(
    ("phase", "ran_out"),
    [("training", "training"), ("testing", "evaluating"), ("checkpointing", None)],
)
def test_one_that_ran_out_of_memory_tells_in_which_phase(
    report: BeatReport, phase: str, ran_out: str | None
) -> None:
    report.phase = phase
    whole = point(report, Reason.completed)
    report.end = {"memory": {"wanted_bytes": 64 * MIB, "free_bytes": MIB}}
    one = point(report, Reason.host_oom)
    assert whole is not None
    assert one is not None
    assert one.ran_out == ran_out
    more = (one.training_bytes or 0) - (whole.training_bytes or 0)
    assert more == (64 * MIB if ran_out == "training" else 0)


def test_memory_that_ran_out_elsewhere_is_not_the_steps(report: BeatReport) -> None:
    assert report.memory_use is not None
    one = point(report, Reason.device_oom)
    assert one is not None
    assert one.ran_out is None


@pytest.mark.parametrize("lacking", ["applied", "memory_use", "progress"])
def test_one_that_has_not_told_enough_says_nothing(report: BeatReport, lacking: str) -> None:
    setattr(report, lacking, None)
    assert point(report, Reason.completed) is None


def test_a_place_that_was_never_found_says_nothing(report: BeatReport) -> None:
    assert point(report, Reason.completed, replace(PREPARED, facts=None)) is None


def test_what_cannot_be_understood_ends_no_attempt(report: BeatReport) -> None:
    broken: dict[str, Any] = {"parameters": 1}
    report.applied = broken
    assert point(report, Reason.completed) is None
