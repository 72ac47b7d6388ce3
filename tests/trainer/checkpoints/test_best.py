"""The best weights are never lost to what comes after, and do not cost a fast training its time."""

import errno
import shutil
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from app.lifecycle import Reason
from tests.trainer.lab import (
    BUILDING_POLLS,
    DISK,
    Killed,
    Lab,
    Outcome,
    StopAtPoll,
    no_more,
    read_events,
)
from worker.trainer import state
from worker.trainer.checkpoints import disk, saver
from worker.trainer.checkpoints.format import Snapshot, publish
from worker.trainer.errors import TrainerError

# Nine steps, each evaluated; nothing is saved but the best, and what is at the end.
RARELY: dict[str, Any] = {"checkpoint": {"every_steps": None}, "evaluation": {"every_steps": 1}}


def saved(outcome: Outcome) -> list[int]:
    return [event["step"] for event in outcome.of_kind("checkpoint")]


def weights(outcome: Outcome, step: int) -> bytes:
    return (outcome.checkpoint(step) / "model.safetensors").read_bytes()


@pytest.fixture
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first best one none may be written for years."""
    monkeypatch.setattr(saver, "SHARE_OF_WRITING", 1e-12)


def best_until(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Every evaluation is the best so far, up to that step."""
    left = iter([True] * step)
    monkeypatch.setattr(state, "improves", lambda *_: next(left, False))


@pytest.mark.usefixtures("_no_time")
def test_the_best_waits_in_memory_and_is_written_before_the_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = {**RARELY, "early_stopping": None}
    best_until(monkeypatch, 7)
    each = lab.run(patch={**patch, "checkpoint": {"every_steps": 1}})
    best_until(monkeypatch, 7)
    outcome = lab.run(patch=patch)
    assert saved(each) == [1, 2, 3, 4, 5, 6, 7, 8, 9]  # what was asked for is done
    assert saved(outcome) == [1, 7, 9]
    assert weights(outcome, 7) == weights(each, 7)
    assert outcome.result["best"]["step"] == outcome.result["test"]["step"] == 7
    assert outcome.result == each.result
    assert outcome.of_kind("warning") == []


STOPPED: dict[str, Any] = {**RARELY, "early_stopping": None}
STOP_STEP = 5


def stop() -> StopAtPoll:
    """At STOP_STEP, when its evaluation is done."""
    return StopAtPoll(BUILDING_POLLS + 20)


@pytest.mark.usefixtures("_no_time")
def test_a_stop_saves_where_it_is_and_then_the_best(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one write no step is lost, however slow the disk is."""
    each = lab.run(patch={**STOPPED, "checkpoint": {"every_steps": 1}})
    best_until(monkeypatch, 3)
    rename = disk.rename

    def rename_late(source: Path, target: Path) -> None:
        threading.Event().wait(0.05)
        rename(source, target)

    monkeypatch.setattr(disk, "rename", rename_late)
    outcome = lab.run(patch=STOPPED, stop=stop())
    assert outcome.end is not None
    assert outcome.end.reason is Reason.interrupted
    assert outcome.end.step == STOP_STEP
    assert saved(outcome) == [1, STOP_STEP, 3]
    for step in (STOP_STEP, 3):
        assert weights(outcome, step) == weights(each, step)
    resumed = lab.run(outcome.run_dir, STOPPED)
    assert resumed.of_kind("restored")[0]["step"] == STOP_STEP
    assert resumed.result["best"]["step"] == resumed.result["test"]["step"] == 3
    assert resumed.of_kind("warning") == []


def killed_before_the_best_was_saved(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped at STOP_STEP and killed while its best state, of step 3, was renamed;
    the best one before is of step 1.
    """
    run_dir, rename = lab.new_run(), disk.rename

    def rename_until(source: Path, target: Path) -> None:
        if target.name == "step-3":
            for name in DISK:
                setattr(disk, name, no_more)
            raise Killed
        rename(source, target)

    best_until(monkeypatch, 3)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "rename", rename_until)
        with pytest.raises(Killed):
            lab.run(run_dir, STOPPED, stop=stop())
    folders = run_dir.glob("attempt-1/checkpoints/step-*")
    assert {folder.name for folder in folders} == {"step-1", f"step-{STOP_STEP}"}
    return run_dir


