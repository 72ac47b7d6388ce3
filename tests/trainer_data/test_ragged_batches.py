"""Runs of ragged arrays: batches filled up to the longest sample, the same by every loader."""

import os
import tempfile
import threading
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.trainer_data.factories import entry, kept, make_spec, open_parts, samples_in
from worker.trainer.data.batch import Batch
from worker.trainer.data.dataset import open_data
from worker.trainer.data.feed import rows as rows_module
from worker.trainer.data.feed.stream import Streamed
from worker.trainer.data.formats.ragged_files import write_ragged
from worker.trainer.data.layouts.padded import DeviceValues
from worker.trainer.data.source import Field
from worker.trainer.errors import DataError, DatasetChanged, SpecMismatch
from worker.trainer.tools.convert import convert

CPU = torch.device("cpu")
GIB = 2**30
KINDS: dict[str, tuple[tuple[int, ...], str]] = {
    "numbers": ((), "float32"),
    "words": ((), "uint16"),
    "bytes in rows": ((4,), "uint8"),
    "planes": ((2, 3), "float16"),
    "flags": ((), "bool"),
    "long numbers": ((), "uint64"),
}
Samples = list[NDArray[Any]]
RESIDENT: dict[str, Any] = {"kind": "chunked", "residency": "resident"}
STREAM: dict[str, Any] = {"kind": "chunked", "residency": "stream", "chunk_size": "1KiB"}
LOADER: dict[str, Any] = {"kind": "dataloader"}
PROCESS = {**LOADER, "num_workers": 2, "multiprocessing_context": "forkserver"}


def samples_of(lengths: Iterable[int], kind: str = "bytes in rows", seed: int = 3) -> Samples:
    random, (shape, dtype) = np.random.default_rng(seed), KINDS[kind]
    return [random.integers(0, 99, (length, *shape)).astype(dtype) for length in lengths]


def many(count: int = 150, longest: int = 9) -> list[int]:
    """Lengths of which some are 0."""
    return [0, longest, *np.random.default_rng(1).integers(0, longest + 1, count - 3).tolist(), 0]


def write(path: Path, samples: Samples, **storage: Any) -> Path:
    """With targets that say the row."""
    with h5py.File(path, "w") as file:
        group = write_ragged(file, "atoms", samples)
        if storage:
            values = group["values"][:]
            del group["values"]
            group.create_dataset("values", data=values, **storage)
        file["targets"] = np.arange(len(samples), dtype=np.float32)[:, None]
    return path


def filled_up(samples: Samples, longest: int | None = None) -> NDArray[Any]:
    longest = longest or max(1, *map(len, samples))
    out = np.zeros((len(samples), longest, *samples[0].shape[1:]), samples[0].dtype)
    for row, sample in zip(out, samples, strict=True):
        row[: len(sample)] = sample
    return out


opened = partial(open_parts, "atoms")


def rows_checked(
    batches: Iterable[Batch], samples: Samples, longest: int | None = None
) -> list[int]:
    """The rows of the batches, which have to hold what the file does."""
    expected, seen = filled_up(samples, longest), list[int]()
    lengths = np.array([len(sample) for sample in samples])
    for batch in batches:
        rows = batch.arrays["targets"][:, 0].int().tolist()
        atoms = batch.arrays["atoms"].numpy()
        assert (len(rows), atoms.dtype) == (batch.size, expected.dtype)
        assert batch.arrays["atoms"].is_contiguous()
        assert atoms.tobytes() == expected[rows].tobytes()
        assert batch.arrays["atoms/lengths"].tolist() == lengths[rows].tolist()
        seen += rows
    return seen


@pytest.mark.parametrize("shuffle", ["full", "block", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_loader_gives_the_same_batches(tmp_path, kind, shuffle):
    samples = samples_of(many(), kind)
    path, seen = write(tmp_path / "a.h5", samples), []
    in_blocks = {"shuffle_group": 32} if shuffle == "block" else {}
    loaders = [{**one, **in_blocks} for one in (RESIDENT, STREAM)]
    for loader in (*loaders, *([] if in_blocks else [LOADER, PROCESS])):
        data = opened(path, {**loader, "shuffle": shuffle})
        assert data.validation is not None
        assert data.test is not None
        parts = [data.train.iterate(0), data.train.iterate(1, 48), data.validation.iterate(0)]
        rows = [rows_checked(part, samples) for part in (*parts, data.test.iterate(0))]
        assert data.describe()["longest"] == {"atoms": 9}
        data.close()
        assert [len(part) for part in rows] == [105, 57, 30, 15]
        seen.append(rows)
    assert all(rows == seen[0] for rows in seen)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=3, max_size=60),
    kind=st.sampled_from(list(KINDS)),
    loader=st.sampled_from([RESIDENT, STREAM, LOADER]),
    shuffle=st.sampled_from(["full", "none"]),
    batch_size=st.integers(1, 20),
    at_once=st.integers(1, 50),
)
def test_any_lengths(lengths, kind, loader, shuffle, batch_size, at_once):
    samples = samples_of(lengths, kind)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "EXTENTS_AT_ONCE", at_once)
        patch.setattr("worker.trainer.data.feed.transfer.HOST_PIECE_BYTES", 8 * at_once)
        path = write(Path(folder) / "a.h5", samples)
        split = {"method": "chronological", "validation_fraction": 0.0}
        data = opened(path, {**loader, "shuffle": shuffle}, batch_size, split=split)
        batches = kept(data.train.iterate(0))
        rows = rows_checked(batches, samples)
        assert sorted(rows) == list(range(len(samples)))
        for position in accumulate(batch.size for batch in batches):
            after = rows_checked(data.train.iterate(0, position), samples)
            assert after == rows[position:]
        data.close()


