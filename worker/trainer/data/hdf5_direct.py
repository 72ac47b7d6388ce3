"""Arrays that lie in their HDF5 file in one piece, read by offset and in parallel, past HDF5."""

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.hdf5_file import HDF5_ERRORS
from worker.trainer.data.read_threads import ReadThreads
from worker.trainer.data.source import Extents, Rows

# What a thread reads before it takes the next: whoever shares its core with another is slower.
SHARE_BYTES = 2**23
COMPARED_ROWS = 5
# As many as one call of the system takes.
MOST_MEMORIES = os.sysconf("SC_IOV_MAX")
# Between small reads threads wait for each other's turn at Python. Scattered samples of 23 KiB: one
# thread 5.6 GiB/s, two 4.8, to places of another order 5.6 and 4.2; of 115 KiB 11.4 and 13.5.
LEAST_SHARED_BYTES = 2**16
# A call takes 1 to 2 µs, and another for so much: to read on is as fast as to begin anew.
MOST_SKIPPED_BYTES = 2**14


@dataclass(frozen=True)
class Place:
    """Where the rows of an array lie in its file."""

    offset: int
    row_bytes: int


@dataclass(frozen=True)
class Parts:
    """Bytes of the file, in its order, and where in `memory` they go: three numbers each."""

    memory: memoryview
    offsets: Rows
    starts: Rows
    sizes: Rows

    def shares(self) -> "list[Parts]":
        """Cut into shares of equal bytes, also inside a part; one where there are few."""
        total = int(self.sizes.sum())
        count = max(1, -(-total // SHARE_BYTES))
        cuts = total * np.arange(count + 1) // count
        begins = np.cumsum(self.sizes) - self.sizes
        points = np.union1d(begins, cuts[1:-1])
        whole = np.searchsorted(begins, points, side="right") - 1
        inside = points - begins[whole]
        sizes = np.diff(points, append=total)
        cut = Parts(self.memory, self.offsets[whole] + inside, self.starts[whole] + inside, sizes)
        places = np.searchsorted(points, cuts).tolist()
        return [cut.of(slice(*ends)) for ends in pairwise(places)]

    def of(self, some: slice) -> "Parts":
        return Parts(self.memory, self.offsets[some], self.starts[some], self.sizes[some])

    def runs(self) -> Iterator[tuple[int, list[memoryview]]]:
        """What lies close together in the file as one: (offset, the memories in turn, with that
        for what is skipped). There is at least one part.
        """
        gaps = self.offsets[1:] - self.offsets[:-1] - self.sizes[:-1]
        apart = np.flatnonzero((gaps < 0) | (gaps > MOST_SKIPPED_BYTES)) + 1
        offsets, starts, between = self.offsets.tolist(), self.starts.tolist(), gaps.tolist()
        ends = (self.starts + self.sizes).tolist()
        skipped = memoryview(bytearray(MOST_SKIPPED_BYTES))
        firsts = [0, *apart.tolist()]
        for first, end in zip(firsts, [*firsts[1:], len(offsets)], strict=True):
            begin, memories = offsets[first], [self.memory[starts[first] : ends[first]]]
            for part in range(first + 1, end):
                if len(memories) > MOST_MEMORIES - 2:
                    yield begin, memories
                    begin, memories = offsets[part], []
                elif between[part - 1]:
                    memories.append(skipped[: between[part - 1]])
                memories.append(self.memory[starts[part] : ends[part]])
            yield begin, memories


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
        shares = list[Parts]()
        rows = extents.stops - extents.starts
        for name, lies in self._places.items():
            if not out[name].flags.c_contiguous:
                raise BufferError(f"{name!r} would be read into a copy: it is not in one piece")
            memory, size = out[name].reshape(-1).view(np.uint8).data, lies.row_bytes
            offsets = lies.offset + extents.starts * size
            shares += Parts(memory, offsets, extents.places * size, rows * size).shares()
        row_bytes = sum(lies.row_bytes for lies in self._places.values())
        is_scattered = rows.sum() * row_bytes < len(rows) * LEAST_SHARED_BYTES
        if is_scattered or len(shares) <= len(self._places):  # or is read before one has woken up
            self._read(iter(shares))
        else:
            self._threads.run(self._read, shares)

    def _read(self, shares: Iterator[Parts]) -> None:
        for offset, memories in chain.from_iterable(share.runs() for share in shares):
            fill(self._file, offset, memories)


def fill(file: int, offset: int, memories: list[memoryview]) -> None:
    """Read a file from `offset` on into the memories in turn; OSError, EOFError."""
    at, left = offset, memories
    while left:
        count = os.preadv(file, left, at)
        if not count:
            raise EOFError(f"the file ends at byte {at:,}")
        at, left = at + count, _after(left, count)


def _after(memories: list[memoryview], count: int) -> list[memoryview]:
    """What is left of them when the first `count` bytes are filled."""
    for number, memory in enumerate(memories):
        if count < memory.nbytes:
            return [memory[count:], *memories[number + 1 :]]
        count -= memory.nbytes
    return []
