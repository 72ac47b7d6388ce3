"""Checkpoints are written beside the training: it goes on, one at a time, and none is lost."""

import errno
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, read_events
from worker.reporting import EventLog
from worker.trainer.checkpoints import disk
from worker.trainer.checkpoints.format import Snapshot, load
from worker.trainer.checkpoints.snapshot import capture
from worker.trainer.checkpoints.writer import CheckpointWriter
from worker.trainer.errors import TrainerError
from worker.trainer.failure import explain
from worker.trainer.report.losses import LossFile
from worker.trainer.step import TrainingStep

PATIENCE_SECONDS = 60.0
# Nine steps, checkpoints at 3 and 6 and at the end; none for an evaluation.
EVERY_THIRD = {"checkpoint": {"every_steps": 3, "keep_best": 0}, "evaluation": {"every_steps": 20}}


class Watched(StopAtPoll):
    """Counts the polls of the flag, of which there is one at each step boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    @property
    def requested(self) -> bool:
        with self.changed:
            self.changed.notify_all()
            return super().requested

    def wait_for_more(self, polls: int) -> bool:
        """Whether so many more come while the caller waits."""
        with self.changed:
            wanted = self.polls + polls
            return self.changed.wait_for(lambda: self.polls >= wanted, PATIENCE_SECONDS)


@contextmanager
def slow_disk(stop: Watched, patch: pytest.MonkeyPatch, polls: int) -> Iterator[list[bool]]:
    """The files of each checkpoint but the last are begun so many steps late."""
    went_on: list[bool] = []
    begun = threading.Semaphore(0)
    make_folder, begin = disk.make_folder, CheckpointWriter.begin

    def make_late(path: Path) -> None:
        if path.name in (".step-3.tmp", ".step-6.tmp"):
            begun.release()
            went_on.append(stop.wait_for_more(polls))
        make_folder(path)

    def begin_and_let_it_come_so_far(writer: CheckpointWriter, write: Callable[[], object]) -> None:
        begin(writer, write)
        if len(went_on) < 2:
            assert begun.acquire(timeout=PATIENCE_SECONDS)

    with patch.context() as patched:
        patched.setattr(disk, "make_folder", make_late)
        patched.setattr(CheckpointWriter, "begin", begin_and_let_it_come_so_far)
        yield went_on


def checkpoints(outcome: Outcome) -> dict[str, Any]:
    """What all of them hold, but for names and times that differ from run to run."""
    folder = outcome.folder / "checkpoints"
    found: dict[str, Any] = {
        str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*.safetensors")
    }
    for manifest in folder.rglob("manifest.json"):
        document = json.loads(manifest.read_text())
        for passing in ("checksum", "run_id", "created_at"):
            del document[passing]
        del document["state"]["trained_seconds"]
        found[str(manifest.relative_to(folder))] = document
    return found


def test_training_goes_on_and_the_checkpoint_is_of_its_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, stop = lab.run(patch=EVERY_THIRD), Watched()
    with slow_disk(stop, monkeypatch, polls=2) as went_on:
        slow = lab.run(patch=EVERY_THIRD, stop=stop)
    assert went_on == [True, True]
    assert checkpoints(slow) == checkpoints(straight)
    assert len(checkpoints(slow)) == 12
    assert slow.losses == straight.losses
    saved = slow.of_kind("checkpoint")
    assert [event["step"] for event in saved] == [3, 6, 9]
    # Later ones may have waited for the one before for longer than they took themselves.
    assert 0 <= saved[0]["stall_seconds"] < saved[0]["seconds"]


def test_the_next_checkpoint_waits_for_the_one_before(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second copy of the state is made while the first is still there to be written."""
    copied, written = [], []
    rename = disk.rename

    def rename_late(source: Path, target: Path) -> None:
        if target.name.startswith("step-"):
            threading.Event().wait(0.05)  # longer than three steps take
            written.append(target.name)
        rename(source, target)

    def capture_noted(*arguments: Any, in_place: bool) -> Snapshot:
        copied.append(len(written))
        return capture(*arguments, in_place=in_place)

    monkeypatch.setattr(disk, "rename", rename_late)
    monkeypatch.setattr("worker.trainer.checkpoints.saver.capture", capture_noted)
    outcome = lab.run(patch=EVERY_THIRD)
    assert copied == [0, 1, 2]
    assert written == ["step-3", "step-6", "step-9"]
    assert [event["step"] for event in outcome.of_kind("checkpoint")] == [3, 6, 9]


