"""Arrow files as a source of samples: record batches that pyarrow reads, in the reader's threads.

Of a record batch pyarrow reads the columns of the run, whole, packed (LZ4, ZSTD) or not; the rows
that are wanted are gathered from there.
"""

import errno
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.container import available_memory
from worker.trainer.data.feed.read_threads import READ_THREADS, ReadThreads
from worker.trainer.data.formats.arrow_index import (
    ArrowIndex,
    MissingValues,
    OpenFile,
    arrow,
    nulls_in,
    read_index,
)
from worker.trainer.data.source import Arrays, Extent, Extents, Field, Rows
from worker.trainer.errors import DataError, DatasetChanged

# Shorter runs of rows are gathered in one call, for each of its own takes a microsecond.
LEAST_RUN_ROWS = 64
# Files of 1,024 that a process may have open as a rule. To open one takes 0.1 to 0.4 ms.
MOST_OPEN = 256


@dataclass(frozen=True)
class Pieces:
    """Rows of one record batch: [start, stop) of each go to the output from its place on."""

    batch: int
    starts: Rows
    stops: Rows
    places: Rows


def pieces_of(extents: Extents, borders: Rows) -> list[Pieces]:
    """Extents, which ascend, cut where record batches end. `borders`: the first row of each record
    batch, and the number of all rows.
    """
    starts, stops, places = extents.starts, extents.stops, extents.places
    first = np.searchsorted(borders, starts, side="right") - 1
    counts = np.searchsorted(borders, stops - 1, side="right") - first
    of = np.repeat(np.arange(len(extents)), counts)
    batches = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.maximum(starts[of], borders[batches])
    ends = np.minimum(stops[of], borders[batches + 1])
    to, inner = places[of] + begins - starts[of], borders[batches]
    cuts = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist(), len(batches)]
    return [
        Pieces(int(batches[one]), *(each[one:end] for each in (begins - inner, ends - inner, to)))
        for one, end in pairwise(cuts)
        if end > one
    ]


class ArrowSource:
    """The columns of an index, which are never converted."""

    places_rows = True

    def __init__(self, index: ArrowIndex, threads: int = READ_THREADS) -> None:
        """Nothing is opened before it is read."""
        self._index = index
        self.fields: Mapping[str, Field] = index.fields
        self.num_samples = index.num_samples
        self._threads = ReadThreads(threads)
        self._lock = threading.Lock()
        self._idle: list[tuple[int, OpenFile]] = []
        """Open files and their numbers, at most MOST_OPEN; a thread takes one out to read it."""
        self._kept: tuple[int, Arrays] = (-1, {})
        """The record batch that was read last: the next read goes on in it as a rule."""

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places in out[name]: C-contiguous, the field's dtype."""
        pieces = pieces_of(extents, self._index.starts)
        if not pieces:
            return
        files = sorted({int(self._index.file_of[one.batch]) for one in pieces})
        self._check(files)
        try:
            self._threads.run(partial(self._read, out, pieces[-1].batch), pieces)
        except ValueError as error:
            self._check(files)
            raise DataError(
                f"{self._index.path} cannot be read ({error}). Check the disk and the files;"
                " restore them from a copy if they are damaged."
            ) from error
        self._check(files)

    def close(self) -> None:
        """Closing twice is harmless."""
        self._threads.close()
        while self._idle:
            self._idle.pop()[1].close()
        self._kept = -1, {}

    def _read(self, out: Mapping[str, NDArray[Any]], last: int, pieces: Iterator[Pieces]) -> None:
        for some in pieces:
            number, arrays = self._kept
            if number != some.batch:
                arrays = self._batch(some.batch)
            for name, values in arrays.items():
                gather(values, some, out[name])
            if some.batch == last:
                self._kept = last, arrays

    def _batch(self, number: int) -> Arrays:
        """All samples of a record batch. ValueError, with the name of its file."""
        file = int(self._index.file_of[number])
        path, rows = self._index.files[file].path, int(np.diff(self._index.starts)[number])
        try:
            batch = self._read_batch(file, int(self._index.batch_of[number]))
        except MemoryError as error:
            needed = 2 * rows * sum(field.sample_bytes for field in self.fields.values())
            if needed > available_memory():
                raise
            raise ValueError(f"{path}: it asks for more memory than its rows take") from error
        except (OSError, ValueError, arrow().ArrowException) as error:
            if getattr(error, "errno", None) == errno.ENOMEM:
                raise MemoryError(str(error)) from error
            raise ValueError(f"{path}: {error}") from error
        if batch.num_rows != rows:
            raise ValueError(f"{path}: {batch.num_rows:,} rows of a record batch, not {rows:,}")
        return {name: self._values(name, batch.column(name), path) for name in self._index.columns}

    def _values(self, name: str, array: Any, path: Path) -> NDArray[Any]:
        if count := nulls_in(array):
            raise MissingValues(
                f"The column {name!r} of {self._index.path} has {count:,} missing values (nulls)"
                f" in a record batch of {path.name}; fill or drop them."
            )
        return self._index.columns[name].values(array)

    def _read_batch(self, number: int, batch: int) -> Any:
        with self._lock:
            place = next((at for at, (one, _) in enumerate(self._idle) if one == number), None)
            file = None if place is None else self._idle.pop(place)[1]
        if file is None:
            known = self._index.files[number]
            file = OpenFile(known.path, known.places_of(self._index.columns))
        try:
            return file.batch(batch)
        finally:
            with self._lock:
                self._idle.append((number, file))
                oldest = self._idle.pop(0)[1] if len(self._idle) > MOST_OPEN else None
            if oldest is not None:
                oldest.close()

    def _check(self, files: list[int]) -> None:
        """DatasetChanged where one of them is gone or was written to."""
        for number in files:
            known = self._index.files[number]
            try:
                stat = known.path.stat()
            except FileNotFoundError:
                raise DatasetChanged(
                    f"{known.path} is gone since the run began. Put it back, or register the"
                    " dataset again and restart the run."
                ) from None
            except OSError as error:
                raise DataError(
                    f"{known.path} cannot be read ({error}); check disk and file."
                ) from error
            if (stat.st_size, stat.st_mtime_ns) != (known.size, known.mtime_ns):
                raise DatasetChanged(
                    f"{known.path} was changed during the run ({known.size:,} bytes at the start,"
                    f" {stat.st_size:,} now), so what was read cannot be trusted. Restore it, or"
                    " register the dataset again and restart the run."
                )


