"""Where an attempt starts from: damaged checkpoints are passed over, unreadable ones are not."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch

from app.lifecycle import Reason
from stoker.manifest import manifest_bytes
from tests.trainer.lab import (
    BUILDING_POLLS,
    Lab,
    Outcome,
    StopAtPoll,
    merged,
    own_checkpoints,
    read_events,
)
from worker.trainer.errors import TrainerError

SHORT = {
    "training": {"max_steps": 6},
    "schedule": {"kind": "constant"},
    "checkpoint": {"keep_best": 0},
}


@pytest.fixture
def first(lab: Lab) -> Outcome:
    """A run of six steps with checkpoints at 2, 4 and 6, which goes on when tried again."""
    return lab.run(lab.new_run(), patch=SHORT)


def quarantined(outcome: Outcome) -> list[str]:
    told = [e for e in outcome.of_kind("checkpoint") if e["action"] == "quarantined"]
    return [event["path"] for event in told]


def cut(folder: Path) -> None:
    path = folder / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def of_another_run(folder: Path) -> None:
    """A whole checkpoint, of run 7, that somebody put here."""
    stranger = folder.parents[3] / "7" / "attempt-1" / "checkpoints" / folder.name
    shutil.copytree(folder, stranger)
    resign(stranger, run_id=7)
    shutil.rmtree(folder)
    stranger.rename(folder)


def resign(folder: Path, **facts: object) -> None:
    """A manifest that says something else, and is whole."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    (folder / "manifest.json").write_bytes(manifest_bytes({**manifest, **facts}))


def of_another_step(folder: Path) -> None:
    resign(folder, step=5)


def of_no_files(folder: Path) -> None:
    resign(folder, files={})