@pytest.mark.parametrize("storage", [{"chunks": (7, 4)}, {"chunks": (7, 2), "compression": "gzip"},
                                     {"chunks": (9, 4), "scaleoffset": 0}])  # fmt: skip
@pytest.mark.parametrize("loader", [RESIDENT, STREAM, LOADER])
def test_values_may_lie_in_chunks_that_are_packed(tmp_path, storage, loader):
    samples = samples_of(many())
    data = opened(write(tmp_path / "a.h5", samples, **storage), loader)
    assert sorted(rows_checked(data.train.iterate(0), samples)) == list(range(105))
    data.close()


def test_a_chunk_takes_no_more_than_its_bytes_however_long_its_samples_are(tmp_path):
    """Sorted by length: a chunk of so many samples of the mean would be three times as large."""
    lengths = [2] * 700 + [100] * 300
    samples = samples_of(lengths)
    path = write(tmp_path / "a.h5", samples)
    split = {"method": "chronological", "validation_fraction": 0.0}
    data = opened(path, {**STREAM, "chunk_size": "16KiB", "shuffle": "none"}, split=split)
    assert isinstance(data.train, Streamed)
    sizes = []
    for batch in data.train.iterate(0):
        arrays = [array for slot in data.train._slots for array in slot.arrays]
        values = [array.values for array in arrays if isinstance(array, DeviceValues)]
        assert len(values) == 2
        assert all(one.nbytes < 16 * 1024 for one in values)
        sizes.append(batch.size)
    assert sum(sizes) == 1_000
    for epoch in (1, 2, 0):  # the reader goes on from epoch to epoch, and begins anew
        assert rows_checked(data.train.iterate(epoch), samples) == list(range(1_000))
    data.close()


def test_one_sample_longer_than_a_chunk_has_one_of_its_own(tmp_path):
    samples = samples_of([3, 2, 5_000, 0, 1, 4_999, 7] * 3)
    path = write(tmp_path / "a.h5", samples)
    split = {"method": "chronological", "validation_fraction": 0.0}
    data = opened(path, {**STREAM, "shuffle": "full"}, 4, split=split)
    assert sorted(rows_checked(data.train.iterate(0), samples)) == list(range(21))
    data.close()


def test_what_stays_on_the_device_is_counted_by_its_values(tmp_path, unstopped):
    """A hundred times the bytes of the values, were each sample as long as the longest."""
    samples = samples_of([1] * 999 + [1_000])
    path = write(tmp_path / "a.h5", samples)
    spec = make_spec({"inputs": ["atoms"]}, training={"batch_size": 4})
    data = open_data(spec, {"numbers": entry(path)}, CPU, unstopped, 64 * 1024)
    assert data.describe()["residency"] == "resident"
    assert data.describe()["sample_bytes"] == 8 + 2 * 8 + 4
    assert data.counters.bytes_read == 1_999 * 4 + 1_000 * (4 + 8)
    data.close()
    data = opened(path, {**LOADER, "shuffle": "none"})
    assert len(rows_checked(data.train.iterate(0), samples)) == 700
    assert data.counters.bytes_read == 700 * (4 + 4 + 8)
    data.close()


def test_it_goes_along_with_windows_that_are_kept_as_a_series(tmp_path):
    samples, steps = samples_of(many()), np.random.default_rng(0).normal(size=(161, 3))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        windows = np.lib.stride_tricks.sliding_window_view(steps, 12, 0)
        file["windows"] = np.moveaxis(windows, -1, 1)
    convert(tmp_path / "w.h5", tmp_path / "s.h5")
    path = write(tmp_path / "a.h5", samples)
    with h5py.File(tmp_path / "s.h5") as series, h5py.File(path, "r+") as file:
        series.copy("windows", file)
    for loader in (RESIDENT, STREAM, LOADER):
        data = opened(path, loader, inputs=["atoms", "windows"])
        batches = kept(data.train.iterate(0))
        assert sorted(rows_checked(batches, samples)) == list(range(105))
        for batch in batches:
            expected = windows[batch.arrays["targets"][:, 0].int().numpy()]
            assert (batch.arrays["windows"].numpy() == np.moveaxis(expected, -1, 1)).all()
        data.close()


