"""Arrays read by offset: which are, which are left to HDF5, and that both give the same bytes."""

import errno
import os
import threading
from contextlib import closing

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.trainer.data.feed import parts
from worker.trainer.data.feed.read_threads import ReadThreads
from worker.trainer.data.feed.rows import extents, read_rows
from worker.trainer.data.formats.hdf5 import Hdf5Source
from worker.trainer.data.formats.hdf5_direct import DirectReader, place_of
from worker.trainer.data.source import Extent, Extents
from worker.trainer.errors import DataError, DatasetChanged

DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64",
)  # fmt: skip


def threads_of_readers():
    return [one for one in threading.enumerate() if one.name.startswith("direct-reader")]


def place_in(path, name="x"):
    with h5py.File(path) as file:
        return place_of(file[name])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_usable_type_is_read_directly(tmp_path, dtype):
    values = (np.arange(60).reshape(20, 3) % 2).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
    assert place_in(tmp_path / "a.h5") is not None
    with closing(Hdf5Source(tmp_path / "a.h5", ["x"])) as source:
        out = {"x": np.empty((20, 3), dtype)}
        source.read(Extents.of(Extent(0, 20, 0)), out)
    np.testing.assert_array_equal(out["x"], values)


@pytest.mark.parametrize("userblock", [0, 512])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_the_offset_is_that_of_the_file(tmp_path, userblock, libver):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=userblock, libver=libver) as file:
        file["x"] = np.arange(30.0).reshape(10, 3)
    place = place_in(tmp_path / "a.h5")
    assert place is not None
    raw = (tmp_path / "a.h5").read_bytes()[place.offset : place.offset + 240]
    np.testing.assert_array_equal(np.frombuffer(raw), np.arange(30.0))


def test_what_is_not_one_plain_piece_is_left_to_hdf5(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("chunked", data=np.ones((10, 3)), chunks=(2, 3))
        file.create_dataset("squeezed", data=np.ones((10, 3)), compression="gzip")
        file.create_dataset("never_written", (10, 3), "f4")
        file["plain"] = np.ones((10, 3))
        small = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        small.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((10, 3))
        h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, small)
        narrow = h5py.h5t.STD_I32LE.copy()
        narrow.set_precision(20)
        h5py.h5d.create(file.id, b"narrow", narrow, space)
    for name in ("chunked", "squeezed", "never_written", "compact", "narrow"):
        assert place_in(path, name) is None, name
    with h5py.File(path, driver="stdio") as file:
        assert place_of(file["plain"]) is None  # its descriptor is not ours to read from
    assert place_in(path, "plain") is not None


def test_an_offset_that_lies_is_found(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(30.0).reshape(10, 3)
    assert place_in(tmp_path / "a.h5") is not None
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, offset: read(file, size, offset + 8))
    assert place_in(tmp_path / "a.h5") is None
    with closing(Hdf5Source(tmp_path / "a.h5", ["x"])) as source:
        out = {"x": np.empty((10, 3))}
        source.read(Extents.of(Extent(0, 10, 0)), out)
    np.testing.assert_array_equal(out["x"], np.arange(30.0).reshape(10, 3))
    assert not threads_of_readers()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.sets(st.integers(0, 49)),
    random=st.randoms(),
    shuffled=st.booleans(),
    threads=st.integers(1, 4),
    least=st.integers(1, 400),
    most=st.integers(1, 6),
    skipped=st.sampled_from([0, 30, 1000]),
    at_once=st.sampled_from([1, 5, 30, 1000]),
)
def test_any_rows_to_any_places_in_any_number_of_shares(
    tmp_path_factory,
    rows,
    random,
    shuffled,
    threads,
    least,
    most,
    skipped,
    at_once,
):
    """Shares are cut anywhere, also inside a row, and the system reads less than it is asked."""
    path = tmp_path_factory.getbasetemp() / "shares.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            file["x"] = np.random.default_rng(1).normal(size=(50, 7)).astype("f4")
            file["y"] = np.arange(50, dtype="i8")
    rows = np.array(sorted(rows), dtype=np.int64)
    places = list(range(len(rows)))
    if shuffled:
        random.shuffle(places)
    preadv = os.preadv

    def short(file, buffers, offset):
        return preadv(file, [buffers[0][:at_once]], offset)

    with h5py.File(path) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "SHARES", 10**9)
        patch.setattr(parts, "LEAST_SHARE_BYTES", least)
        patch.setattr(parts, "MOST_PARTS", most)
        patch.setattr(parts, "MOST_SKIPPED_BYTES", skipped)
        lie = {name: place for name in ("x", "y") if (place := place_of(file[name])) is not None}
        out = {"x": np.empty((len(rows) + 2, 7), "f4"), "y": np.empty(len(rows) + 2, "i8")}
        with closing(ReadThreads(threads)) as pool:
            reader = DirectReader(file.id.get_vfd_handle(), lie, pool)
            patch.setattr(os, "preadv", short)
            for some in extents(rows, np.array(places, np.int64)):
                reader.read(some, out)
        for name, array in out.items():
            np.testing.assert_array_equal(array[places], file[name][...][rows])


