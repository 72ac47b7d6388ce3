"""What a trainer is told: what to restore, where the data is, on which device."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from app.store.records import DatasetRecord, Lease
from tests.worker.test_checkpoints import write
from worker.preparation import confined, restore_list, run_dir

WAVES = DatasetRecord(
    id=1, name="waves", path="waves.h5", state="ready", fields={}, samples=1, layout=None,
    size_bytes=1, fingerprint=None, problems=[], read_probe=None, message=None,
    created_at=0.0, updated_at=0.0,
)  # fmt: skip


def lease(run_id, **changes):
    values = {
        "parent_id": None, "restart_from": None, "carry_kind": None,
        "restart_checkpoint_path": None, **changes,
    }  # fmt: skip
    return Lease(token="t", run_id=run_id, attempt=2, spec={}, request={}, slot="cpu-0-0",
                 max_retries=3, dataset=WAVES, extra_datasets={}, **values)  # fmt: skip


@dataclass
class Parent:
    """As much of a run as the chain of restarts asks for."""

    parent_id: int | None = None
    restart_from: str | None = None
    carry: dict[str, str] | None = None


def restored(root, lease, parents=None):
    parents = parents or {}
    return [
        (str(Path(entry["path"]).relative_to(root / "runs")), entry["carry"], entry["own"])
        for entry in restore_list(root, lease, lambda run_id: parents[run_id])
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
    child = lease(2, parent_id=1, restart_from="latest", carry_kind="weights")
    assert restored(tmp_path, child, {1: Parent()}) == [
        ("1/attempt-1/checkpoints/step-10", "weights", False)
    ]


def test_a_restarted_run_prefers_what_it_has_saved_itself(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    write(run_dir(tmp_path, 2), 1, 5)
    child = lease(2, parent_id=1, restart_from="latest", carry_kind="weights")
    own, inherited = restored(tmp_path, child, {1: Parent()})
    assert own == ("2/attempt-1/checkpoints/step-5", "full", True)
    assert inherited[1:] == ("weights", False)


def test_a_parent_that_never_saved_hands_on_what_it_was_restarted_from(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    parents = {1: Parent(), 2: Parent(1, "latest", {"kind": "weights"})}
    child = lease(3, parent_id=2, restart_from="latest", carry_kind="full")
    assert restored(tmp_path, child, parents) == [
        ("1/attempt-1/checkpoints/step-10", "weights", False)
    ]


def test_a_named_checkpoint_is_the_only_one_of_the_parent(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    write(run_dir(tmp_path, 1), 1, 20)
    path = "runs/1/attempt-1/checkpoints/step-10"
    child = lease(
        2, parent_id=1, restart_from="best", carry_kind="full", restart_checkpoint_path=path
    )
    assert restored(tmp_path, child) == [("1/attempt-1/checkpoints/step-10", "full", False)]


def test_a_restart_from_scratch_takes_nothing(tmp_path):
    write(run_dir(tmp_path, 1), 1, 10)
    child = lease(2, parent_id=1, restart_from="scratch", carry_kind="scratch")
    assert restored(tmp_path, child) == []


def test_paths_stay_below_their_root(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    assert confined("a/b.h5", root) == root.resolve() / "a" / "b.h5"
    (root / "link").symlink_to(tmp_path)
    for path in ("../secret", "/etc/passwd", "link/secret"):
        with pytest.raises(ValueError, match="leads out of"):
            confined(path, root)
