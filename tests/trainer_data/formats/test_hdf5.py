"""HDF5 files as sources: what is read, what is refused, what is noticed."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from app.planning.residency import CHUNK_CACHE_BYTES
from tests.trainer_data.factories import NAMES, write_arrays
from worker.trainer.data.feed.rows import extents, in_file_order, inverse, read_rows
from worker.trainer.data.formats.hdf5 import Hdf5Source, Stamp
from worker.trainer.data.formats.hdf5_file import open_file
from worker.trainer.data.source import Extent, Extents
from worker.trainer.errors import DataError, DatasetChanged, SpecMismatch


@pytest.fixture
def open_source():
    opened = []

    def open_one(path, names=NAMES, stamp=None):
        opened.append(Hdf5Source(path, names, stamp))
        return opened[-1]

    yield open_one
    for source in opened:
        source.close()


def buffers(source, samples):
    return {n: np.empty((samples, *f.shape), f.dtype) for n, f in source.fields.items()}


def write(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


@pytest.mark.parametrize(
    "storage", [{}, {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}]
)
@pytest.mark.parametrize("at_once", [3, 4096])
def test_scattered_rows_are_read_as_h5py_reads_them(
    tmp_path, open_source, storage, at_once, monkeypatch
):
    monkeypatch.setattr("worker.trainer.data.feed.rows.EXTENTS_AT_ONCE", at_once)
    path = write_arrays(tmp_path / "a.h5", **storage)
    source = open_source(path)
    rows = np.array([0, 1, 2, 40, 41, 77, 99])
    out = buffers(source, len(rows))
    read_rows(source, rows, out)
    with h5py.File(path) as file:
        for name in NAMES:
            np.testing.assert_array_equal(out[name], file[name][rows])


def test_extents_are_the_contiguous_runs():
    rows = np.array([0, 1, 5, 7, 8, 9])
    (found,) = extents(rows)
    assert list(found) == [Extent(0, 2, 0), Extent(5, 6, 2), Extent(7, 10, 3)]
    places = np.array([4, 5, 6, 0, 1, 3])
    apart = [Extent(0, 2, 4), Extent(5, 6, 6), Extent(7, 9, 0), Extent(9, 10, 3)]
    (found,) = extents(rows, places)
    assert list(found) == apart
    assert list(extents(np.array([], dtype=np.int64))) == []


def test_in_file_order_can_be_undone():
    rows = np.array([9, 2, 4, 3])
    ascending, positions = in_file_order(rows)
    assert ascending.tolist() == rows[positions].tolist() == [2, 3, 4, 9]
    assert ascending[inverse(positions)].tolist() == rows.tolist()
    assert in_file_order(ascending)[0] is ascending


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "float64"])
def test_narrow_types_stay_narrow(tmp_path, open_source, dtype):
    path = write(tmp_path / "a.h5", x=np.arange(6).astype(dtype))
    source = open_source(path, ["x"])
    out = buffers(source, 6)
    source.read(Extents.of(Extent(0, 6, 0)), out)
    assert out["x"].dtype == dtype
    np.testing.assert_array_equal(out["x"], np.arange(6).astype(dtype))


def test_fields_in_groups_have_a_path(tmp_path, open_source):
    path = write(tmp_path / "a.h5", **{"daily/open": np.ones((4, 2))})
    assert open_source(path, ["daily/open"]).fields["daily/open"].shape == (2,)


@pytest.mark.parametrize(
    "array", [np.array([b"a", b"b"]), np.ones(3, ">f4"), np.ones(3, "complex64"), np.float32(1)]
)
def test_what_is_no_array_of_numbers_is_refused(tmp_path, array):
    path = write(tmp_path / "a.h5", x=array)
    with pytest.raises(DataError, match="plain array"):
        Hdf5Source(path, ["x"])


def test_storage_in_other_files_is_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (4,), "float32", external=[(str(secret), 0, 16)])
    with pytest.raises(DataError, match="external storage"):
        Hdf5Source(path, ["x"])


def test_virtual_arrays_are_refused(tmp_path):
    other = write(tmp_path / "other.h5", x=np.ones(4))
    path = tmp_path / "a.h5"
    layout = h5py.VirtualLayout((4,), "float64")
    layout[:] = h5py.VirtualSource(str(other), "x", (4,))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("x", layout)
    with pytest.raises(DataError, match="virtual"):
        Hdf5Source(path, ["x"])


@pytest.mark.parametrize("link", [h5py.ExternalLink("other.h5", "x"), h5py.SoftLink("/y")])
def test_links_are_not_followed(tmp_path, link):
    write(tmp_path / "other.h5", x=np.ones(4))
    path = write(tmp_path / "a.h5", y=np.ones(4), x=link)
    with pytest.raises(SpecMismatch, match="no array 'x'"):
        Hdf5Source(path, ["x"])


def test_a_missing_name_is_told_with_those_there_are(numbers):
    with pytest.raises(SpecMismatch, match=r"no array 'prices' .*features, targets"):
        Hdf5Source(numbers, ["prices"])


def test_arrays_of_different_length_are_refused(tmp_path):
    path = write(tmp_path / "a.h5", x=np.ones(4), y=np.ones(5))
    with pytest.raises(DataError, match="differ in length"):
        Hdf5Source(path, ["x", "y"])


def test_files_that_cannot_be_opened_give_a_sentence(tmp_path, numbers):
    with pytest.raises(DataError, match="There is no file"):
        Hdf5Source(tmp_path / "none.h5", NAMES)
    os.truncate(numbers, numbers.stat().st_size // 2)
    with pytest.raises(DataError, match="damaged, cut short"):
        Hdf5Source(numbers, NAMES)


def test_a_file_cut_short_while_it_is_read_is_noticed(numbers, open_source):
    """HDF5 itself would give zeros for the missing rows."""
    source = open_source(numbers)
    os.truncate(numbers, numbers.stat().st_size // 2)
    with pytest.raises(DatasetChanged, match="was changed during the run"):
        source.read(Extents.of(Extent(90, 100, 0)), buffers(source, 10))


def test_a_file_written_to_while_it_is_read_is_noticed(numbers, open_source):
    source = open_source(numbers)
    with numbers.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"changed!")
    os.utime(numbers, ns=(0, numbers.stat().st_mtime_ns + 1))
    with pytest.raises(DatasetChanged):
        source.read(Extents.of(Extent(0, 10, 0)), buffers(source, 10))


def test_a_file_replaced_since_it_was_checked_is_noticed(numbers):
    stat = numbers.stat()
    write_arrays(numbers, samples=101)
    with pytest.raises(DatasetChanged):
        Hdf5Source(numbers, NAMES, Stamp(stat.st_size, stat.st_mtime_ns))


def test_a_file_that_another_process_writes_is_not_read(numbers):
    writer = "import h5py, sys; f = h5py.File(sys.argv[1], 'r+'); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", writer, str(numbers)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        with pytest.raises(DataError, match="open for writing in another process"):
            Hdf5Source(numbers, NAMES)
        process.communicate("\n")


def test_a_storage_chunk_of_16_mib_stays_unpacked_while_it_is_read_in_pieces(tmp_path):
    """HDF5 by itself keeps 8 MiB, and would unpack it anew for every run of neighbours."""
    path = tmp_path / "large.h5"
    rows, row_bytes = 512, 32 * 1024
    with h5py.File(path, "w") as file:
        chunks = (rows, row_bytes)
        file.create_dataset("x", (rows, row_bytes), "uint8", chunks=chunks, compression="gzip")
        file["x"][:] = 7
    with open_file(path) as file:
        assert file["x"].chunks[0] * row_bytes <= CHUNK_CACHE_BYTES
        assert file.id.get_access_plist().get_cache()[2] == CHUNK_CACHE_BYTES
        assert file["x"].id.get_access_plist().get_chunk_cache()[1] == CHUNK_CACHE_BYTES
