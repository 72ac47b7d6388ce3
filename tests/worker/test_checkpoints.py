"""Checkpoints on disk: what counts as one, what is adopted, what is removed."""

import json
import os

import pytest

from app.spec.training import Checkpointing
from app.store.records import CheckpointRecord
from worker.checkpoints import beyond_retention, on_disk, reconcile, remove, remove_leftovers


def write(run_dir, attempt, step, *, manifest='{"step": 1, "epoch": 0, "metrics": {}}'):
    folder = run_dir / f"attempt-{attempt}" / "checkpoints" / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"12345")
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    return folder


def row(step, *, val_loss=None, pinned=False, path=None):
    return CheckpointRecord(
        id=step,
        run_id=1,
        attempt=1,
        step=step,
        epoch=0,
        path=path or f"runs/1/attempt-1/checkpoints/step-{step}",
        bytes=5,
        metrics={} if val_loss is None else {"val_loss": val_loss},
        is_best=False,
        is_latest=False,
        pinned=pinned,
        created_at=0.0,
        state="saved",
    )


def steps(rows):
    return [row.step for row in rows]


def test_the_checkpoint_with_most_progress_comes_first(tmp_path):
    for attempt, step in ((1, 10), (1, 20), (2, 15), (2, 20)):
        write(tmp_path, attempt, step)
    assert [(c.step, c.attempt) for c in on_disk(tmp_path)] == [(20, 2), (20, 1), (15, 2), (10, 1)]


@pytest.mark.parametrize("manifest", [None, "{torn", "[]"])
def test_a_folder_without_a_good_manifest_is_no_checkpoint(tmp_path, manifest):
    write(tmp_path, 1, 10, manifest=manifest)
    assert on_disk(tmp_path) == []


@pytest.mark.parametrize("name", [".step-10.tmp", "step-10.torn"])
def test_a_temporary_or_quarantined_folder_is_no_checkpoint(tmp_path, name):
    folder = write(tmp_path, 1, 10)
    folder.rename(folder.with_name(name))
    assert on_disk(tmp_path) == []


def test_disk_is_the_truth_for_rows(tmp_path):
    run_dir = tmp_path / "runs" / "1"
    write(run_dir, 1, 10, manifest=json.dumps({"epoch": 2, "metrics": {"val_loss": 0.5}}))
    gone = row(5)
    adopted, missing = reconcile([gone], on_disk(run_dir), tmp_path)
    assert [(c.step, c.epoch, c.metrics) for c in adopted] == [(10, 2, {"val_loss": 0.5})]
    assert adopted[0].path == "runs/1/attempt-1/checkpoints/step-10"
    assert adopted[0].bytes > 5
    assert missing == [gone.path]
    assert reconcile([row(10)], on_disk(run_dir), tmp_path) == ([], [])


def test_retention_keeps_the_newest_the_best_and_the_pinned():
    policy = Checkpointing(keep_last=2, keep_best=1)
    rows = [row(10, val_loss=3.0, pinned=True), row(20, val_loss=1.0), row(30, val_loss=2.0),
            row(40), row(50, val_loss=5.0)]  # fmt: skip
    assert steps(beyond_retention(rows, policy)) == [30]


def test_the_best_is_the_highest_where_more_is_better():
    policy = Checkpointing(keep_last=1, keep_best=1, mode="max")
    rows = [row(10, val_loss=3.0), row(20, val_loss=1.0), row(30)]
    assert steps(beyond_retention(rows, policy)) == [20]


def test_of_equally_good_ones_the_first_is_kept():
    policy = Checkpointing(keep_last=1, keep_best=1)
    assert steps(
        beyond_retention([row(10, val_loss=1.0), row(20, val_loss=1.0), row(30)], policy)
    ) == [20]


def test_removing_takes_the_whole_folder(tmp_path):
    folder = write(tmp_path, 1, 10)
    remove(folder)
    assert not folder.exists()


def test_leftovers_of_interrupted_saves_go_and_one_torn_checkpoint_stays(tmp_path):
    good = write(tmp_path, 1, 10)
    half = good.with_name(".step-15.tmp")
    torn = [good.with_name(f"step-{k}.torn") for k in (3, 5)]
    for age, folder in enumerate((half, torn[1], torn[0])):
        folder.mkdir()
        os.utime(folder, (1000 - age, 1000 - age))
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in good.parent.iterdir()) == ["step-10", "step-5.torn"]