def gather(values: NDArray[Any], some: Pieces, out: NDArray[Any]) -> None:
    """Copy the rows of each piece to where they belong."""
    lengths = some.stops - some.starts
    total = int(lengths.sum())
    if total >= len(lengths) * LEAST_RUN_ROWS or len(lengths) == 1:
        pairs = zip(some.starts.tolist(), some.stops.tolist(), some.places.tolist(), strict=True)
        for start, stop, place in pairs:
            out[place : place + stop - start] = values[start:stop]
        return
    within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows, to = np.repeat(some.starts, lengths) + within, np.repeat(some.places, lengths) + within
    if to[-1] - to[0] == total - 1 and (np.diff(to) == 1).all():
        np.take(values, rows, axis=0, out=out[to[0] : to[-1] + 1], mode="clip")
    else:
        out[to] = values[rows]


class ArrowArray:
    """A column, with what is asked of an h5py.Dataset that is looked into."""

    def __init__(self, all_arrays: "ArrowArrays", name: str) -> None:
        self.index = all_arrays.index
        field = self.index.columns[name].field
        self.dtype = field.dtype
        self.shape = (self.index.num_samples, *field.shape)
        self.size = int(np.prod(self.shape, dtype=object))
        self.attrs: Mapping[str, Any] = {}
        self.batch_bytes = self.index.largest_batch * field.sample_bytes
        """Of the largest record batch, which is read as a whole."""
        self._all = all_arrays
        self._name = name

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self.read_direct(out, rows)
        return out

    def read_direct(self, out: NDArray[Any], source_sel: slice) -> None:
        start, stop, _ = source_sel.indices(self.shape[0])
        self._all.read(self._name, start, stop, out)


class ArrowArrays:
    """All columns of an index, of which one at a time is read."""

    def __init__(self, index: ArrowIndex) -> None:
        self.index = index
        self.arrays: Mapping[str, ArrowArray] = {
            name: ArrowArray(self, name) for name in sorted(index.columns)
        }
        self._reading: tuple[str, ArrowSource] | None = None

    def read(self, name: str, start: int, stop: int, out: NDArray[Any]) -> None:
        if self._reading is None or self._reading[0] != name:
            self.close()
            self._reading = name, ArrowSource(self.index.of([name]))
        if stop > start:
            self._reading[1].read(Extents.of(Extent(start, stop, 0)), {name: out})

    def close(self) -> None:
        if self._reading is not None:
            self._reading[1].close()
            self._reading = None


@contextmanager
def open_arrow(path: Path) -> Iterator[ArrowArrays]:
    """DataError where it cannot be used."""
    found = ArrowArrays(read_index(path))
    try:
        yield found
    finally:
        found.close()