@pytest.mark.usefixtures("_no_time")
@pytest.mark.parametrize(
    ("before", "judged", "best"),
    [
        (True, [False], 1),
        (True, [True], STOP_STEP),
        (False, [False, True], STOP_STEP + 1),
        (False, [False], None),
    ],
    ids=["the_best_before", "where_it_was_stopped", "the_next", "none"],
)
def test_where_a_kill_lost_the_best_the_best_that_is_there_takes_its_place(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    before: bool,
    judged: list[bool],
    best: int | None,
) -> None:
    """`judged`: whether each evaluation, the one at the stop first, is better than the best."""
    straight = lab.run(patch=STOPPED)
    run_dir = killed_before_the_best_was_saved(lab, monkeypatch)
    if not before:
        shutil.rmtree(run_dir / "attempt-1" / "checkpoints" / "step-1")
    left = iter(judged)
    monkeypatch.setattr(state, "improves", lambda *_: next(left, False))
    resumed = lab.run(run_dir, STOPPED)
    assert resumed.of_kind("restored")[0]["step"] == STOP_STEP
    (warning,) = resumed.of_kind("warning")
    assert warning["code"] == "best_weights_gone"
    assert "best evaluation so far (step 3)" in warning["message"]
    named = f"step {best}." if best in (1, STOP_STEP) else "among those to come."
    assert warning["message"].endswith(named)
    assert (resumed.weights, resumed.rows[:-1]) == (straight.weights, straight.rows[:-1])
    found = resumed.result["best"]
    assert (found and found["step"]) == best
    tested = best or 9
    assert resumed.result["test"]["step"] == tested
    folder = next(run_dir.glob(f"attempt-*/checkpoints/step-{tested}"))
    restore = [{"path": str(folder), "carry": "full", "own": False}]
    only_tested = {"training": {"max_steps": tested}, "checkpoint": {"keep_best": 0}}
    alone = lab.run(patch={**STOPPED, **only_tested}, restore=restore)
    assert alone.result["test"] == {**resumed.result["test"], "epoch": mock.ANY}


@pytest.mark.usefixtures("_no_time")
def test_a_best_that_cannot_be_read_now_is_not_taken_for_one_that_is_gone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    best_until(monkeypatch, 3)
    stopped, read_bytes = lab.run(patch=STOPPED, stop=stop()), Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.parent.name == "step-3":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read_bytes(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing)
        with pytest.raises(TrainerError, match="could not be read") as caught:
            lab.run(stopped.run_dir, STOPPED)
    assert caught.value.reason is Reason.checkpoint_error
    assert lab.run(stopped.run_dir, STOPPED).result["test"]["step"] == 3


@pytest.mark.usefixtures("_no_time")
@pytest.mark.parametrize(("lost", "kept"), [(STOP_STEP, 3), (3, STOP_STEP)])
def test_of_the_two_saves_of_a_stop_one_may_fail(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, lost: int, kept: int
) -> None:
    best_until(monkeypatch, 3)
    write_file = disk.write_file

    def broken(path: Path, content: disk.Content) -> None:
        if path.parent.name == f".step-{lost}.tmp":
            raise OSError(errno.EIO, "Input/output error")
        write_file(path, content)

    monkeypatch.setattr(disk, "write_file", broken)
    folder = lab.prepare(patch=STOPPED)
    with pytest.raises(OSError, match="Input/output error"):
        lab.execute(folder, stop())
    saves = [event["step"] for event in read_events(folder) if event["kind"] == "checkpoint"]
    assert saves == [1, kept]


@pytest.mark.usefixtures("_no_time")
def test_where_no_best_is_kept_a_resume_remembers_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = {**STOPPED, "checkpoint": {"every_steps": None, "keep_best": 0}}
    best_until(monkeypatch, 3)
    outcome = lab.run(patch=patch, stop=stop())
    assert saved(outcome) == [STOP_STEP]
    resumed = lab.run(outcome.run_dir, patch)
    assert resumed.result["best"]["step"] == 3
    (warning,) = resumed.of_kind("warning")
    assert "it was not kept (checkpoint.keep_best is 0)" in warning["message"]


@pytest.mark.usefixtures("_no_time")
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_run_interrupted_while_its_best_waits_ends_as_one_that_was_not(
    lab: Lab, kill: bool
) -> None:
    patch = {**RARELY, "checkpoint": {"every_steps": 4}}
    stop = StopAtPoll()
    straight, polls = lab.run(patch=patch, stop=stop), stop.polls
    anywhere = range(BUILDING_POLLS + 1, polls - 5, 3)
    for _, resumed in lab.interrupted(straight, anywhere, patch, kill=kill):
        assert resumed.result == straight.result
        assert resumed.of_kind("warning") == []


class Clock(StopAtPoll):
    """Time that goes on by a second at each poll of the stop flag, and by what a write takes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    @property
    def requested(self) -> bool:
        self.now += 1
        return False


def test_writing_the_best_takes_at_most_a_fiftieth_of_the_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, begun = Clock(), []

    def slow(snapshot: Snapshot, folder: Path) -> int:
        begun.append(clock.now)
        clock.now += 0.5
        return publish(snapshot, folder)

    monkeypatch.setattr(saver, "publish", slow)
    monkeypatch.setattr(saver, "time", SimpleNamespace(monotonic=lambda: clock.now, time=float))
    best_until(monkeypatch, 90)
    patch = {**RARELY, "training": {"epochs": 30}, "early_stopping": None}
    outcome = lab.run(patch=patch, stop=clock)
    *gaps, _ = [after - before for before, after in pairwise(begun)]
    assert min(gaps) >= 0.5 / 0.02 - 2  # within which the thread may begin
    assert 3 <= len(begun) < 20
    assert outcome.result["best"]["step"] == saved(outcome)[-1] == 90
