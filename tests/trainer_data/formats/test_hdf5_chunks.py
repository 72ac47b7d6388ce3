"""Chunked and compressed arrays: whatever is read past HDF5 is what HDF5 reads."""

import os
import struct
import zlib
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.trainer.data.feed.read_threads import ReadThreads
from worker.trainer.data.feed.rows import extents
from worker.trainer.data.formats import unpacking
from worker.trainer.data.formats.hdf5 import Hdf5Source
from worker.trainer.data.formats.hdf5_chunks import PackedReader, chunks_of
from worker.trainer.data.source import Extent, Extents
from worker.trainer.errors import DataError, DatasetChanged

SHAPE = (53, 10, 3)
PACKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "gzip": {"compression": "gzip"},
    "shuffled": {"shuffle": True},
    "both": {"compression": "gzip", "compression_opts": 1, "shuffle": True},
    "lzf": {"compression": "lzf", "shuffle": True},
    "lz4": dict(hdf5plugin.LZ4()),
    "zstd": {**hdf5plugin.Zstd(), "shuffle": True},
    "blosc": dict(hdf5plugin.Blosc(cname="zstd")),
}
BY_HDF5 = {
    "blosc2": dict(hdf5plugin.Blosc2(cname="zstd")),
    "bitshuffle": dict(hdf5plugin.Bitshuffle(cname="lz4")),
}
CUTS = [(1, 10, 3), (8, 10, 3), (8, 4, 2), (53, 10, 3), (60, 16, 4)]


def noise(dtype="f4"):
    return (np.random.default_rng(3).normal(size=SHAPE) * 50).astype(dtype)


def write(path, values, chunks, **packed):
    """With room to grow, so that a chunk may reach over the end."""
    with h5py.File(path, "w") as file:
        most = (None, *(None for _ in values.shape[1:]))
        file.create_dataset("x", data=values, chunks=chunks, maxshape=most, **packed)
    return path


def is_read_directly(path, name="x"):
    with h5py.File(path) as file:
        return chunks_of(file[name]) is not None


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED.keys())
@pytest.mark.parametrize("chunks", CUTS)
def test_every_cut_and_packing_is_read_as_hdf5_reads_it(tmp_path, chunks, packed):
    path = write(tmp_path / "a.h5", noise(), chunks, **packed)
    with closing(Hdf5Source(path, ["x"])) as source:
        assert source.placement.names == ("x",)
        out = {"x": np.empty((30, *SHAPE[1:]), "f4")}
        source.read(Extents.of(Extent(40, 53, 0), Extent(0, 9, 13), Extent(30, 38, 22)), out)
    np.testing.assert_array_equal(out["x"], noise()[[*range(40, 53), *range(9), *range(30, 38)]])


@pytest.mark.parametrize("dtype", ["f2", "f8", "i8", "u2", "u1", "?"])
def test_every_usable_type_is_unpacked(tmp_path, dtype):
    path = write(tmp_path / "a.h5", noise(dtype), (8, 10, 3), **PACKED["both"])
    with closing(Hdf5Source(path, ["x"])) as source:
        assert source.placement.names == ("x",)
        out = {"x": np.empty(SHAPE, dtype)}
        source.read(Extents.of(Extent(0, 53, 0)), out)
    np.testing.assert_array_equal(out["x"], noise(dtype))


@settings(max_examples=40, deadline=None)
@given(rows=st.sets(st.integers(0, 99)), threads=st.integers(1, 4))
def test_any_rows_by_any_number_of_threads(tmp_path_factory, rows, threads):
    path = tmp_path_factory.getbasetemp() / "rows.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            values = np.random.default_rng(1).normal(size=(100, 7)).astype("f4")
            file.create_dataset("x", data=values, chunks=(9, 4), compression="gzip")
            file.create_dataset("y", data=np.arange(100), chunks=(16,), shuffle=True)
    wanted = np.array(sorted(rows), dtype=np.int64)
    with h5py.File(path) as file, closing(ReadThreads(threads)) as pool:
        chunks = {n: found for n in ("x", "y") if (found := chunks_of(file[n])) is not None}
        out = {"x": np.empty((len(rows), 7), "f4"), "y": np.empty(len(rows), "i8")}
        for some in extents(wanted):
            PackedReader(file.id.get_vfd_handle(), chunks, pool).read(some, out)
        for name, array in out.items():
            np.testing.assert_array_equal(array, file[name][...][wanted])


