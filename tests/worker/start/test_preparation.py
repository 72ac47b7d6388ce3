"""What a trainer is told: what to restore, where the data is, on which device."""

from pathlib import Path

import pytest

from app.store.records import DatasetRecord, Lease, RestorePoint
from tests.worker.agent.test_checkpoints import write
from worker.start.preparation import confined, restore_list, run_dir

WAVES = DatasetRecord(
    id=1, name="waves", path="waves.h5", state="ready", fields={}, samples=1, layout=None,
    size_bytes=1, fingerprint=None, problems=[], read_probe=None, message=None,
    created_at=0.0, updated_at=0.0,
)  # fmt: skip


def lease(run_id, *points):
    return Lease(
        token="t", run_id=run_id, attempt=2, spec={}, request={}, slots=("cpu-0-0",),
        restore_points=points, max_retries=3, beats=0, memory_rung=None,
        rollback=None, host_bytes=None, datasets={WAVES.name: WAVES},
    )  # fmt: skip


def restored(root, lease):
    return [
        (str(Path(entry["path"]).relative_to(root / "runs")), entry["carry"], entry["own"])
        for entry in restore_list(root, lease)
    ]


def test_a_first_attempt_starts_from_nothing(tmp_path):
    assert restored(tmp_path, lease(1)) == []


def test_a_later_attempt_tries_its_own_newest_first(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    write(run_dir(tmp_path, 1), 1, 20)
    assert restored(tmp_path, lease(1)) == [
        ("1/attempt-1/checkpoints/step-20", "full", True),
        ("1/attempt-1/checkpoints/step-10", "full", True),
    ]


def test_a_restart_from_latest_goes_on_from_its_parents_newest(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    assert restored(tmp_path, lease(2, RestorePoint(1, "weights", None))) == [
        ("1/attempt-1/checkpoints/step-10", "weights", False)
    ]


def test_a_restarted_run_goes_on_only_from_what_it_has_saved_itself(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    write(run_dir(tmp_path, 2), 1, 5)
    assert restored(tmp_path, lease(2, RestorePoint(1, "weights", None))) == [
        ("2/attempt-1/checkpoints/step-5", "full", True)
    ]


def test_the_first_run_that_has_saved_is_the_one_gone_on_from(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    write(run_dir(tmp_path, 2), 1, 20)
    points = [RestorePoint(3, "full", None), RestorePoint(2, "weights", None)]
    assert restored(tmp_path, lease(4, *points, RestorePoint(1, "weights", None))) == [
        ("2/attempt-1/checkpoints/step-20", "weights", False)
    ]


def test_a_named_checkpoint_is_the_only_one_of_its_run(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    write(run_dir(tmp_path, 1), 1, 20)
    path = "runs/1/attempt-1/checkpoints/step-10"
    assert restored(tmp_path, lease(2, RestorePoint(1, "full", path))) == [
        ("1/attempt-1/checkpoints/step-10", "full", False)
    ]


def test_paths_stay_below_their_root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    assert confined("a/b.h5", root) == root.resolve() / "a" / "b.h5"
    (root / "link").symlink_to(tmp_path)
    for path in ("../secret", "/etc/passwd", "link/secret"):
        with pytest.raises(ValueError, match="leads out of"):
            confined(path, root)
