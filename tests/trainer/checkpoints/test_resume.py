"""Bit-exact resume: wherever a run is interrupted, it ends as if it never had been."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.lifecycle import Reason
from tests.trainer.lab import (
    BUILDING_POLLS,
    DISK,
    Killed,
    Lab,
    Outcome,
    StopAtPoll,
    read_events,
    start_trainer,
)
from worker.trainer.checkpoints import disk


@pytest.fixture
def straight(lab: Lab) -> Outcome:
    return lab.run()


def assert_same_end(resumed: Outcome, straight: Outcome) -> None:
    assert resumed.end is not None
    assert straight.end is not None
    assert resumed.end.reason is Reason.completed
    assert resumed.weights == straight.weights
    assert resumed.losses == straight.losses
    assert resumed.result == straight.result


def count_polls(lab: Lab, patch: dict[str, Any] | None = None) -> int:
    stop = StopAtPoll()
    lab.run(patch=patch, stop=stop)
    return stop.polls


def evaluations_begun(folder: Path) -> int:
    return sum(e["kind"] == "phase" and e["phase"] == "evaluating" for e in read_events(folder))


def evaluations_finished(folder: Path) -> int:
    return sum(e["kind"] == "metrics" and "val_loss" in e["values"] for e in read_events(folder))


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_run_interrupted_anywhere_ends_as_one_that_was_not(
    lab: Lab, straight: Outcome, kill: bool
) -> None:
    polls = count_polls(lab)
    assert polls >= 30
    inside_evaluations = 0
    for poll in range(polls):
        run_dir = lab.new_run()
        folder = lab.prepare(run_dir)
        try:
            first = lab.execute(folder, StopAtPoll(poll, kill))
        except Killed:
            assert kill
        else:
            assert not kill
            assert first.end is not None
            assert first.end.reason in (Reason.interrupted, Reason.completed)
            if first.end.reason is Reason.completed:
                continue
        inside_evaluations += evaluations_begun(folder) > evaluations_finished(folder)
        assert_same_end(lab.run(run_dir), straight)
    assert inside_evaluations >= 3


def test_a_run_interrupted_at_every_turn_still_ends_the_same(lab: Lab, straight: Outcome) -> None:
    run_dir = lab.new_run()
    reasons: list[Reason] = []
    while not reasons or reasons[-1] is Reason.interrupted:
        # Enough polls for one step or one evaluation, so that each attempt makes some way.
        outcome = lab.run(run_dir, stop=StopAtPoll(BUILDING_POLLS + 5))
        assert outcome.end is not None
        reasons.append(outcome.end.reason)
        assert len(reasons) < 50
    assert len(reasons) > 5
    assert outcome.losses == straight.losses
    assert outcome.result == straight.result


def kill_after(operations: int, patch: pytest.MonkeyPatch) -> None:
    """Let so many operations on the disk happen, and die at the next one."""
    left = iter(range(operations))

    def counted(original: Callable[..., None]) -> Callable[..., None]:
        def operate(*arguments: Any) -> None:
            if next(left, None) is None:
                raise Killed
            original(*arguments)

        return operate

    for name in DISK:
        patch.setattr(disk, name, counted(getattr(disk, name)))


@pytest.mark.parametrize("operations", range(17, 31))
def test_a_run_killed_while_it_writes_its_second_checkpoint_ends_the_same(
    lab: Lab, straight: Outcome, operations: int
) -> None:
    run_dir = lab.new_run()
    with pytest.MonkeyPatch.context() as patch:
        kill_after(operations, patch)
        with pytest.raises(Killed):
            lab.run(run_dir)
    assert_same_end(lab.run(run_dir), straight)


def test_a_resume_says_from_where(lab: Lab) -> None:
    run_dir = lab.new_run()
    first = lab.run(run_dir, stop=StopAtPoll(BUILDING_POLLS + 12))
    second = lab.run(run_dir)
    (restored,) = second.of_kind("restored")
    assert first.end is not None
    assert restored["step"] == first.end.step
    assert restored["path"] == str(first.checkpoint())
    assert (restored["carry"], restored["own"], restored["passed_over"]) == ("full", True, [])


def test_a_resume_keeps_the_number_of_threads_it_was_trained_with(lab: Lab) -> None:
    run_dir = lab.new_run()
    lab.run(run_dir, stop=StopAtPoll(BUILDING_POLLS + 12))
    second = lab.execute(lab.prepare(run_dir, threads=2))
    assert second.of_kind("applied")[0]["applied"]["threads"] == 1
    assert second.of_kind("warning") == []


def test_a_resume_takes_no_more_threads_than_its_share_and_says_so(lab: Lab) -> None:
    run_dir = lab.new_run()
    stop = StopAtPoll(BUILDING_POLLS + 12)
    lab.execute(lab.prepare(run_dir, threads=2), stop)
    second = lab.execute(lab.prepare(run_dir, threads=1))
    assert second.of_kind("applied")[0]["applied"]["threads"] == 1
    (warning,) = second.of_kind("warning")
    assert warning["code"] == "threads_changed"
    assert "was trained with 2 threads" in warning["message"]
    third = lab.execute(lab.prepare(run_dir, threads=2))
    assert third.of_kind("applied")[0]["applied"]["threads"] == 1, "what it has it keeps"


def test_no_checkpoint_is_written_before_the_first_step(lab: Lab) -> None:
    outcome = lab.run(stop=StopAtPoll(BUILDING_POLLS))
    assert outcome.end is not None
    assert (outcome.end.reason, outcome.end.step) == (Reason.interrupted, 0)
    assert outcome.end.message.endswith("after 0 of 9 steps; nothing was to be saved.")
    assert not (outcome.folder / "checkpoints").exists()


@pytest.mark.parametrize("polls", range(BUILDING_POLLS))
def test_a_stop_is_heard_between_the_pieces_of_a_load(lab: Lab, polls: int) -> None:
    outcome = lab.run(stop=StopAtPoll(polls))
    assert outcome.end is not None
    assert (outcome.end.reason, outcome.end.step) == (Reason.interrupted, None)
    phase = "building" if polls else "restoring"
    assert f"Stopped while {phase}, before a step was made" in outcome.end.message
    assert not (outcome.folder / "checkpoints").exists()


def test_missing_rows_of_the_loss_file_are_said_aloud(lab: Lab) -> None:
    run_dir = lab.new_run()
    lab.run(run_dir, stop=StopAtPoll(BUILDING_POLLS + 20))
    (run_dir / "losses.csv").write_bytes(b"step,epoch,split,loss\n")
    outcome = lab.run(run_dir)
    assert [event["code"] for event in outcome.of_kind("warning")] == ["losses_incomplete"]


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Until events.jsonl tells of a checkpoint at that step or a later one."""
    while process.poll() is None:
        log = folder / "events.jsonl"
        whole_lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        events = [json.loads(line) for line in whole_lines if line.endswith("\n")]
        if any(event.get("action") == "saved" and event["step"] >= step for event in events):
            return
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.minutes), signal.SIGKILL]
)
def test_a_process_that_is_signalled_resumes_bit_exactly(lab: Lab, number: int) -> None:
    longer = {
        "training": {"epochs": 80, "log_every_steps": 10},
        "evaluation": {"every_epochs": 10, "every_steps": None},
        "checkpoint": {"every_steps": 20},
    }
    straight = lab.run(patch=longer)
    run_dir = lab.new_run()
    folder = lab.prepare(run_dir, longer)
    process = start_trainer(folder)
    wait_for_step(folder, 40, process)
    process.send_signal(number)
    code = process.wait(timeout=200)
    events = read_events(folder)
    if number == signal.SIGTERM:
        assert code == 0
        assert events[-1]["reason"] == "interrupted"
        assert events[-1]["step"] < 240
    else:
        assert code == -signal.SIGKILL
    second = lab.prepare(run_dir, longer)
    assert start_trainer(second, standby=True).wait(timeout=200) == 0
    resumed = Outcome(second, run_dir, events=read_events(second))
    assert resumed.weights == straight.weights
    assert resumed.losses == straight.losses


@pytest.mark.parametrize("later", range(4, 12))
def test_the_step_that_a_stopped_run_ends_at_is_saved(lab: Lab, later: int) -> None:
    """Whenever the stop arrives, also between two polls of it in one step boundary."""
    rarely = {"checkpoint": {"every_steps": None}}
    stopped = lab.run(patch=rarely, stop=StopAtPoll(BUILDING_POLLS + later))
    assert stopped.end is not None
    assert stopped.end.step
    assert stopped.checkpoint().name == f"step-{stopped.end.step}"