def test_what_was_never_written_is_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = file.create_dataset("x", (20, 3), "f4", chunks=(4, 3), fillvalue=7.0)
        array[9] = 1.0
    with closing(Hdf5Source(tmp_path / "a.h5", ["x"])) as source:
        assert source.placement.names == ("x",)
        out = {"x": np.empty((20, 3), "f4")}
        source.read(Extents.of(Extent(0, 20, 0)), out)
    expected = np.full((20, 3), 7.0)
    expected[9] = 1.0
    np.testing.assert_array_equal(out["x"], expected)


def test_a_chunk_that_a_filter_left_out_is_read_as_it_is(tmp_path):
    """HDF5 leaves out what does not pack; here a chunk is written raw beside one of gzip."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = file.create_dataset("x", (8, 3), "f4", chunks=(4, 3), compression="gzip")
        first, second = (np.full((4, 3), value, "f4") for value in (1, 2))
        array.id.write_direct_chunk((0, 0), first.tobytes(), filter_mask=1)
        array.id.write_direct_chunk((4, 0), zlib.compress(second.tobytes()))
    with closing(Hdf5Source(tmp_path / "a.h5", ["x"])) as source:
        assert source.placement.names == ("x",)
        out = {"x": np.empty((8, 3), "f4")}
        source.read(Extents.of(Extent(0, 8, 0)), out)
    np.testing.assert_array_equal(out["x"][:, 0], [1, 1, 1, 1, 2, 2, 2, 2])


def test_other_filters_and_types_are_left_to_hdf5(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("summed", data=noise(), chunks=True, fletcher32=True)
        file.create_dataset("scaled", data=noise("i4"), chunks=True, scaleoffset=0)
        file.create_dataset("in_one_piece", data=noise())
    for name in ("summed", "scaled", "in_one_piece"):
        assert not is_read_directly(path, name), name


@pytest.mark.parametrize("packed", BY_HDF5.values(), ids=BY_HDF5.keys())
def test_what_only_a_plugin_of_hdf5_unpacks_is_read_by_it(tmp_path, packed):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), **packed)
    with closing(Hdf5Source(path, ["x"])) as source:
        assert source.placement.names == ()
        out = {"x": np.empty(SHAPE, "f4")}
        source.read(Extents.of(Extent(0, 53, 0)), out)
    np.testing.assert_array_equal(out["x"], noise())


def test_without_the_codecs_hdf5_reads_what_they_would_have(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), **PACKED["zstd"])
    assert is_read_directly(path)
    monkeypatch.setattr(unpacking, "_codecs", lambda: None)
    assert not is_read_directly(path)
    with closing(Hdf5Source(path, ["x"])) as source:
        out = {"x": np.empty(SHAPE, "f4")}
        source.read(Extents.of(Extent(0, 53, 0)), out)
    np.testing.assert_array_equal(out["x"], noise())


@pytest.mark.parametrize(("name", "begin", "size"), [("lz4", 0, 8), ("blosc", 4, 4)])
def test_a_chunk_that_says_it_is_huge_is_not_believed(tmp_path, name, begin, size):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), **PACKED[name])
    with h5py.File(path) as file:
        data = bytearray(file["x"].id.read_direct_chunk((0, 0, 0))[1])
        packing = unpacking.packing_of(file["x"])
    data[begin : begin + size] = b"\x7f" * size
    assert packing is not None
    with pytest.raises(ValueError, match="and 960 would be right"):
        packing.unpack(bytes(data), 0, unpacking.Scratch(960, 4), np.empty(960, np.uint8))


def test_a_stream_that_goes_on_where_its_chunk_is_full_is_damaged():
    packing = unpacking.Packing(shuffled=False, decompress=unpacking._inflate)
    for more in (b"", b"beyond"):
        packed, out = zlib.compress(bytes(960) + more), np.empty(960, np.uint8)
        if more:
            with pytest.raises(ValueError, match="does not end where it is full"):
                packing.unpack(packed, 0, unpacking.Scratch(960, 4), out)
        else:
            packing.unpack(packed, 0, unpacking.Scratch(960, 4), out)
            assert not out.any()


@pytest.mark.parametrize("name", ["gzip", "blosc"])
def test_what_was_damaged_is_an_error_that_is_known_or_other_values(tmp_path, name):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), **PACKED[name])
    with h5py.File(path) as file:
        whole = bytes(file["x"].id.read_direct_chunk((0, 0, 0))[1])
        packing = unpacking.packing_of(file["x"])
    assert packing is not None
    # Of blosc, which would read beyond the end; of gzip those of the checksum.
    places = range(12, 16) if name == "blosc" else range(len(whole) - 4, len(whole))
    refused = 0
    for place in places:
        data = bytearray(whole)
        data[place] ^= 0x7F
        try:
            packing.unpack(bytes(data), 0, unpacking.Scratch(960, 4), np.empty(960, np.uint8))
        except unpacking.ERRORS:
            refused += 1
    assert refused == len(places)


def test_without_blosc_shuffled_chunks_are_put_in_order_by_numpy(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), **PACKED["both"])
    monkeypatch.setattr(unpacking, "_codecs", lambda: None)
    with closing(Hdf5Source(path, ["x"])) as source:
        assert source.placement.names == ("x",)
        out = {"x": np.empty(SHAPE, "f4")}
        source.read(Extents.of(Extent(0, 53, 0)), out)
    np.testing.assert_array_equal(out["x"], noise())


def test_an_index_that_lies_is_found(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3))
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, offset: read(file, size, offset + 8))
    assert not is_read_directly(path)


@pytest.mark.parametrize("packed", PACKED.values(), ids=PACKED.keys())
def test_damaged_chunks_are_a_sentence(tmp_path, packed):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), **packed)
    with h5py.File(path) as file:
        chunks = chunks_of(file["x"])
    assert chunks is not None
    with closing(Hdf5Source(path, ["x"])) as source:
        place, size = int(chunks.offsets[2, 0, 0]), int(chunks.sizes[2, 0, 0])
        stamp = path.stat()
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\xff" * size)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        out = {"x": np.empty(SHAPE, "f4")}
        if "compression" not in packed or chunks.left_out[2, 0, 0]:
            source.read(Extents.of(Extent(0, 53, 0)), out)  # any bytes are values
            return
        with pytest.raises(DataError, match=r"Rows 0 to 53 of .* cannot be read"):
            source.read(Extents.of(Extent(0, 53, 0)), out)


def test_a_file_that_was_cut_short_is_told_so(tmp_path):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), compression="gzip")
    with closing(Hdf5Source(path, ["x"])) as source:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(DatasetChanged):
            source.read(Extents.of(Extent(0, 53, 0)), {"x": np.empty(SHAPE, "f4")})


def test_a_file_whose_index_reaches_over_its_end_is_left_to_hdf5(tmp_path, monkeypatch):
    """Before anything is read: a size that lies could ask for more memory than there is."""
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), compression="gzip")
    assert is_read_directly(path)
    with h5py.File(path) as file:
        found = chunks_of(file["x"])
        assert found is not None
        os.truncate(path, int((found.offsets + found.sizes).max()) - 1)
        asked = Mock(return_value=b"")
        monkeypatch.setattr(os, "pread", asked)
        assert chunks_of(file["x"]) is None
        asked.assert_not_called()


def test_a_chunk_outside_of_its_array_is_left_to_hdf5(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        array = file.create_dataset("x", data=np.arange(60.0), chunks=(20,), compression="gzip")
        size = array.id.get_chunk_info(2).size
    damaged, key = bytearray(path.read_bytes()), struct.pack("<IIQ", size, 0, 40)
    begin = damaged.index(key)
    damaged[begin : begin + len(key)] = struct.pack("<IIQ", size, 0, 100)
    path.write_bytes(damaged)
    with h5py.File(path) as file:
        assert chunks_of(file["x"]) is None


def test_a_file_is_walked_through_once(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5", noise(), (8, 10, 3), compression="gzip")
    with closing(Hdf5Source(path, ["x"])) as first:
        monkeypatch.setattr("worker.trainer.data.formats.hdf5.chunks_of", None)
        out = {"x": np.empty(SHAPE, "f4")}
        with closing(Hdf5Source(path, ["x"], first.stamp, first.placement)) as second:
            second.read(Extents.of(Extent(0, 53, 0)), out)
    np.testing.assert_array_equal(out["x"], noise())
