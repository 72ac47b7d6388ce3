"""Which of a trainer's events become history."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from tests.worker.telemetry.test_exporter import GPU
from worker.agent.beat_report import BeatReport

GIB = 2**30


@pytest.fixture
def report(tmp_path):
    return BeatReport(tmp_path, tmp_path / "runs/1/attempt-1")


def phase(name):
    return {"kind": "phase", "t": 1.0, "phase": name}


def metrics(step, **values):
    return {"kind": "metrics", "t": 1.0, "step": step, "values": values}


def test_evaluating_and_saving_a_thousand_times_leaves_no_thousand_rows(report):
    stations = ["starting", "restoring", "building", "compiling", "training"]
    detours = ["evaluating", "training", "checkpointing", "training"] * 1000
    report.take([phase(name) for name in [*stations, *detours, "testing", "checkpointing"]])
    assert [event.data["phase"] for event in report.outbox.events] == [*stations, "testing"]


def test_the_last_point_of_every_curve_is_kept_however_the_attempt_ends(report):
    report.take([metrics(7, train_loss=0.2, lr=1e-3), progress(7, [], loss=0.2, t=0.9)])
    report.take([metrics(8, train_loss=0.1, accuracy=0.9)])
    report.beat()
    report.told()
    report.keep_ends()  # killed: nothing has told an end
    kept = {(point.name, point.step): point.value for point in report.beat().metric_points}
    assert kept == {("train_loss", 8): 0.1, ("lr", 7): 1e-3, ("accuracy", 8): 0.9}
    assert all(point.keep for point in report.beat().metric_points)
    assert report.beat().progress["loss"] == 0.1, "it had no time to tell"


def test_a_damaged_checkpoint_is_told_with_the_reason_also_another_runs(report, tmp_path):
    folders = [tmp_path / "runs" / name / "step-6" for name in ("1", "9")]
    torn = {"kind": "checkpoint", "t": 1.0, "action": "quarantined", "message": "x"}
    told = zip(folders, (True, False), strict=True)
    report.take([{**torn, "path": str(folder), "own": own} for folder, own in told])
    beat = report.beat()
    assert [(one.path, one.why) for one in beat.damaged_checkpoints] == [
        ("runs/1/step-6", "x"),
        ("runs/9/step-6", "x"),
    ]
    assert beat.removed_checkpoints == []
    for reason in ("checkpoint_write_error", "completed"):
        report.take([{"kind": "end", "t": 2.0, "reason": reason, "message": "", "step": 6}])
    assert report.checkpoint_failures == {"quarantined": 2, "checkpoint_write_error": 1}


def test_the_environment_says_which_code_trained(tmp_path):
    report = BeatReport(tmp_path, tmp_path / "runs/1/attempt-1", {"git_sha": "abc"})
    report.take([{"kind": "applied", "t": 1.0, "applied": {}, "environment": {"torch": "2"}}])
    assert report.outbox.environment == {"torch": "2", "git_sha": "abc"}


@pytest.mark.parametrize(
    ("recipe", "event", "may"),
    [
        ({"kind": "sequence"}, {}, True),
        ({"kind": "script", "resume": ["--resume", "{checkpoint}"]}, {}, True),
        ({"kind": "script", "resume": []}, {}, False),
        ({"kind": "script", "resume": []}, {"by_stoker": False}, False),
        ({"kind": "script", "resume": []}, {"by_stoker": True}, True),
    ],
    ids=["a recipe", "says how", "says nothing", "saves by a pattern", "saves by stoker"],
)
def test_a_script_gives_way_once_it_is_known_how_it_resumes(report, recipe, event, may):
    report.take([{"kind": "restored", "t": 1.0, "step": 5, **event}, phase("running")])
    assert report.may_give_way({"recipe": recipe, "policy": {"preemptible": True}}) is may
    assert not report.may_give_way({"recipe": recipe, "policy": {}})


def test_a_beat_stays_as_it_is_until_it_is_known_to_be_stored(report):
    report.take([{"kind": "warning", "t": 1.0, "code": "first"}])
    sent = report.beat()
    report.take([{"kind": "warning", "t": 2.0, "code": "second"}])
    assert report.is_unsure
    assert report.beat() == sent
    assert [event.data["code"] for event in sent.events] == ["first"]
    report.told()
    assert not report.is_unsure
    after = report.beat()
    assert ([event.data["code"] for event in after.events], after.number) == (["second"], 1)


def progress(steps, counts, **more):
    durations = {"bounds": [0.1, 1.0], "counts": counts, "seconds": 7.5}
    totals = {"train_iterations": steps}
    told = {"kind": "progress", "t": 1.0, "step": 40 + steps, "totals": totals}
    return told | {"iterations_per_second": 186.0, "step_durations": durations} | more


def test_the_durations_of_steps_are_those_that_the_trainer_counted(report):
    report.take([progress(2, [2, 0, 0]), progress(3, [2, 0, 1])])
    assert report.iterations.buckets() == [("0.1", 2.0), ("1.0", 2.0), ("+Inf", 3.0)]
    assert report.iterations.total_seconds == 7.5
    assert "step_durations" not in report.outbox.progress, "it is for the exporter alone"


def test_counts_that_do_not_go_with_their_bounds_are_not_taken(report):
    report.take([progress(2, [2, 0, 0]), progress(3, [3])])
    assert report.iterations.buckets()[-1] == ("+Inf", 2.0)
    assert report.progress["step"] == 43


def test_a_resumed_attempt_has_trained_once_it_made_a_step_of_its_own(report):
    report.take([phase("training"), progress(0, [0, 0, 0])])
    assert not report.has_trained
    report.take([progress(1, [1, 0, 0])])
    assert report.has_trained


def test_an_attempt_with_no_step_left_is_not_waited_for(report):
    report.take([phase("training"), phase("testing")])
    assert report.has_trained


@pytest.mark.parametrize("sees_the_host", [True, False])
def test_a_scripts_peak_on_its_gpu_is_that_of_its_own_processes(
    report, monkeypatch, *, sees_the_host
):
    monkeypatch.setattr("worker.telemetry.gpus.sees_the_host", lambda: sees_the_host)
    wrapped = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    with subprocess.Popen(wrapped, start_new_session=True) as launcher:
        try:
            while not (children := psutil.Process(launcher.pid).children()):
                time.sleep(0.01)
            (child,) = children
            for held in (3, 7, 5):
                computing = ((child.pid, held * GIB), (os.getpid(), GIB))
                report.note_gpus([GPU, replace(GPU, processes=computing)], launcher.pid)
            report.note_gpus([replace(GPU, processes=((child.pid, None),))], launcher.pid)
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)
    report.note_gpus([replace(GPU, processes=())], launcher.pid)
    peak = {"host_bytes": 1, "device_bytes": None}
    report.take([{"kind": "progress", "t": 1.0, "step": 1, "peak_memory": peak}])
    expected = (7 if sees_the_host else 8) * GIB
    assert report.progress["peak_memory"] == {"host_bytes": 1, "device_bytes": expected}
