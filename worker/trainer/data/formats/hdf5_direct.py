"""Arrays that lie in their HDF5 file in one piece, read by offset and in parallel, past HDF5."""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.feed.parts import FileParts
from worker.trainer.data.feed.read_threads import ReadThreads
from worker.trainer.data.formats.hdf5_file import HDF5_ERRORS
from worker.trainer.data.source import Extents

COMPARED_ROWS = 5


@dataclass(frozen=True)
class Place:
    """Where the rows of an array lie in its file."""

    offset: int
    row_bytes: int


def place_of(array: h5py.Dataset) -> Place | None:
    """Where its rows lie, compared with what HDF5 reads; None: HDF5 has to read this array.

    One piece of the file itself, in the order and the types of this machine, and written.
    """
    try:
        return _place_of(array)
    except HDF5_ERRORS:
        return None  # what is wrong shows, and is explained, when HDF5 reads it


def _place_of(array: h5py.Dataset) -> Place | None:
    offset = array.id.get_offset() if is_plain(array, h5py.h5d.CONTIGUOUS) else None
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if offset is None or array.id.get_storage_size() != len(array) * row_bytes:
        return None
    place, file = Place(offset, row_bytes), array.file.id.get_vfd_handle()

    def read(row: int) -> bytes:
        return os.pread(file, row_bytes, offset + row * row_bytes)

    return place if is_what_hdf5_reads(array, read) else None


def is_plain(array: h5py.Dataset, layout: int) -> bool:
    """Whether the array lies in the file itself, laid out like this, in this machine's types."""
    return bool(
        array.file.driver == "sec2"
        and array.id.get_create_plist().get_layout() == layout
        and array.external is None
        and array.id.get_type() == h5py.h5t.py_create(array.dtype)
    )


def is_what_hdf5_reads(array: h5py.Dataset, read: Callable[[int], bytes]) -> bool:
    """The first row, the last, and some between: an offset that lies is found before training."""
    rows = len(array)
    some = random.Random(rows).choices(range(rows), k=COMPARED_ROWS) if rows else []
    for row in {0, rows - 1, *some} if rows else ():
        known = np.empty((1, *array.shape[1:]), array.dtype)
        array.read_direct(known, source_sel=np.s_[row : row + 1])
        if read(row) != known.tobytes():
            return False
    return True


class DirectReader:
    """Reads rows of several such arrays of one file."""

    def __init__(self, file: int, places: Mapping[str, Place], threads: ReadThreads) -> None:
        self._file = file
        self._places = places
        self._threads = threads

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places in C-contiguous arrays; OSError, EOFError."""
        shares = list[FileParts]()
        rows = extents.stops - extents.starts
        for name, lies in self._places.items():
            if not out[name].flags.c_contiguous:
                raise BufferError(f"{name!r} would be read into a copy: it is not in one piece")
            memory, size = out[name].reshape(-1).view(np.uint8).data, lies.row_bytes
            offsets = lies.offset + extents.starts * size
            shares += FileParts(memory, offsets, extents.places * size, rows * size).shares()
        if len(shares) <= len(self._places):  # read before another thread has woken up
            self._read(iter(shares))
        else:
            self._threads.run(self._read, shares)

    def _read(self, shares: Iterator[FileParts]) -> None:
        for parts in shares:
            parts.read(self._file)
