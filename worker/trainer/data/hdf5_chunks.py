"""Chunked and compressed arrays, whose chunks are read raw and unpacked in parallel, past HDF5."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.filters import ERRORS, Unpack, filters_of, unpack_of
from worker.trainer.data.hdf5_direct import is_plain, is_what_hdf5_reads
from worker.trainer.data.hdf5_file import HDF5_ERRORS
from worker.trainer.data.read_threads import ReadThreads
from worker.trainer.data.source import Extent

NOT_WRITTEN = -1
UNPACK_ERRORS = (*HDF5_ERRORS, *ERRORS)


@dataclass(frozen=True)
class Chunks:
    """Where the chunks of an array lie in its file, and how each is unpacked.

    `offsets`, `sizes` and `skipped` (a bit for each filter that a chunk was not packed by) have the
    shape of the grid of chunks; an offset is NOT_WRITTEN where a chunk holds `fill` alone.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any
    filters: tuple[Unpack, ...]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    skipped: NDArray[np.uint32]

    def unpacked(self, file: int, place: tuple[int, ...]) -> NDArray[Any]:
        """The chunk at a place of the grid, whole also where it reaches over the array's end."""
        offset, size = int(self.offsets[place]), int(self.sizes[place])
        if offset == NOT_WRITTEN:
            return np.full(self.chunk, self.fill, self.dtype)
        data: Any = os.pread(file, size, offset)
        if len(data) != size:
            raise EOFError(f"the file ends within the chunk at byte {offset:,}")
        whole = int(np.prod(self.chunk)) * self.dtype.itemsize
        skipped = int(self.skipped[place])
        for number, unpack in reversed(list(enumerate(self.filters))):
            if not skipped >> number & 1:
                data = unpack(data, whole, self.dtype.itemsize)
        return np.frombuffer(data, self.dtype).reshape(self.chunk)


def chunks_of(array: h5py.Dataset) -> Chunks | None:
    """Where its chunks lie, compared with what HDF5 reads; None: HDF5 has to read this array.

    In chunks of this machine's types, by filters that are undone here.
    """
    try:
        filters = _filters_of(array)
        if filters is None or not is_plain(array, h5py.h5d.CHUNKED):
            return None
        chunks, file = _indexed(array, filters), array.file.id.get_vfd_handle()

        def read(row: int) -> bytes:
            out = np.empty((1, *array.shape[1:]), array.dtype)
            for task in _tasks(chunks, [Extent(row, row + 1, 0)], out):
                task.carry_out(file)
            return out.tobytes()

        return chunks if is_what_hdf5_reads(array, read) else None
    except UNPACK_ERRORS:
        return None  # what is wrong shows, and is explained, when HDF5 reads it


def _filters_of(array: h5py.Dataset) -> tuple[Unpack, ...] | None:
    """In the order in which they packed; None when one of them is not known here."""
    found = [unpack_of(code) for code, _ in filters_of(array)]
    known = tuple(unpack for unpack in found if unpack is not None)
    return known if len(known) == len(found) else None


def _indexed(array: h5py.Dataset, filters: tuple[Unpack, ...]) -> Chunks:
    """One walk over the index: asking for one chunk after the other, each would walk it again."""
    grid = tuple(-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True))
    offsets = np.full(grid, NOT_WRITTEN, np.int64)
    sizes, skipped = np.zeros(grid, np.int64), np.zeros(grid, np.uint32)
    end = os.fstat(array.file.id.get_vfd_handle()).st_size

    def note(stored: Any) -> None:
        if stored.byte_offset + stored.size > end:  # so much memory is not asked for in vain
            raise ValueError("a chunk reaches over the end of the file")
        place = tuple(o // c for o, c in zip(stored.chunk_offset, array.chunks, strict=True))
        offsets[place], sizes[place] = stored.byte_offset, stored.size
        skipped[place] = stored.filter_mask

    array.id.chunk_iter(note)
    return Chunks(
        array.shape, array.chunks, array.dtype, array.fillvalue, filters, offsets, sizes, skipped
    )


@dataclass(frozen=True)
class _Task:
    """A chunk, and the pieces of it that are wanted."""

    chunks: Chunks
    place: tuple[int, ...]
    pieces: Sequence[Extent]
    out: NDArray[Any]

    def carry_out(self, file: int) -> None:
        values = self.chunks.unpacked(file, self.place)
        inner = self._inner()
        cut = tuple(slice(part.stop - part.start) for part in inner)
        for piece in self.pieces:
            rows = slice(piece.place, piece.place + piece.stop - piece.start)
            self.out[(rows, *inner)] = values[(slice(piece.start, piece.stop), *cut)]

    def _inner(self) -> tuple[slice, ...]:
        """The part of a sample that the chunk holds."""
        chunks = self.chunks
        sizes = zip(self.place[1:], chunks.chunk[1:], chunks.shape[1:], strict=True)
        return tuple(slice(at * size, min((at + 1) * size, end)) for at, size, end in sizes)


class ChunkReader:
    """Reads rows of several such arrays of one file."""

    def __init__(self, file: int, chunks: Mapping[str, Chunks], threads: ReadThreads) -> None:
        self._file = file
        self._chunks = chunks
        self._threads = threads

    def read(self, extents: Sequence[Extent], out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places, each chunk once; one of UNPACK_ERRORS."""
        tasks = [t for name, each in self._chunks.items() for t in _tasks(each, extents, out[name])]
        count = max(1, min(self._threads.count, len(tasks)))
        self._threads.run(self._carry_out, [tasks[first::count] for first in range(count)])

    def _carry_out(self, tasks: Sequence[_Task]) -> None:
        for task in tasks:
            task.carry_out(self._file)


def _tasks(chunks: Chunks, extents: Sequence[Extent], out: NDArray[Any]) -> Iterator[_Task]:
    for row, pieces in _pieces(extents, chunks.chunk[0]).items():
        for inner in np.ndindex(chunks.offsets.shape[1:]):
            yield _Task(chunks, (row, *inner), pieces, out)


def _pieces(extents: Sequence[Extent], chunk_rows: int) -> dict[int, list[Extent]]:
    """By row of the grid, what is wanted of its chunks, whose rows count from 0."""
    found: dict[int, list[Extent]] = {}
    for start, stop, place in extents:
        for row in range(start // chunk_rows, -(-stop // chunk_rows)):
            first, last = max(start, row * chunk_rows), min(stop, (row + 1) * chunk_rows)
            piece = Extent(first - row * chunk_rows, last - row * chunk_rows, place + first - start)
            found.setdefault(row, []).append(piece)
    return found
