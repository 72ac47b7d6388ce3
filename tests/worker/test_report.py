"""Which of a trainer's events become history."""

import pytest

from worker.report import Report


@pytest.fixture
def report(tmp_path):
    return Report(tmp_path, tmp_path / "runs/1/attempt-1")


def phase(name):
    return {"kind": "phase", "t": 1.0, "phase": name}


def test_evaluating_and_saving_a_thousand_times_leaves_no_thousand_rows(report):
    stations = ["starting", "restoring", "building", "training"]
    detours = ["evaluating", "training", "checkpointing", "training"] * 1000
    report.take([phase(name) for name in [*stations, *detours, "testing", "checkpointing"]])
    assert [event.data["phase"] for event in report.outbox.events] == [*stations, "testing"]
