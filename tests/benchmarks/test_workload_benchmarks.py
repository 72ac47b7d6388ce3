"""What the benchmarks of workloads compare is the same work: every arm brings every sample."""

from contextlib import ExitStack
from pathlib import Path

import h5py
import pytest
import torch

from benchmarks.workloads import timeframes


@pytest.mark.parametrize("residency", ["stream", "resident"])
def test_every_arm_of_timeframes_brings_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, residency: str
) -> None:
    monkeypatch.setattr(timeframes, "SAMPLES", 24)
    monkeypatch.setattr(timeframes, "FEATURES", 2)
    monkeypatch.setattr(timeframes, "BATCH", 8)
    monkeypatch.setattr(timeframes, "CHUNK_SAMPLES", 16)
    series, tables = timeframes.make(tmp_path)
    with h5py.File(tables) as file:
        kept = {name: torch.from_numpy(file[name][:]) for name in (*timeframes.NAMES, "targets")}
    assert [len(kept[name][0]) for name in timeframes.NAMES] == [480, 288, 192, 96, 48]
    with ExitStack() as held:
        arms = {
            "none": timeframes._stoker(tables, "none", held, residency),
            "series": timeframes._stoker(series, "none", held, residency),
            "full": timeframes._stoker(tables, "full", held, residency),
            "items": timeframes._items(tables, 0),
            "chunks": timeframes._chunks(tables),
        }
        for name, batches in arms.items():
            each = [{key: a.clone() for key, a in batch.items()} for batch in batches()]
            found = {key: torch.cat([batch[key] for batch in each]) for key in kept}
            for key, whole in kept.items():
                order = found["targets"][:, 0].argsort(), kept["targets"][:, 0].argsort()
                assert torch.equal(found[key][order[0]], whole[order[1]]), name