def no_json(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")


def dangling(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder.with_name("nowhere"))


HARMS: list[Callable[[Path], None]] = [
    cut,
    lambda folder: (folder / "model.safetensors").unlink(),
    lambda folder: (folder / "manifest.json").unlink(),
    no_json,
    lambda folder: shutil.rmtree(folder),
    of_another_run,
    of_another_step,
    of_no_files,
    dangling,
]


def without(folder: Path, name: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"], manifest[name]
    (folder / "manifest.json").write_bytes(manifest_bytes(manifest))


def emptied(folder: Path, name: str) -> None:
    resign(folder, **{name: []})


def state_with(folder: Path, **facts: object) -> None:
    state = json.loads((folder / "manifest.json").read_text())["state"]
    resign(folder, state={**state, **facts})


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """A file of another content, under a manifest that agrees."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    (folder / name).write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    resign(folder, files={**files, name: entry})


NEEDED = [
    "step", "epoch", "state", "scaler", "losses_bytes", "total_steps", "threads",
    "precision", "device_type", "order_version", "schedule_version", "format",
]  # fmt: skip
HARMS += [
    *(partial(without, name=name) for name in NEEDED),
    *(partial(emptied, name=name) for name in NEEDED),
    partial(resign, metrics="x"),
    partial(resign, epoch=10**30),
    partial(resign, best_folder=7),
    partial(resign, best_folder="a\0b"),
    partial(resign, precision="fp8"),
    partial(resign, recipe=[]),
    partial(resign, scaler={"scale": 2.0}),
    partial(resign, loss_samples=[1]),
    partial(state_with, foreign=1),
    partial(state_with, step="x"),
    partial(state_with, last=None),
    partial(state_with, best={"step": 2}),
    partial(state_with, best_by={"monitor": 1, "mode": "min", "max_batches": None}),
    partial(rewrite, name="model.safetensors", data=b"{}"),
    partial(rewrite, name="state.safetensors", data=safetensors.torch.save({})),
]


def test_losses_that_an_earlier_version_divided_by_samples_go_on(lab: Lab) -> None:
    """To the last bit, from the middle of an epoch and between two log points."""
    patch = {"training": {"log_every_steps": 50}}
    straight, run_dir = lab.run(patch=patch), lab.new_run()
    stopped = lab.run(run_dir, patch, stop=StopAtPoll(BUILDING_POLLS + 2))
    folder = stopped.checkpoint()
    state = safetensors.torch.load((folder / "state.safetensors").read_bytes())
    sums = state["loss_sums"]
    assert sums.shape == (2, 2)
    assert 0 < sums[0, 1] <= sums[1, 1]
    state["loss_sums"] = sums[:, :1].contiguous()
    rewrite(folder, "state.safetensors", safetensors.torch.save(state))
    resign(folder, loss_samples=[int(samples) for samples in sums[:, 1]])
    resumed = lab.run(run_dir, patch)
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)


@pytest.mark.parametrize("max_batches", [None, 1])
def test_a_best_over_the_first_batches_is_not_compared_with_one_over_spaced_ones(
    lab: Lab, max_batches: int | None
) -> None:
    """Earlier versions said only how many; all of them are the same batches still."""
    patch = merged(SHORT, {"evaluation": {"max_batches": max_batches}})
    before = lab.run(lab.new_run(), patch=patch)
    state = json.loads((before.checkpoint(6) / "manifest.json").read_text())["state"]
    for name in ("best_by", "patience_by"):
        assert state[name].pop("spaced") is (max_batches is not None)
    state["best"]["value"] = -1.0  # which nothing would be better than
    resign(before.checkpoint(6), state=state)
    resumed = lab.run(before.run_dir, patch=merged(patch, {"training": {"max_steps": None}}))
    told = [event["code"] for event in resumed.of_kind("warning")]
    assert ("monitor_changed" in told) == (max_batches is not None)
    best = resumed.result["best"]["step"]
    assert (best > 6) == (max_batches is not None)


def test_a_manifest_without_a_best_folder_has_none(lab: Lab, first: Outcome) -> None:
    without(first.checkpoint(6), "best_folder")
    without(first.checkpoint(6), "metrics")
    (restored,) = lab.run(first.run_dir).of_kind("restored")
    assert (restored["step"], restored["passed_over"]) == (6, [])


@pytest.mark.parametrize("harm", HARMS)
def test_every_checkpoint_that_is_passed_over_is_told(
    lab: Lab, first: Outcome, harm: Callable[[Path], None]
) -> None:
    folder = first.checkpoint(6)
    restore = own_checkpoints(first.run_dir)
    harm(folder)
    resumed = lab.run(first.run_dir, restore=restore)
    (restored,) = resumed.of_kind("restored")
    assert restored["step"] == 4
    assert [one["path"] for one in restored["passed_over"]] == [str(folder)]
    assert restored["passed_over"][0]["why"]
    assert quarantined(resumed) == [str(folder)]


def test_damaged_checkpoints_are_put_aside_and_the_next_one_is_used(
    lab: Lab, first: Outcome
) -> None:
    damaged = [first.checkpoint(step) for step in (6, 4)]
    for folder in damaged:
        cut(folder)
    resumed = lab.run(first.run_dir)
    assert resumed.of_kind("restored")[0]["step"] == 2
    assert quarantined(resumed) == [str(folder) for folder in damaged]
    kept = sorted(f.name for f in damaged[0].parent.iterdir() if "torn" in f.name)
    assert kept == ["step-4.torn", "step-6.torn"]


READS_THAT_FAIL = ["EMFILE", "EIO", "ESTALE", "ELOOP", "EACCES", "ENOMEM"]


@pytest.mark.parametrize("name", READS_THAT_FAIL)
@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
def test_a_read_that_failed_damages_nothing_and_is_tried_again(
    lab: Lab, first: Outcome, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    """Six good checkpoints were put aside and the training began anew, for want of a descriptor."""
    original, losses = Path.read_bytes, first.losses
    number = getattr(errno, name)

    def failing(path: Path) -> bytes:
        if path.name == file:
            raise OSError(number, os.strerror(number), str(path))
        return original(path)

    before = sorted(first.run_dir.rglob("checkpoints/**"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing)
        folder = lab.prepare(first.run_dir)
        with pytest.raises(TrainerError, match="could not be read") as caught:
            lab.execute(folder)
    assert caught.value.reason is Reason.checkpoint_error
    assert sorted(first.run_dir.rglob("checkpoints/**")) == before
    assert first.losses == losses
    resumed = lab.run(first.run_dir)
    assert resumed.of_kind("restored")[0]["step"] == 6
    assert resumed.of_kind("restored")[0]["passed_over"] == []


def test_nothing_starts_from_scratch_by_itself(lab: Lab, first: Outcome) -> None:
    losses = first.losses
    for candidate in own_checkpoints(first.run_dir):
        cut(Path(candidate["path"]))
    folder = lab.prepare(first.run_dir)
    with pytest.raises(TrainerError, match="stoker restart 1 --from scratch") as caught:
        lab.execute(folder)
    assert caught.value.reason is Reason.checkpoint_unusable
    assert first.losses == losses


def test_a_restart_whose_parents_checkpoint_is_torn_does_not_train_from_nothing(lab: Lab) -> None:
    parent = lab.run()
    cut(parent.checkpoint())
    restore = [{"path": str(parent.checkpoint()), "carry": "full", "own": False}]
    folder = lab.prepare(restore=restore)
    with pytest.raises(TrainerError, match="the run to go on from") as caught:
        lab.execute(folder)
    assert caught.value.reason is Reason.checkpoint_unusable
    (told,) = [event for event in read_events(folder) if event["kind"] == "checkpoint"]
    assert (told["action"], told["own"], told["renamed_to"]) == ("quarantined", False, None)
    assert parent.checkpoint().is_dir()


def test_a_torn_checkpoint_of_the_parent_is_passed_over_and_left_as_it_is(lab: Lab) -> None:
    parent = lab.run()
    torn = parent.checkpoint(6)
    cut(torn)
    restore = [
        {"path": str(folder), "carry": "full", "own": False}
        for folder in (torn, parent.checkpoint(4))
    ]
    (restored,) = lab.run(restore=restore).of_kind("restored")
    assert restored["step"] == 4
    assert [one["path"] for one in restored["passed_over"]] == [str(torn)]
    assert torn.is_dir()