def test_the_memory_of_the_copy_before_is_used_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []

    def capture_noted(*arguments: Any, in_place: bool) -> Snapshot:
        snapshot = capture(*arguments, in_place=in_place)
        places.append([t.data_ptr() for part in snapshot.parts.values() for t in part.values()])
        return snapshot

    monkeypatch.setattr("worker.trainer.checkpoints.saver.capture", capture_noted)
    lab.run(patch=EVERY_THIRD)
    assert len(places) == 3
    assert places[0] == places[1] == places[2]


def test_a_stop_takes_no_memory_for_its_state(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it is written from where it lies, and the copy before is given back first."""
    copies: list[weakref.ref[torch.Tensor]] = []
    at_the_stop = []

    def capture_noted(step: Any, *arguments: Any, in_place: bool) -> Snapshot:
        if in_place:
            for _ in range(1000):  # the thread that wrote it may still be letting it go
                if copies[0]() is None:
                    break
                threading.Event().wait(0.01)
            at_the_stop.append(copies[0]() is None)
        snapshot = capture(step, *arguments, in_place=in_place)
        there, weight = snapshot.parts["model"]["head.weight"], step.model.get_parameter
        if in_place:
            at_the_stop.append(there.data_ptr() == weight("head.weight").data_ptr())
        copies.append(weakref.ref(there))
        return snapshot

    monkeypatch.setattr("worker.trainer.checkpoints.saver.capture", capture_noted)
    outcome = lab.run(patch=EVERY_THIRD, stop=StopAtPoll(BUILDING_POLLS + 8))
    assert len(outcome.of_kind("checkpoint")) == 2
    assert at_the_stop == [True, True]


def test_a_stop_ends_only_when_the_checkpoint_is_durable(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = disk.rename

    def rename(source: Path, target: Path) -> None:
        threading.Event().wait(0.05)
        original(source, target)

    monkeypatch.setattr(disk, "rename", rename)
    straight = lab.run(patch=EVERY_THIRD)
    run_dir = lab.new_run()
    folder = lab.prepare(run_dir, EVERY_THIRD)
    outcome = lab.execute(folder, StopAtPoll(10))
    assert outcome.end is not None
    assert outcome.end.reason is Reason.interrupted
    saved = outcome.of_kind("checkpoint")[-1]
    assert saved["step"] == outcome.end.step
    assert outcome.checkpoint().name == f"step-{outcome.end.step}"
    phases = [event["phase"] for event in outcome.of_kind("phase")]
    assert phases[-2:] == ["checkpointing", "training"]
    resumed = lab.run(run_dir, patch=EVERY_THIRD)
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)


@pytest.mark.parametrize(
    ("raised", "reason", "told"),
    [
        (OSError(errno.ENOSPC, "No space left"), Reason.disk_full, "The disk is full: checkpoint"),
        (
            OSError(errno.EIO, "Input/output error"),
            Reason.checkpoint_write_error,
            "Input/output error",
        ),
        (MemoryError(), Reason.host_oom, "while checkpointing"),
    ],
)
def test_a_failed_write_ends_the_run_at_once_and_not_at_the_next_checkpoint(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, raised: Exception, reason: Reason, told: str
) -> None:
    def broken(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(disk, "write_file", broken)
    seldom = {"checkpoint": {"every_steps": 100, "keep_best": 0}, "training": {"epochs": 100}}
    folder = lab.prepare(patch={**EVERY_THIRD, **seldom})
    with pytest.raises(Exception) as caught:
        lab.execute(folder)
    events = read_events(folder)
    phase = [event["phase"] for event in events if event["kind"] == "phase"][-1]
    found, message = explain(caught.value, phase)
    assert found is reason
    assert told in message
    assert 100 <= max(event["step"] for event in events if event["kind"] == "metrics") < 200
    assert not (folder / "checkpoints" / "step-100").exists()


@pytest.mark.parametrize("lost", [3, 6, 9])
def test_no_checkpoint_is_lost_in_silence(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Neither one that the next has waited for, nor the last; written slowly, it is waited for."""
    write_file = disk.write_file

    def broken(path: Path, content: disk.Content) -> None:
        if path.parent.name == f".step-{lost}.tmp":
            threading.Event().wait(0.1)
            raise OSError(errno.EIO, "Input/output error")
        write_file(path, content)

    monkeypatch.setattr(disk, "write_file", broken)
    folder = lab.prepare(patch=EVERY_THIRD)
    with pytest.raises(OSError, match="Input/output error"):
        lab.execute(folder)
    saved = [event["step"] for event in read_events(folder) if event["kind"] == "checkpoint"]
    assert saved == [step for step in (3, 6) if step < lost]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The steps whose copies hold a weight that is not a number, of which no loss tells."""
    steps: set[int] = set()

    def capture_poisoned(step: Any, state: Any, *others: Any, in_place: bool) -> Snapshot:
        snapshot = capture(step, state, *others, in_place=in_place)
        if state.step in steps:
            snapshot.parts["model"]["head.weight"][0, 0] = torch.nan
        return snapshot

    monkeypatch.setattr("worker.trainer.checkpoints.saver.capture", capture_poisoned)
    return steps


@pytest.mark.parametrize("lost", [3, 6, 9])
def test_weights_that_are_not_finite_end_the_run_wherever_the_thread_finds_them(
    lab: Lab, poisoned: set[int], lost: int
) -> None:
    """Also in the last checkpoint, before the test part is looked at; earlier ones are kept."""
    poisoned.add(lost)
    folder = lab.prepare(patch=EVERY_THIRD)
    with pytest.raises(TrainerError, match=rf"not finite after step {lost} \(head.weight\)"):
        lab.execute(folder)
    events = read_events(folder)
    saved = [event["step"] for event in events if event["kind"] == "checkpoint"]
    assert saved == [step for step in (3, 6) if step < lost]
    assert "testing" not in [event["phase"] for event in events if event["kind"] == "phase"]
    kept = (folder / "checkpoints").glob("*") if saved else ()
    assert {path.name for path in kept} == {f"step-{step}" for step in saved}


def test_weights_that_are_not_finite_end_the_run_at_once(lab: Lab, poisoned: set[int]) -> None:
    poisoned.add(100)
    seldom = {"checkpoint": {"every_steps": 100, "keep_best": 0}, "training": {"epochs": 100}}
    folder = lab.prepare(patch={**EVERY_THIRD, **seldom})
    with pytest.raises(TrainerError, match="not finite after step 100"):
        lab.execute(folder)
    steps = [event["step"] for event in read_events(folder) if event["kind"] == "metrics"]
    assert 100 <= max(steps) < 200


def test_a_stop_whose_last_weights_are_not_finite_is_a_failure(
    lab: Lab, poisoned: set[int]
) -> None:
    stopped = lab.execute(lab.prepare(patch=EVERY_THIRD), StopAtPoll(10)).end
    assert stopped is not None
    assert stopped.step is not None
    poisoned.add(stopped.step)
    folder = lab.prepare(patch=EVERY_THIRD)
    with pytest.raises(TrainerError, match=f"not finite after step {stopped.step}") as caught:
        lab.execute(folder, StopAtPoll(10))
    assert caught.value.reason is Reason.nonfinite
    assert not (folder / "checkpoints" / f"step-{stopped.step}").exists()


def test_losses_are_durable_before_the_checkpoint_that_counts_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = LossFile.sync, disk.rename

    def sync_noted(losses: LossFile) -> None:
        sync(losses)
        done.append("losses")

    def rename_noted(source: Path, target: Path) -> None:
        if target.name.startswith("step-"):
            done.append(target.name)
        rename(source, target)

    monkeypatch.setattr(LossFile, "sync", sync_noted)
    monkeypatch.setattr(disk, "rename", rename_noted)
    lab.run(patch=EVERY_THIRD)
    assert done == ["losses", "step-3", "losses", "step-6", "losses", "step-9"]


def test_any_thread_may_emit(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")

    def emit_many() -> None:
        for _ in range(300):
            log.emit("many", text="x" * 500)

    threads = [threading.Thread(target=emit_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 1_201))


def test_a_training_that_fails_keeps_the_checkpoint_that_is_being_written(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()
    apply, rename = TrainingStep.apply, disk.rename

    def fail_at_5(step: TrainingStep, learning_rate: float) -> None:
        if stop.polls > BUILDING_POLLS + 5:
            failed.set()
            raise RuntimeError("the training fails")
        apply(step, learning_rate)

    def rename_late(source: Path, target: Path) -> None:
        assert not target.name.startswith("step-") or failed.wait(PATIENCE_SECONDS)
        rename(source, target)

    monkeypatch.setattr(TrainingStep, "apply", fail_at_5)
    monkeypatch.setattr(disk, "rename", rename_late)
    stop, folder = StopAtPoll(), lab.prepare(patch=EVERY_THIRD)
    with pytest.raises(RuntimeError, match="the training fails"):
        lab.execute(folder, stop)
    (saved,) = [event for event in read_events(folder) if event["kind"] == "checkpoint"]
    assert saved["step"] == 3
    assert load(folder / "checkpoints" / "step-3").body["step"] == 3


def test_a_failure_that_nobody_waits_for_any_more_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    writer = CheckpointWriter()
    writer.begin(fail)
    writer.close()
    assert "Input/output error" in caplog.text
    assert not any(thread.name.startswith("checkpoint") for thread in threading.enumerate())