def test_no_plain_array_is_needed(tmp_path):
    path = write(tmp_path / "a.h5", samples_of(many()))
    for loader in (RESIDENT, STREAM, LOADER):
        data = opened(path, loader, targets=["atoms"])
        assert sum(int(b.arrays["atoms/lengths"].sum()) for b in data.train.iterate(0)) == sum(
            many()[:105]
        )
        data.close()


def test_samples_that_are_all_empty_have_batches_of_zeros(tmp_path):
    samples = samples_of([0] * 50)
    path = write(tmp_path / "a.h5", samples)
    for loader in (RESIDENT, STREAM, LOADER):
        data = opened(path, loader)
        assert sorted(rows_checked(data.train.iterate(0), samples)) == list(range(35))
        data.close()


def test_datasets_of_one_run_are_as_long_as_the_longest_of_all(tmp_path, unstopped):
    samples, others = samples_of(many()), samples_of([3, 0, 30, 1] * 5, seed=8)
    paths = write(tmp_path / "a.h5", samples), write(tmp_path / "b.h5", others)
    split = {"method": "datasets", "validation": "others"}
    datasets = dict(zip(("numbers", "others"), map(entry, paths), strict=True))
    for loader in (RESIDENT, STREAM, LOADER):
        spec = make_spec({"inputs": ["atoms"], "loader": loader, "split": split})
        data = open_data(spec, datasets, CPU, unstopped, GIB)
        assert data.validation is not None
        assert data.fields["atoms"] == Field((30, 4), np.dtype("uint8"))
        assert len(rows_checked(data.train.iterate(0), samples, longest=30)) == 150
        assert rows_checked(data.validation.iterate(0), others) == list(range(20))
        data.close()
    write(paths[1], samples_of(many(), "numbers"))
    datasets["others"] = entry(paths[1])
    with pytest.raises(SpecMismatch, match="'others' has atoms float32"):
        open_data(spec, datasets, CPU, unstopped, GIB)


@pytest.mark.parametrize("kind", ["numbers", "bytes in rows", "planes"])
def test_statistics_are_those_of_the_values(tmp_path, unstopped, kind, monkeypatch):
    monkeypatch.setattr("worker.trainer.data.layouts.padded.PIECE_BYTES", 100)
    samples = samples_of(many(), kind)
    split = {"method": "random", "validation_fraction": 0.3}
    data = opened(write(tmp_path / "a.h5", samples), RESIDENT, split=split)
    rows = data._part.all_rows().tolist()
    values = np.concatenate([samples[row] for row in rows]).astype(np.float64)
    table = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values
    mean, std = data.statistics(["atoms", "targets"], unstopped)["atoms"]
    data.close()
    np.testing.assert_allclose(mean, table.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, table.std(0), rtol=1e-12)


def test_a_part_without_a_value_has_no_mean(tmp_path, unstopped):
    path = write(tmp_path / "a.h5", samples_of([0] * 40 + [5] * 10))
    data = opened(path, RESIDENT)
    with pytest.raises(DataError, match="'atoms' has samples without a value alone"):
        data.statistics(["atoms"], unstopped)
    data.close()


@pytest.mark.parametrize("loader", [STREAM, LOADER, PROCESS])
@pytest.mark.parametrize("how", ["touched", "cut short"])
def test_a_file_that_changes_under_way_ends_the_reading(tmp_path, loader, how):
    path = write(tmp_path / "a.h5", samples_of([5_000] * 60))
    data = opened(path, loader, 2)
    batches = data.train.iterate(0)
    next(batches)
    if how == "touched":
        os.utime(path, ns=(1, 1))
    else:
        os.truncate(path, 5_000)
    # A process that opens the file only then finds it damaged.
    with pytest.raises((DatasetChanged, DataError), match=r"a\.h5 (was changed|cannot be opened)"):
        list(batches)
    data.close()
    assert not [t for t in threading.enumerate() if t.name == "chunk-reader"]


@pytest.mark.parametrize(("packing", "placed"), [({}, True), ({"scaleoffset": 3}, False)])
def test_rows_are_read_to_their_places_where_none_of_the_arrays_needs_hdf5(
    tmp_path, packing, placed
):
    path = write(tmp_path / "a.h5", samples_of(many()))
    with h5py.File(path, "a") as file:
        targets = file.pop("targets")[:]
        file.create_dataset("targets", data=targets, chunks=(10, 1), **packing)
    with closing(samples_in(path, inputs=["atoms"])) as source:
        assert source.places_rows is placed