def test_more_rows_to_scattered_places_than_one_call_of_the_system_takes(tmp_path):
    rows = np.arange(3 * os.sysconf("SC_IOV_MAX"))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = rows
    out = {"x": np.empty_like(rows)}
    with closing(Hdf5Source(tmp_path / "a.h5", ["x"])) as source:
        source.read(next(extents(rows, rows[::-1])), out)
    np.testing.assert_array_equal(out["x"], rows[::-1])


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(("share_bytes", "shared"), [(1_000, True), (200_000, False)])
def test_threads_share_what_is_worth_their_waking_up(
    tmp_path, monkeypatch, step, share_bytes, shared
):
    monkeypatch.setattr(parts, "LEAST_SHARE_BYTES", share_bytes)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(200_000.0)
    ran, run = [], ReadThreads.run

    def counted(*given):
        ran.append(given)
        run(*given)

    monkeypatch.setattr(ReadThreads, "run", counted)
    rows = np.arange(0, 200_000, step)[:20_000]
    out = {"x": np.empty(len(rows))}
    with closing(Hdf5Source(tmp_path / "a.h5", ["x"], threads=2)) as source:
        read_rows(source, rows, out)
    np.testing.assert_array_equal(out["x"], rows)
    assert bool(ran) is shared


def test_reading_threads_run_before_memory_is_short():
    """Begun later, under a limit, one waited for ever in `Thread.start`."""
    with closing(ReadThreads(4)):
        names = [thread.name for thread in threading.enumerate()]
        assert sum(name.startswith("direct-reader") for name in names) == 3


def test_memory_that_would_be_filled_in_a_copy_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones((10, 3))
    source, refused = Hdf5Source(tmp_path / "a.h5", ["x"]), pytest.raises(BufferError)
    with closing(source), refused as error:
        source.read(Extents.of(Extent(0, 10, 0)), {"x": np.empty((3, 10)).T})
    assert "not in one piece" in str(error.value)


def test_a_file_that_ends_early_is_an_error_and_leaves_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "LEAST_SHARE_BYTES", 64)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((1000, 10))
    with closing(Hdf5Source(path, ["x"])) as source:
        os.truncate(path, path.stat().st_size - 4000)
        with pytest.raises(DatasetChanged):
            source.read(Extents.of(Extent(0, 1000, 0)), {"x": np.empty((1000, 10))})
    assert not threads_of_readers()


def test_a_disk_that_fails_is_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((1000, 10))

    def fail(*_):
        raise OSError(5, "Input/output error")

    with closing(Hdf5Source(path, ["x"])) as source:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(DataError, match=r"Rows 5 to 10 of .* cannot be read .*Input/output"):
            source.read(Extents.of(Extent(5, 10, 0)), {"x": np.empty((5, 10))})


def test_a_read_that_gets_no_memory_does_not_blame_the_file(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((20, 3))

    def refuse(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with closing(Hdf5Source(tmp_path / "a.h5", ["x"])) as source:
        monkeypatch.setattr(os, "preadv", refuse)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            source.read(Extents.of(Extent(0, 20, 0)), {"x": np.empty((20, 3))})
