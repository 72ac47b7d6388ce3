"""The protocol of checkpoints: after a crash there is the old one or the new one, never a torn."""

import errno
import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from app.lifecycle import Reason
from tests.trainer.checkpoints.crashes import Operation, Recorder, crash_states
from tests.trainer.lab import BUILDING_POLLS, DISK, Lab, StopAtPoll
from worker.reporting import EventLog
from worker.trainer.checkpoints import disk
from worker.trainer.checkpoints import format as checkpoint
from worker.trainer.checkpoints.format import Snapshot, TornCheckpoint, load, publish
from worker.trainer.checkpoints.snapshot import copy_through
from worker.trainer.errors import Diverged, TrainerError
from worker.trainer.state import TrainState
from worker.trainer.step import TrainingStep


def snapshot(step: int, attempt: int = 1) -> Snapshot:
    """Of run 7."""
    values = torch.arange(6, dtype=torch.float32) + step
    state = {"rng.cpu": torch.get_rng_state(), "loss_sums": values[:2]}
    parts = {"model": {"head.weight": values}, "optimizer": {}, "state": state}
    place = {"run_id": 7, "attempt": attempt, "step": step, "epoch": 1}
    facts = {
        "metrics": {"val_loss": 0.1 + step},
        "state": TrainState(step=step).to_json(),
        "scaler": {},
        "losses_bytes": 0,
        "total_steps": 9,
        "order_version": 1,
        "schedule_version": 1,
        "device_type": "cpu",
        "precision": "fp32",
        "threads": 1,
    }
    return Snapshot(parts, {**place, **facts})


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """The folder of the checkpoints of run 7's first attempt."""
    attempt = tmp_path / "runs" / "7" / "attempt-1"
    attempt.mkdir(parents=True)
    return attempt / "checkpoints"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Operation]]:
    """An artifact root, and what was done to publish step-1 in it, and step-2 by a second attempt;
    folders down to the attempt's are the agent's, which syncs none.
    """
    root = tmp_path / "artifacts"
    root.mkdir()
    recorder = Recorder(monkeypatch)
    for number in (1, 2):
        attempt = root / "runs" / "7" / f"attempt-{number}"
        for path in (*reversed(attempt.parents[:2]), attempt):
            if not path.exists():
                path.mkdir()
                recorder.note("make_folder", path)
        folder = attempt / "checkpoints" / f"step-{number}"
        publish(snapshot(number, number), folder)
        recorder.note("announced", folder)
    return root, recorder.operations


def newest_good(folder: Path) -> int:
    """As a resume would find it, 0 for none; a torn one among them is an error here."""
    found = {int(path.name.split("-")[1]): path for path in folder.rglob("step-*")}
    return int(load(found[max(found)]).body["step"]) if found else 0


def test_after_a_crash_at_any_point_what_was_announced_is_found(
    recorded: tuple[Path, list[Operation]],
) -> None:
    root, operations = recorded
    found = []
    for state in crash_states(operations):
        shutil.rmtree(root)
        root.mkdir()
        state.produce(root)
        found.append(newest_good(root))
        assert found[-1] >= len(state.announced), [op.named for op in state.lost]
    assert set(found) == {0, 1, 2}
    assert len(found) > 100


def test_the_manifest_comes_last_and_everything_is_synced_before_the_rename(
    recorded: tuple[Path, list[Operation]],
) -> None:
    operations = recorded[1]
    begun = [op.name for op in operations].index("announced")
    told = [(op.name, op.path.name) for op in operations[begun + 1 : -1]]
    temporary = ".step-2.tmp"
    files = [f"{part}.safetensors" for part in ("model", "optimizer", "state")]
    assert told == [
        ("make_folder", "attempt-2"),
        ("make_folder", "checkpoints"),
        *[("sync_folder", name) for name in ("attempt-2", "7", "runs", "artifacts")],
        ("make_folder", temporary),
        *[(verb, name) for name in files for verb in ("write_file", "sync_file")],
        ("write_file", "manifest.json"),
        ("sync_file", "manifest.json"),
        ("sync_folder", temporary),
        ("rename", temporary),
        ("sync_folder", "checkpoints"),
    ]


def test_what_is_saved_is_what_is_loaded(checkpoints: Path) -> None:
    folder = checkpoints / "step-3"
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
def test_any_harm_is_noticed(checkpoints: Path, harm: Callable[[Path], object]) -> None:
    folder = checkpoints / "step-3"
    publish(snapshot(3), folder)
    harm(folder)
    with pytest.raises(TornCheckpoint):
        load(folder)


