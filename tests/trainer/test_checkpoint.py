"""The protocol of checkpoints: after a crash there is the old one or the new one, never a torn."""

import errno
import itertools
import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from app.lifecycle import Reason
from tests.trainer.lab import DISK, Lab
from worker.trainer import checkpoint, disk
from worker.trainer.checkpoint import Snapshot, TornCheckpoint, load, publish
from worker.trainer.errors import TrainerError
from worker.trainer.step import TrainingStep


def snapshot(step: int) -> Snapshot:
    values = torch.arange(6, dtype=torch.float32) + step
    parts = {"model": {"head.weight": values}, "optimizer": {}, "state": {"loss": values[:1]}}
    return Snapshot(parts, {"step": step, "metrics": {"val_loss": 0.1 + step}})


@dataclass(frozen=True)
class Operation:
    name: str
    path: Path
    data: bytes | Path | None = None


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Operation]]:
    """A folder with checkpoint step-1, and what was done to publish step-2 beside it."""
    folder = tmp_path / "attempt-1" / "checkpoints"
    folder.parent.mkdir()
    publish(snapshot(1), folder / "step-1")
    before = tmp_path / "before"
    shutil.copytree(folder, before)
    operations: list[Operation] = []

    def recording(name: str) -> Callable[..., None]:
        original = getattr(disk, name)

        def operate(path: Path, data: Any = None) -> None:
            kept = b"".join(data) if name == "write_file" else data
            operations.append(Operation(name, path, kept))
            original(path) if data is None else original(path, data)

        return operate

    for name in DISK:
        monkeypatch.setattr(disk, name, recording(name))
    publish(snapshot(2), folder / "step-2")
    shutil.rmtree(folder)
    shutil.copytree(before, folder)
    return folder, operations


def crash_states(operations: list[Operation]) -> Iterator[tuple[Callable[[], None], bool]]:
    """What a disk may hold after a power cut, as functions that produce it.

    Of what was not yet made durable by an fsync, the disk may have kept any part: contents may
    be whole, cut, zeros or empty, and a rename may have happened or not. Yields also whether
    everything had been made durable.
    """
    for count in range(len(operations) + 1):
        done = operations[:count]
        synced = {op.path for op in done if op.name == "sync_file"}
        unsynced = [op for op in done if op.name == "write_file" and op.path not in synced]
        renamed = any(op.name == "rename" for op in done)
        durable_rename = renamed and done[-1].name == "sync_folder"
        for damage, keep_rename in itertools.product(
            (whole, cut, zeros, empty) if unsynced else (whole,),
            (True, False) if renamed and not durable_rename else (True,),
        ):
            yield produce(done, {op.path for op in unsynced}, damage, keep_rename), durable_rename


def whole(data: bytes) -> bytes:
    return data


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zeros(data: bytes) -> bytes:
    return bytes(len(data))


def empty(_data: bytes) -> bytes:
    return b""


def produce(
    done: list[Operation],
    damaged: set[Path],
    damage: Callable[[bytes], bytes],
    keep_rename: bool,
) -> Callable[[], None]:
    def replay() -> None:
        for op in done:
            if op.name == "make_folder":
                op.path.mkdir(exist_ok=True)
            elif op.name == "write_file" and isinstance(op.data, bytes):
                op.path.write_bytes(damage(op.data) if op.path in damaged else op.data)
            elif op.name == "rename" and isinstance(op.data, Path) and keep_rename:
                op.path.rename(op.data)

    return replay


def newest_good(folder: Path) -> int:
    """As a resume would find it; a torn one among them is an error here."""
    steps = sorted((int(f.name.split("-")[1]) for f in folder.glob("step-*")), reverse=True)
    return int(load(folder / f"step-{steps[0]}").body["step"])


def test_after_a_crash_at_any_point_the_old_or_the_new_checkpoint_is_found(
    recorded: tuple[Path, list[Operation]],
) -> None:
    folder, operations = recorded
    pristine = folder.with_name("pristine")
    shutil.copytree(folder, pristine)
    found = []
    for replay, durable in crash_states(operations):
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        replay()
        found.append(newest_good(folder))
        assert found[-1] == 2 or not durable
    assert set(found) == {1, 2}
    assert len(found) > 20


def test_the_manifest_comes_last_and_everything_is_synced_before_the_rename(
    recorded: tuple[Path, list[Operation]],
) -> None:
    folder, operations = recorded
    told = [(op.name, op.path.name) for op in operations]
    temporary = ".step-2.tmp"
    files = [f"{part}.safetensors" for part in ("model", "optimizer", "state")]
    assert told == [
        ("make_folder", temporary),
        *[(verb, name) for name in files for verb in ("write_file", "sync_file")],
        ("write_file", "manifest.json"),
        ("sync_file", "manifest.json"),
        ("sync_folder", temporary),
        ("rename", temporary),
        ("sync_folder", folder.name),
    ]


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step-3"
    size = publish(snapshot(3), folder)
    loaded = load(folder)
    assert torch.equal(
        loaded.parts["model"]["head.weight"], snapshot(3).parts["model"]["head.weight"]
    )
    assert loaded.body["metrics"] == {"val_loss": 3.1}
    assert size == sum(file.stat().st_size for file in folder.iterdir())


