"""Checkpoints on disk: what counts as one, what is adopted, what is removed."""

import hashlib
from dataclasses import replace

import pytest

from app.spec.training import Checkpointing
from app.store.records import CheckpointRecord
from stoker.manifest import manifest_bytes
from worker.agent.checkpoint_folders import (
    Found,
    Unreadable,
    beyond_retention,
    on_disk,
    reconcile,
    remove,
    remove_leftovers,
)

WEIGHTS = b"12345"
ENTRY = {"bytes": len(WEIGHTS), "sha256": hashlib.sha256(WEIGHTS).hexdigest()}


def write(run_dir, attempt, step, *, manifest=None, facts=None):
    folder = run_dir / f"attempt-{attempt}" / "checkpoints" / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    place = {"run_id": int(run_dir.name), "attempt": attempt, "step": step}
    files = {"model.safetensors": ENTRY}
    body = {**place, "epoch": 0, "metrics": {}, "files": files, **(facts or {})}
    whole = manifest_bytes({name: fact for name, fact in body.items() if fact is not None})
    (folder / "manifest.json").write_bytes(whole if manifest is None else manifest)
    return folder


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "runs" / "1"
    folder.mkdir(parents=True)
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


def test_the_checkpoint_with_most_progress_comes_first(run_dir):
    for attempt, step in ((1, 10), (1, 20), (2, 15), (2, 20)):
        write(run_dir, attempt, step)
    good = on_disk(run_dir).good
    assert [(c.step, c.attempt) for c in good] == [(20, 2), (20, 1), (15, 2), (10, 1)]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ({"manifest": b"{torn"}, "no manifest"),
        ({"manifest": b"[]"}, "no manifest"),
        ({"manifest": b"\xff"}, "no manifest"),
        ({"manifest": b"[" * 100_000}, "no manifest"),
        ({"manifest": b'{"run_id": 1, "attempt": 1, "step": 10}'}, "no manifest"),
        ({"manifest": b'{"checksum": "", "run_id": 1}'}, "not as it was written"),
        *(
            ({"facts": {"files": files}}, "which files there are")
            for files in (
                None,
                ["model.safetensors"],
                {"model.safetensors": "12345"},
                {"model.safetensors": {"sha256": ENTRY["sha256"]}},
                {"model.safetensors": {"bytes": 5}},
                {"model.safetensors": {**ENTRY, "bytes": "5"}},
                {"model.safetensors": {**ENTRY, "bytes": -5}},
                {"model.safetensors": {**ENTRY, "sha256": 5}},
            )
        ),
        ({"facts": {"files": {"../theirs": ENTRY}}}, "outside of its folder"),
        ({"facts": {"files": {"a\0b": ENTRY}}}, "outside of its folder"),
        ({"facts": {"run_id": 7}}, "run 7"),
        ({"facts": {"run_id": None}}, "run None"),
        ({"facts": {"attempt": 2}}, "attempt 2"),
        ({"facts": {"step": 9}}, "step 9"),
    ],
)
def test_a_folder_whose_manifest_is_not_its_own_is_damaged(run_dir, written, why):
    folder = write(run_dir, 1, 10, **written)
    found = on_disk(run_dir)
    assert found.good == []
    [(path, said)] = found.damaged
    assert path == folder
    assert why in said


@pytest.mark.parametrize(
    "facts",
    [
        {"epoch": "x"},
        {"epoch": 1.5},
        {"epoch": True},
        {"epoch": -1},
        {"epoch": 2**31},
        {"epoch": 10**30},
        {"metrics": "x"},
        {"metrics": ["x"]},
        {"metrics": {"val_loss": "x"}},
        {"metrics": {"val_loss": True}},
        {"metrics": {"val_loss": 10**400}},
        {"metrics": {"val\0loss": 1.0}},
        {"run_id": "1"},
        {"attempt": [1]},
        {"step": "20"},
        {"files": {"\ud800": ENTRY}},
        {"files": {"x" * 300: ENTRY}},
        {"files": {"model.safetensors": {**ENTRY, "bytes": 10**30}}},
    ],
)
def test_right_checksums_of_what_no_checkpoint_says_are_damaged(run_dir, facts):
    """Each new attempt failed at such a manifest, though earlier checkpoints were whole."""
    write(run_dir, 1, 10)
    folder = write(run_dir, 1, 20, facts=facts)
    found = on_disk(run_dir)
    assert [path for path, _ in found.damaged] == [folder]
    assert steps(one.as_row(run_dir) for one in found.good) == [10]