def test_every_flipped_bit_of_the_weights_is_noticed(checkpoints: Path) -> None:
    folder = checkpoints / "step-3"
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
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints / "step-3"
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    publish(snapshot(3), folder)
    monkeypatch.setattr(checkpoint, "FORMAT", 1)
    with pytest.raises(TrainerError, match="reads format 1") as caught:
        load(folder)
    assert caught.value.reason is Reason.checkpoint_unusable


@pytest.mark.parametrize("name", DISK)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_last_checkpoint(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    folder = checkpoints
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
    each_step = {"checkpoint": {"every_steps": 1}}
    straight, run_dir = lab.run(patch=each_step), lab.new_run()
    original = disk.write_file

    def full_at_step_4(path: Path, content: disk.Content) -> None:
        if "step-4" in path.parent.name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        original(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "write_file", full_at_step_4)
        with pytest.raises(TrainerError) as caught:
            lab.run(run_dir, each_step)
    assert caught.value.reason is Reason.disk_full
    resumed = lab.run(run_dir, each_step)
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
    checkpoints: Path,
) -> None:
    folder = checkpoints
    publish(snapshot(1), folder / "step-1")
    broken = snapshot(2)
    broken.parts["model"]["head.weight"][3] = torch.nan
    with pytest.raises(TrainerError, match=r"not finite after step 2 \(head.weight\)"):
        publish(broken, folder / "step-2")
    assert [path.name for path in folder.iterdir()] == ["step-1"]


def test_a_loss_that_is_not_finite_is_refused_with_whole_weights_too(checkpoints: Path) -> None:
    """Whoever went on from it would end at the next log point."""
    broken = snapshot(2)
    broken.parts["state"]["loss_sums"] = torch.tensor([1.0, torch.inf])
    with pytest.raises(Diverged, match="training loss is not finite at or before step 2"):
        publish(broken, checkpoints / "step-2")
    assert not checkpoints.exists()


def test_no_copy_of_a_part_is_made(tmp_path: Path) -> None:
    size = 4 * 2**20
    part = {"loss_sums": torch.zeros(size // 4)}
    snapshot = Snapshot({"model": part, "optimizer": part, "state": part}, {"step": 1})
    tracemalloc.start()
    publish(snapshot, tmp_path / "checkpoints" / "step-1")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < size / 8


def test_a_second_attempt_has_its_own_name_on_the_disk_before_it_tells_of_a_checkpoint(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = lab.new_run()
    lab.run(run_dir, stop=StopAtPoll(BUILDING_POLLS + 12))
    folder = lab.prepare(run_dir)
    recorder, emit = Recorder(monkeypatch), EventLog.emit

    def noted(events: EventLog, kind: str, **data: Any) -> None:
        if data.get("action") == "saved":
            recorder.note("announced", folder / data["path"])
        emit(events, kind, **data)

    monkeypatch.setattr(EventLog, "emit", noted)
    lab.execute(folder)
    first = [op.name for op in recorder.operations].index("announced")
    synced = {op.path for op in recorder.operations[:first] if op.name == "sync_folder"}
    assert {lab.root, lab.runs, run_dir, folder, folder / "checkpoints"} <= synced


def some_state(device: str) -> list[torch.Tensor]:
    """Tensors of all kinds that a training keeps, some of them larger than a small buffer."""
    torch.manual_seed(0)
    wide = torch.randn(7, 9, device=device)
    return [
        wide,
        wide[2:5],
        torch.ones((), dtype=torch.float64, device=device),
        torch.zeros((3, 0), device=device),
        torch.arange(5, dtype=torch.int64, device=device),
        torch.tensor([True, False, True], device=device),
        wide.bfloat16(),
        wide.T.contiguous(),
    ]


@pytest.mark.parametrize("room", [1, 8, 100, 252, 10_000])
def test_a_state_is_the_same_through_a_buffer_of_any_size(room: int) -> None:
    state = some_state("cpu")
    copies = [torch.full(one.shape, 1, dtype=one.dtype) for one in state]
    copy_through(torch.empty(room, dtype=torch.uint8), zip(state, copies, strict=True))
    for one, copied in zip(state, copies, strict=True):
        assert torch.equal(one, copied)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_state_comes_from_the_gpu_through_pinned_memory() -> None:
    """The next steps overwrite the state at once, and the copy stays what it was."""
    state = [*some_state("cuda"), torch.randn(3_000_000, device="cuda")]
    expected = [one.cpu() for one in state]
    copies = [torch.empty(one.shape, dtype=one.dtype) for one in state]
    buffer = torch.empty(2**20, dtype=torch.uint8, pin_memory=True)
    copy_through(buffer, zip(state, copies, strict=True))
    for one in state:
        one.zero_()
    for one, copied in zip(expected, copies, strict=True):
        assert torch.equal(one, copied)