def damage_manifest_number(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"step": 3', '"step": 4'))


@pytest.mark.parametrize(
    "harm",
    [
        lambda f: (f / "model.safetensors").write_bytes(b""),
        lambda f: (f / "model.safetensors").unlink(),
        lambda f: (f / "state.safetensors").write_bytes(
            (f / "state.safetensors").read_bytes()[:-1]
        ),
        lambda f: (f / "manifest.json").unlink(),
        lambda f: (f / "manifest.json").write_text("{"),
        lambda f: (f / "manifest.json").write_text("[]"),
        lambda f: (f / "manifest.json").write_text('{"step": 3}'),
        damage_manifest_number,
    ],
)
def test_any_harm_is_noticed(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    folder = tmp_path / "checkpoints" / "step-3"
    publish(snapshot(3), folder)
    harm(folder)
    with pytest.raises(TornCheckpoint):
        load(folder)


def test_every_flipped_bit_of_the_weights_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step-3"
    publish(snapshot(3), folder)
    path = folder / "model.safetensors"
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1
        path.write_bytes(bytes(bad))
        with pytest.raises(TornCheckpoint):
            load(folder)


def test_a_newer_format_is_refused_but_not_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints" / "step-3"
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    publish(snapshot(3), folder)
    monkeypatch.setattr(checkpoint, "FORMAT", 1)
    with pytest.raises(TrainerError, match="reads format 1") as caught:
        load(folder)
    assert caught.value.reason is Reason.checkpoint_unusable


@pytest.mark.parametrize("name", DISK)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    folder = tmp_path / "checkpoints"
    publish(snapshot(1), folder / "step-1")

    def full(path: Path, *_arguments: object) -> None:
        raise OSError(code, "No space left on device", str(path))

    monkeypatch.setattr(disk, name, full)
    with pytest.raises(TrainerError, match="The disk is full") as caught:
        publish(snapshot(2), folder / "step-2")
    assert caught.value.reason is Reason.disk_full
    assert newest_good(folder) == 1
    assert [f.name for f in folder.iterdir()] == ["step-1"]


def test_a_run_whose_disk_fills_up_ends_and_resumes_later(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, run_dir = lab.run(), lab.new_run()
    original = disk.write_file

    def full_at_step_4(path: Path, pieces: list[memoryview]) -> None:
        if "step-4" in path.parent.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(path, pieces)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write_file", full_at_step_4)
        with pytest.raises(TrainerError) as caught:
            lab.run(run_dir)
    assert caught.value.reason is Reason.disk_full
    resumed = lab.run(run_dir)
    assert resumed.of_kind("restored")[0]["step"] == 3
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)


def test_the_manifest_says_what_the_checkpoint_is(lab: Lab) -> None:
    outcome = lab.run()
    manifest = json.loads((outcome.checkpoint(4) / "manifest.json").read_text())
    assert {
        "run_id": 1,
        "attempt": 1,
        "step": 4,
        "epoch": 2,
        "position": 16,
        "threads": 1,
    }.items() <= (manifest.items())
    assert manifest["recipe"]["encoder"] == "lstm"
    assert manifest["recipe"]["target_shape"] == [4]
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["metrics"]["val_loss"] > 0
    without_evaluation = json.loads((outcome.checkpoint(2) / "manifest.json").read_text())
    assert "val_loss" not in without_evaluation["metrics"]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_never_kept(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    apply = TrainingStep.apply

    def poison(step: TrainingStep, learning_rate: float) -> None:
        apply(step, learning_rate)
        with torch.no_grad():
            step.model.get_parameter("head.weight")[1, 2] = value

    monkeypatch.setattr(TrainingStep, "apply", poison)
    folder = lab.prepare(patch={"checkpoint": {"every_steps": 1}})
    # Said by the thread that writes, or before that by the next loss.
    with pytest.raises(TrainerError, match=r"not finite after step 1 |loss became ") as caught:
        lab.execute(folder)
    assert caught.value.reason is Reason.nonfinite
    assert not (folder / "checkpoints").exists()


def test_weights_that_are_not_finite_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "checkpoints"
    publish(snapshot(1), folder / "step-1")
    broken = snapshot(2)
    broken.parts["model"]["head.weight"][3] = torch.nan
    with pytest.raises(TrainerError, match=r"not finite after step 2 \(head.weight\)"):
        publish(broken, folder / "step-2")
    assert [path.name for path in folder.iterdir()] == ["step-1"]


def test_no_copy_of_a_part_is_made(tmp_path: Path) -> None:
    size = 4 * 2**20
    part = {"tensor": torch.zeros(size // 4)}
    snapshot = Snapshot({"model": part, "optimizer": part, "state": part}, {"step": 1})
    tracemalloc.start()
    publish(snapshot, tmp_path / "checkpoints" / "step-1")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < size / 8