def test_a_step_that_no_store_can_hold_is_damaged(run_dir):
    folder = write(run_dir, 1, 10**19)
    [(path, _)] = on_disk(run_dir).damaged
    assert path == folder


def test_a_manifest_that_says_nothing_of_epoch_and_metrics_is_whole(run_dir):
    write(run_dir, 1, 10, facts={"epoch": None, "metrics": None})
    [row] = [one.as_row(run_dir) for one in on_disk(run_dir).good]
    assert (row.epoch, row.metrics) == (0, {})


def test_what_is_gone_is_told_apart_from_what_cannot_be_read(run_dir):
    (write(run_dir, 1, 10) / "manifest.json").unlink()
    (run_dir / "attempt-1" / "checkpoints" / "step-20").symlink_to("nowhere")
    said = [why for _, why in on_disk(run_dir).damaged]
    assert said == ["its manifest is gone", "it is a link that leads nowhere"]
    loop = run_dir / "attempt-2"
    loop.symlink_to(loop)
    with pytest.raises(Unreadable, match="nothing begins anew"):
        on_disk(run_dir)


@pytest.mark.parametrize("name", [".step-10.tmp", "step-10.torn"])
def test_a_temporary_or_quarantined_folder_is_no_checkpoint(run_dir, name):
    folder = write(run_dir, 1, 10)
    folder.rename(folder.with_name(name))
    assert on_disk(run_dir) == Found([], [])


def test_disk_is_the_truth_for_rows(tmp_path, run_dir):
    write(run_dir, 1, 10, facts={"epoch": 2, "metrics": {"val_loss": 0.5}})
    write(run_dir, 1, 20)
    torn = write(run_dir, 1, 30, manifest=b"{")
    whole_again = replace(row(20), state="damaged", damage="its folder is gone")
    removed = replace(row(7), state="removing")
    known = [row(5), whole_again, row(30), removed]
    found = reconcile(known, on_disk(run_dir), tmp_path)
    assert [(c.step, c.epoch, c.metrics) for c in found.adopted] == [
        (10, 2, {"val_loss": 0.5}),
        (20, 0, {}),
    ]
    assert found.adopted[0].path == "runs/1/attempt-1/checkpoints/step-10"
    assert found.adopted[0].bytes > 5
    assert [(one.path, one.why.split(":")[0]) for one in found.damaged] == [
        (str(torn.relative_to(tmp_path)), "manifest.json is no manifest"),
        (row(5).path, "its folder is gone"),
    ]
    assert found.gone == [removed.path]
    assert reconcile([row(10), row(20)], on_disk(run_dir), tmp_path).adopted == []


@pytest.mark.parametrize(
    ("there", "adopted"),
    [(WEIGHTS, [10]), (b"1234", []), (b"12354", []), (None, [])],
    ids=["whole", "cut", "changed", "gone"],
)
def test_what_was_found_damaged_is_used_again_only_when_whole(tmp_path, run_dir, there, adopted):
    weights = write(run_dir, 1, 10) / "model.safetensors"
    if there is None:
        weights.unlink()
    else:
        weights.write_bytes(there)
    damaged = replace(row(10), state="damaged", damage="model.safetensors is not as it was written")
    found = reconcile([damaged], on_disk(run_dir), tmp_path)
    assert [one.step for one in found.adopted] == adopted
    assert found.damaged == []


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


def test_removing_takes_the_whole_folder(run_dir):
    folder = write(run_dir, 1, 10)
    remove(folder)
    assert not folder.exists()


def test_leftovers_of_interrupted_saves_go_and_damaged_checkpoints_stay(run_dir):
    good = write(run_dir, 1, 10)
    for name in (".step-15.tmp", "step-3.torn", "step-5.torn"):
        good.with_name(name).mkdir()
    remove_leftovers(run_dir)
    kept = sorted(path.name for path in good.parent.iterdir())
    assert kept == ["step-10", "step-3.torn", "step-5.torn"]
