"""A run that took over another's whole state has that one's best checkpoint as its own."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Killed, Lab, Outcome, StopAtPoll
from worker.trainer import state
from worker.trainer.checkpoints import disk
from worker.trainer.checkpoints.format import load
from worker.trainer.errors import TrainerError

# Nine steps, each evaluated and saved; only the best and the newest are of interest.
SPEC: dict[str, Any] = {
    "early_stopping": None,
    "evaluation": {"every_steps": 1},
    "checkpoint": {"every_steps": 1},
}
BEST, START = 3, 6
RARELY = {**SPEC, "checkpoint": {"every_steps": 100}}


@pytest.fixture
def parent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Its best step is BEST; whoever goes on from it finds no better one."""
    left = iter([True] * BEST)
    monkeypatch.setattr(state, "improves", lambda *_: next(left, False))
    return lab.run(patch=SPEC)


def whole_state(parent: Outcome, step: int = START, carry: str = "full") -> list[dict[str, Any]]:
    return [{"path": str(parent.checkpoint(step)), "carry": carry, "own": False}]


def saved(outcome: Outcome) -> list[int]:
    return [e["step"] for e in outcome.of_kind("checkpoint") if e["action"] == "saved"]


def steps(run_dir: Path) -> list[str]:
    return sorted(folder.name for folder in run_dir.glob("attempt-*/checkpoints/*"))


def warnings(outcome: Outcome) -> list[str]:
    return [event["code"] for event in outcome.of_kind("warning")]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def no_links(*_: Any) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("linked", [True, False], ids=["one_disk", "another_disk"])
def test_the_best_of_the_parent_becomes_the_childs(
    lab: Lab, parent: Outcome, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    if not linked:
        monkeypatch.setattr(os, "link", no_links)
    expected = weights(parent.checkpoint(BEST))
    child = lab.run(patch=SPEC, restore=whole_state(parent))
    assert saved(child) == [START, BEST, 7, 8, 9]
    (told,) = [e for e in child.of_kind("checkpoint") if e["step"] == BEST]
    assert told["path"] == str(child.checkpoint(BEST))
    assert told["of_run"] == 1
    assert told["metrics"]["val_loss"] == child.result["best"]["val_loss"]
    assert told["bytes"] == sum(f.stat().st_size for f in child.checkpoint(BEST).iterdir())
    assert warnings(child) == []
    shutil.rmtree(parent.run_dir)
    assert weights(child.checkpoint(BEST)) == expected
    again = lab.run(patch=SPEC, restore=whole_state(child, BEST))
    assert again.weights == child.weights


def test_a_second_attempt_brings_nothing_twice(lab: Lab, parent: Outcome) -> None:
    run_dir = lab.new_run()
    lab.run(run_dir, SPEC, whole_state(parent), stop=StopAtPoll(BUILDING_POLLS + 8))
    shutil.rmtree(parent.run_dir)
    resumed = lab.run(run_dir, SPEC)
    assert BEST not in saved(resumed)
    assert resumed.result["best"]["step"] == resumed.result["test"]["step"] == BEST
    assert steps(run_dir).count(f"step-{BEST}") == 1


def test_killed_before_its_first_save_it_does_not_go_back_to_the_best(
    lab: Lab, parent: Outcome
) -> None:
    run_dir = lab.new_run()
    with pytest.raises(Killed):
        lab.run(run_dir, RARELY, whole_state(parent), StopAtPoll(BUILDING_POLLS, kill=True))
    assert not list(run_dir.rglob("manifest.json"))


def test_killed_between_both_it_is_brought_by_the_next_attempt(
    lab: Lab, parent: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, rename = lab.new_run(), disk.rename

    def killed_at_best(source: Path, target: Path) -> None:
        if target.name == f"step-{BEST}":
            raise Killed
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "rename", killed_at_best)
        with pytest.raises(Killed):
            lab.run(run_dir, SPEC, whole_state(parent))
    for left in run_dir.glob("attempt-*/checkpoints/.step-*.tmp"):
        shutil.rmtree(left)  # as the agent does
    resumed = lab.run(run_dir, SPEC)
    assert saved(resumed)[0] == BEST
    assert (run_dir / "attempt-1" / "checkpoints" / f"step-{BEST}" / "manifest.json").exists()
    shutil.rmtree(parent.run_dir)
    assert lab.run(run_dir, SPEC).result["test"]["step"] == BEST


def test_the_best_that_is_gone_on_from_is_saved_anew(lab: Lab, parent: Outcome) -> None:
    for patch, expected in ((RARELY, [BEST, 9]), (SPEC, list(range(BEST, 10)))):
        child = lab.run(patch=patch, restore=whole_state(parent, BEST))
        assert saved(child) == expected
        assert steps(child.run_dir) == [f"step-{step}" for step in expected]


def test_a_better_one_of_its_own_takes_its_place(
    lab: Lab, parent: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "improves", lambda *_: True)
    child = lab.run(patch=RARELY, restore=whole_state(parent))
    assert "step-7" in steps(child.run_dir)
    assert f"step-{BEST}" not in {name.removeprefix(".") for name in steps(child.run_dir)}
    assert not list(child.run_dir.rglob("*.tmp"))


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_a_best_that_cannot_be_had_is_told_and_the_run_goes_on(
    lab: Lab, parent: Outcome, harm: str
) -> None:
    best = parent.checkpoint(BEST)
    if harm == "gone":
        shutil.rmtree(best)
    else:
        (best / "model.safetensors").write_bytes(b"x")
    child = lab.run(patch=SPEC, restore=whole_state(parent))
    (warning,) = child.of_kind("warning")
    assert warning["code"] == "best_weights_gone"
    assert f"step {BEST}" in warning["message"]
    assert child.result["best"] is None
    assert steps(child.run_dir) == ["step-6", "step-7", "step-8", "step-9"]


def test_a_full_disk_ends_it_as_at_any_write(
    lab: Lab, parent: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(shutil, "copyfile", full)
    folder = lab.prepare(patch=SPEC, restore=whole_state(parent))
    with pytest.raises(TrainerError, match="The disk is full") as caught:
        lab.execute(folder)
    assert caught.value.reason is Reason.disk_full
    assert steps(folder.parent) == []
    load(parent.checkpoint(BEST))


@pytest.mark.parametrize(
    ("carry", "keep_best"), [("weights", 1), ("full", 0)], ids=["weights_alone", "none_is_kept"]
)
def test_where_no_best_is_carried_or_kept_none_is_brought(
    lab: Lab, parent: Outcome, carry: str, keep_best: int
) -> None:
    patch = {**SPEC, "checkpoint": {"every_steps": 1, "keep_best": keep_best}}
    child = lab.run(patch=patch, restore=whole_state(parent, carry=carry))
    assert all(event["path"].startswith("checkpoints/") for event in child.of_kind("checkpoint"))
    assert len(saved(child)) == (9 if carry == "weights" else 4)
