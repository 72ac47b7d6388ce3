"""Columns of Arrow files as arrays, with what is asked of an h5py.Dataset that is looked into."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.arrow_folder import ArrowIndex, read_index
from worker.trainer.data.arrow_source import ArrowSource
from worker.trainer.data.source import Extent, Extents


class ArrowArrays:
    """All columns of an index, of which one at a time is read."""

    def __init__(self, index: ArrowIndex) -> None:
        self.index = index
        self.arrays: Mapping[str, ArrowArray] = {
            name: ArrowArray(self, name) for name in sorted(index.places)
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


class ArrowArray:
    def __init__(self, all_arrays: ArrowArrays, name: str) -> None:
        self.index = all_arrays.index
        self.place = self.index.places[name]
        self.dtype = self.place.column.field.dtype
        self.shape = (self.index.num_samples, *self.place.column.field.shape)
        self.size = int(np.prod(self.shape, dtype=object))
        self.attrs: Mapping[str, Any] = {}
        self._all = all_arrays
        self._name = name

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def unpacked_bytes(self) -> int:
        """Of the largest record batch, which is unpacked as a whole; 0 where none is packed."""
        if self.index.packing is None:
            return 0
        return self.index.largest_batch * self.place.column.field.sample_bytes

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        self.read_direct(out, rows)
        return out

    def read_direct(self, out: NDArray[Any], source_sel: slice) -> None:
        start, stop, _ = source_sel.indices(self.shape[0])
        self._all.read(self._name, start, stop, out)


@contextmanager
def open_arrow(path: Path) -> Iterator[ArrowArrays]:
    """DataError where it cannot be used."""
    found = ArrowArrays(read_index(path))
    try:
        yield found
    finally:
        found.close()
