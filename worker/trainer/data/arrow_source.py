"""Arrow files as a source of samples: plain numbers by offset, packed ones unpacked in threads.

What is packed (LZ4, ZSTD) is unpacked a column of a record batch at a time.
"""

import errno
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.arrow_file import PLAIN
from worker.trainer.data.arrow_folder import ArrowIndex, Place
from worker.trainer.data.arrow_open import OpenFiles
from worker.trainer.data.arrow_pieces import Pieces, pieces_of
from worker.trainer.data.arrow_unpack import gather, values_of
from worker.trainer.data.parts import MOST_SKIPPED_BYTES, Parts
from worker.trainer.data.read_threads import READ_THREADS, ReadThreads
from worker.trainer.data.source import Extents, Field
from worker.trainer.errors import DataError

# Less is copied or unpacked before another thread has woken up.
LEAST_SHARED_BYTES = 2**20

Work = partial[None]


class ArrowSource:
    """The columns of an index, which are never converted."""

    places_rows = True

    def __init__(self, index: ArrowIndex, threads: int = READ_THREADS) -> None:
        """Nothing is opened before it is read."""
        self._index = index
        self.fields: Mapping[str, Field] = index.fields
        self.num_samples = index.num_samples
        self._files = OpenFiles(index.files)
        self._threads = ReadThreads(threads)
        # Unpacked, of the record batch that was read last: the next read goes on in it as a rule.
        self._kept: dict[tuple[int, str], NDArray[Any]] = {}

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places in out[name]: C-contiguous, the field's dtype."""
        pieces, file_of = pieces_of(extents, self._index.starts), self._index.file_of
        for some in pieces.cut(self._files.groups(file_of[pieces.batches])):
            files = sorted(set(file_of[some.batches].tolist()))
            self._files.open(files)
            try:
                self._read(some, out)
            except (OSError, EOFError, ValueError) as error:
                if getattr(error, "errno", None) == errno.ENOMEM:
                    raise
                self._files.check(files)
                raise DataError(
                    f"{self._index.path} cannot be read ({error}). Check the disk and the files;"
                    " restore them from a copy if they are damaged."
                ) from error
            self._files.check(files)

    def close(self) -> None:
        self._threads.close()
        self._files.close()
        self._kept.clear()

    def _read(self, pieces: Pieces, out: Mapping[str, NDArray[Any]]) -> None:
        copies: list[tuple[int, Work]] = []
        reads: list[Work] = []
        last = int(pieces.batches[-1])
        for name, place in self._index.places.items():
            by_batch = self._is_gathered(place, pieces)
            plain, rest = pieces.of(~by_batch), pieces.of(by_batch)
            if len(plain):
                shares = self._parts(place, plain, out[name]).shares()
                reads += [partial(self._files.read, share) for share in shares]
            for some in rest.cut(rest.batches):
                work = partial(self._gather, name, some, out[name], last)
                copies.append((self._cost(place, some), work))
        copies.sort(key=lambda each: -each[0])  # so that the threads are done at about one time
        if len(reads) > len(self.fields) or sum(cost for cost, _ in copies) > LEAST_SHARED_BYTES:
            self._threads.run(_do, [*(work for _, work in copies), *reads])
        else:  # it is done before another thread has woken up
            _do(iter([*(work for _, work in copies), *reads]))
        self._kept = {key: values for key, values in self._kept.items() if key[0] == last}

    def _is_gathered(self, place: Place, pieces: Pieces) -> NDArray[np.bool_]:
        """Whether a piece is copied out of its record batch: that is packed, or holds so many of
        them that to read what lies between takes no longer than to read each by itself.
        """
        if place.column.is_bits:
            return np.ones(len(pieces), np.bool_)
        firsts = np.flatnonzero(np.diff(pieces.batches, prepend=-1))
        lasts = np.append(firsts[1:], len(pieces)) - 1
        counts, size = lasts - firsts + 1, place.column.field.sample_bytes
        wanted = np.add.reduceat(pieces.stops - pieces.starts, firsts) * size
        between = (pieces.stops[lasts] - pieces.starts[firsts]) * size
        is_dense = (counts > 1) & (between <= wanted + counts * MOST_SKIPPED_BYTES)
        is_packed = self._index.codecs[pieces.batches[firsts]] != PLAIN
        return np.repeat(is_dense | is_packed, counts)

    def _parts(self, place: Place, pieces: Pieces, out: NDArray[Any]) -> Parts:
        """Where these lie, with the files as if one behind another."""
        if not out.flags.c_contiguous:
            raise BufferError("rows would be read into a copy: it is not in one piece")
        size, batches = place.column.field.sample_bytes, pieces.batches
        begins = self._files.begins[self._index.file_of[batches]] + place.offsets[batches]
        return Parts(
            out.reshape(-1).view(np.uint8).data,
            begins + pieces.starts * size,
            pieces.places * size,
            (pieces.stops - pieces.starts) * size,
        )

    def _cost(self, place: Place, pieces: Pieces) -> int:
        """Bytes to go through."""
        batch = int(pieces.batches[0])
        if self._index.codecs[batch] == PLAIN:
            return int(pieces.stops[-1] - pieces.starts[0]) * place.column.field.sample_bytes
        return place.column.stored_bytes(self._rows_of(batch))

    def _gather(self, name: str, pieces: Pieces, out: NDArray[Any], last: int) -> None:
        """Copy pieces of one record batch to their places; it is kept if it is the last."""
        place, batch = self._index.places[name], int(pieces.batches[0])
        if self._index.codecs[batch] == PLAIN and not place.column.is_bits:
            first = int(pieces.starts[0])
            values = self._plain_values(place, batch, first, int(pieces.stops[-1]))
            gather(values, pieces.starts - first, pieces.stops - first, pieces.places, out)
            return
        kept = self._kept.get((batch, name))
        values = self._all_values(place, batch) if kept is None else kept
        if batch == last:
            self._kept[batch, name] = values
        gather(values, pieces.starts, pieces.stops, pieces.places, out)

    def _plain_values(self, place: Place, batch: int, start: int, stop: int) -> NDArray[Any]:
        size = place.column.field.sample_bytes
        offset = int(place.offsets[batch]) + start * size
        stored = self._stored(batch, offset, (stop - start) * size)
        return values_of(place.column, stored, PLAIN, stop - start)

    def _all_values(self, place: Place, batch: int) -> NDArray[Any]:
        stored = self._stored(batch, int(place.offsets[batch]), int(place.sizes[batch]))
        codec = int(self._index.codecs[batch])
        try:
            return values_of(place.column, stored, codec, self._rows_of(batch))
        except (OSError, ValueError) as error:
            raise ValueError(f"{self._index.path_of(batch)}: {error}") from error

    def _stored(self, batch: int, offset: int, size: int) -> memoryview:
        return self._files.read_bytes(int(self._index.file_of[batch]), offset, size)

    def _rows_of(self, batch: int) -> int:
        return int(self._index.starts[batch + 1] - self._index.starts[batch])


def _do(work: Iterator[Work]) -> None:
    for each in work:
        each()
