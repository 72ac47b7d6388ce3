"""Chunked and compressed arrays, whose chunks are read raw and unpacked in parallel, past HDF5."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.feed.read_threads import ReadThreads
from worker.trainer.data.formats.hdf5_direct import is_plain, is_what_hdf5_reads
from worker.trainer.data.formats.hdf5_file import HDF5_ERRORS
from worker.trainer.data.formats.unpacking import ERRORS, Bytes, Packing, Scratch, packing_of
from worker.trainer.data.source import Extent, Extents

NOT_WRITTEN = -1
UNPACK_ERRORS = (*HDF5_ERRORS, *ERRORS)


@dataclass(frozen=True)
class Chunks:
    """Where the chunks of an array lie in its file, and how they are unpacked.

    `offsets`, `sizes` and `left_out` (a bit for each filter that did not pack a chunk) have the
    shape of the grid of chunks; an offset is NOT_WRITTEN where a chunk holds `fill` alone.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any
    packing: Packing
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    left_out: NDArray[np.uint32]

    def new_scratch(self) -> Scratch:
        itemsize = self.dtype.itemsize
        return Scratch(math.prod(self.chunk) * itemsize, itemsize)

    def unpack(self, file: int, place: tuple[int, ...], scratch: Scratch, out: Bytes) -> None:
        """The chunk at a place of the grid, whole also where it reaches over the array's end."""
        offset, size = int(self.offsets[place]), int(self.sizes[place])
        if offset == NOT_WRITTEN:
            out.view(self.dtype)[:] = self.fill
            return
        data = os.pread(file, size, offset)
        if len(data) != size:
            raise EOFError(f"the file ends within the chunk at byte {offset:,}")
        self.packing.unpack(data, int(self.left_out[place]), scratch, out)


def chunks_of(array: h5py.Dataset) -> Chunks | None:
    """Where its chunks lie, compared with what HDF5 reads; None: HDF5 has to read this array.

    In chunks of this machine's types, by filters that are undone here.
    """
    try:
        packing = packing_of(array)
        if packing is None or not is_plain(array, h5py.h5d.CHUNKED):
            return None
        chunks, file = _indexed(array, packing), array.file.id.get_vfd_handle()
        scratch = chunks.new_scratch()

        def read(row: int) -> bytes:
            out = np.empty((1, *array.shape[1:]), array.dtype)
            for task in _tasks(chunks, Extents.of(Extent(row, row + 1, 0)), out):
                task.carry_out(file, scratch)
            return out.tobytes()

        return chunks if is_what_hdf5_reads(array, read) else None
    except UNPACK_ERRORS:
        return None  # what is wrong shows, and is explained, when HDF5 reads it


def _indexed(array: h5py.Dataset, packing: Packing) -> Chunks:
    """One walk over the index: asking for one chunk after the other, each would walk it again."""
    grid = tuple(-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True))
    offsets = np.full(grid, NOT_WRITTEN, np.int64)
    sizes, left_out = np.zeros(grid, np.int64), np.zeros(grid, np.uint32)
    end = os.fstat(array.file.id.get_vfd_handle()).st_size

    def note(stored: Any) -> None:
        if stored.byte_offset + stored.size > end:  # so much memory is not asked for in vain
            raise ValueError("a chunk reaches over the end of the file")
        place = tuple(o // c for o, c in zip(stored.chunk_offset, array.chunks, strict=True))
        if any(at >= size for at, size in zip(place, grid, strict=True)):
            raise ValueError("a chunk lies outside of its array")
        offsets[place], sizes[place] = stored.byte_offset, stored.size
        left_out[place] = stored.filter_mask

    array.id.chunk_iter(note)
    return Chunks(
        array.shape, array.chunks, array.dtype, array.fillvalue, packing, offsets, sizes, left_out
    )


@dataclass(frozen=True)
class _Task:
    """A chunk, and the pieces of it that are wanted."""

    chunks: Chunks
    place: tuple[int, ...]
    pieces: Sequence[Extent]
    out: NDArray[Any]

    def carry_out(self, file: int, scratch: Scratch) -> None:
        chunks, own = self.chunks, self._own_place()
        if own is not None:
            chunks.unpack(file, self.place, scratch, own)
            return
        chunks.unpack(file, self.place, scratch, scratch.chunk)
        values = scratch.chunk.view(chunks.dtype).reshape(chunks.chunk)
        inner = self._inner()
        cut = tuple(slice(part.stop - part.start) for part in inner)
        for piece in self.pieces:
            rows = slice(piece.place, piece.place + piece.stop - piece.start)
            self.out[(rows, *inner)] = values[(slice(piece.start, piece.stop), *cut)]

    def _own_place(self) -> Bytes | None:
        """Where the chunk goes if it is wanted as it is; None: pieces of it are."""
        chunks, (first, *others) = self.chunks, self.pieces
        rows = first.stop - first.start
        if others or rows != chunks.chunk[0] or chunks.chunk[1:] != chunks.shape[1:]:
            return None
        return np.frombuffer(self.out[first.place : first.place + rows], np.uint8)

    def _inner(self) -> tuple[slice, ...]:
        """The part of a sample that the chunk holds."""
        chunks = self.chunks
        sizes = zip(self.place[1:], chunks.chunk[1:], chunks.shape[1:], strict=True)
        return tuple(slice(at * size, min((at + 1) * size, end)) for at, size, end in sizes)


class PackedReader:
    """Reads rows of several such arrays of one file."""

    def __init__(self, file: int, chunks: Mapping[str, Chunks], threads: ReadThreads) -> None:
        self._file = file
        self._chunks = chunks
        self._threads = threads

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places in C-contiguous arrays, each chunk once; one of
        UNPACK_ERRORS.
        """
        for name, chunks in self._chunks.items():
            tasks = list(_tasks(chunks, extents, out[name]))
            self._threads.run(partial(self._carry_out, chunks), tasks)

    def _carry_out(self, chunks: Chunks, tasks: Iterator[_Task]) -> None:
        scratch = chunks.new_scratch()
        for task in tasks:
            task.carry_out(self._file, scratch)


def _tasks(chunks: Chunks, extents: Extents, out: NDArray[Any]) -> Iterator[_Task]:
    for row, pieces in _pieces(extents, chunks.chunk[0]).items():
        for inner in np.ndindex(chunks.offsets.shape[1:]):
            yield _Task(chunks, (row, *inner), pieces, out)


def _pieces(extents: Extents, chunk_rows: int) -> dict[int, list[Extent]]:
    """By row of the grid, what is wanted of its chunks, whose rows count from 0."""
    found: dict[int, list[Extent]] = {}
    for start, stop, place in extents:
        for row in range(start // chunk_rows, -(-stop // chunk_rows)):
            first, last = max(start, row * chunk_rows), min(stop, (row + 1) * chunk_rows)
            piece = Extent(first - row * chunk_rows, last - row * chunk_rows, place + first - start)
            found.setdefault(row, []).append(piece)
    return found
