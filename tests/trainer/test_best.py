"""The best weights are never lost to what comes after, and do not cost a fast training its time."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Killed, Lab, Outcome, StopAtPoll
from worker.trainer import evaluate, trainer
from worker.trainer.checkpoint import Snapshot, publish

# Nine steps, each evaluated; nothing is saved but the best, and what is at the end.
RARELY: dict[str, Any] = {"checkpoint": {"every_steps": None}, "evaluation": {"every_steps": 1}}


def saved(outcome: Outcome) -> list[int]:
    return [event["step"] for event in outcome.of_kind("checkpoint")]


def weights(outcome: Outcome, step: int) -> bytes:
    return (outcome.checkpoint(step) / "model.safetensors").read_bytes()


@pytest.fixture
def _no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first best one none may be written for years."""
    monkeypatch.setattr(trainer, "SHARE_OF_WRITING", 1e-12)


def best_until(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Every evaluation is the best so far, up to that step."""
    left = iter([True] * step)
    monkeypatch.setattr(evaluate, "improves", lambda *_: next(left, False))


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


@pytest.mark.usefixtures("_no_time")
def test_a_stop_saves_the_best_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    best_until(monkeypatch, 3)
    outcome = lab.run(
        patch={**RARELY, "early_stopping": None}, stop=StopAtPoll(BUILDING_POLLS + 17)
    )
    assert outcome.end is not None
    assert outcome.end.reason is Reason.interrupted
    assert saved(outcome) == [1, 3, outcome.end.step]
    assert (outcome.end.step or 0) > 3


@pytest.mark.usefixtures("_no_time")
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_run_interrupted_while_its_best_waits_ends_as_one_that_was_not(
    lab: Lab, kill: bool
) -> None:
    patch = {**RARELY, "checkpoint": {"every_steps": 4}}
    stop = StopAtPoll()
    straight, polls = lab.run(patch=patch, stop=stop), stop.polls
    for poll in range(BUILDING_POLLS + 1, polls - 5, 3):
        run_dir = lab.new_run()
        try:
            lab.run(run_dir, patch, stop=StopAtPoll(poll, kill))
        except Killed:
            assert kill
        resumed = lab.run(run_dir, patch)
        assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
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

    monkeypatch.setattr(trainer, "publish", slow)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: clock.now, time=float))
    best_until(monkeypatch, 90)
    patch = {**RARELY, "training": {"epochs": 30}, "early_stopping": None}
    outcome = lab.run(patch=patch, stop=clock)
    *gaps, _ = [after - before for before, after in pairwise(begun)]
    assert min(gaps) >= 0.5 / 0.02 - 2  # within which the thread may begin
    assert 3 <= len(begun) < 20
    assert outcome.result["best"]["step"] == saved(outcome)[-1] == 90
