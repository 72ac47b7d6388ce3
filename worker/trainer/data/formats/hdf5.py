"""HDF5 files as sources of samples."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.feed.read_threads import READ_THREADS, ReadThreads
from worker.trainer.data.formats.hdf5_chunks import UNPACK_ERRORS, Chunks, PackedReader, chunks_of
from worker.trainer.data.formats.hdf5_direct import DirectReader, Place, place_of
from worker.trainer.data.formats.hdf5_file import (
    HDF5_ERRORS,
    find_array,
    open_file,
    unusable_because,
)
from worker.trainer.data.source import Extents, Field
from worker.trainer.errors import DataError, DatasetChanged, SpecMismatch
from worker.trainer.out_of_memory import which_memory


@dataclass(frozen=True)
class Stamp:
    """Tells whether a file was written to."""

    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Placement:
    """Where the arrays lie that need no HDF5 to be read: in one piece, and in chunks."""

    direct: Mapping[str, Place]
    packed: Mapping[str, Chunks]

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.direct, *self.packed)

    def __or__(self, other: "Placement") -> "Placement":
        """With the arrays of another."""
        return Placement({**self.direct, **other.direct}, {**self.packed, **other.packed})

    def of(self, names: Iterable[str]) -> "Placement":
        """That of these arrays alone."""
        wanted = set(names)
        return Placement(
            {name: place for name, place in self.direct.items() if name in wanted},
            {name: chunks for name, chunks in self.packed.items() if name in wanted},
        )


def _placement_of(arrays: Mapping[str, h5py.Dataset]) -> Placement:
    places = {name: place_of(array) for name, array in arrays.items()}
    direct = {name: place for name, place in places.items() if place is not None}
    rest = {name: chunks_of(arrays[name]) for name in arrays if name not in direct}
    return Placement(direct, {name: chunks for name, chunks in rest.items() if chunks is not None})


class Hdf5Source:
    """Fields of one HDF5 file, read into the caller's buffers and never converted: arrays that
    lie in one piece by offset, packed chunks raw and unpacked here where the filters are known
    (`worker.trainer.data.formats.filters`), all others by h5py.

    HDF5 gives zeros for what lies behind the end of a file that was cut short, so the file's
    size and modification time are compared after every read.
    """

    def __init__(
        self,
        path: Path,
        names: Iterable[str],
        stamp: Stamp | None = None,
        placement: Placement | None = None,
        threads: int = READ_THREADS,
    ) -> None:
        """Open `names` in `path`, which must still bear `stamp`, if one is given.

        `placement`: what was found when the same file was opened before, since to find it takes a
        second for 100,000 chunks.

        Raises DataError, DatasetChanged, or SpecMismatch for a name that is not there.
        """
        self._path = path
        self._file = open_file(path)
        try:
            self.stamp = stamp or self._stamp_now()
            self._check_unchanged()
            self._arrays = {name: self._open_array(name) for name in names}
            self.num_samples = self._common_length()
            self.placement = (
                placement.of(self._arrays) if placement else _placement_of(self._arrays)
            )
        except BaseException:
            self._file.close()
            raise
        file, self._threads = self._file.id.get_vfd_handle(), ReadThreads(threads)
        direct, packed = self.placement.direct, self.placement.packed
        self._readers: list[DirectReader | PackedReader] = [
            *([DirectReader(file, direct, self._threads)] if direct else []),
            *([PackedReader(file, packed, self._threads)] if packed else []),
        ]
        self._others = {n: a for n, a in self._arrays.items() if n not in self.placement.names}
        self.places_rows = not self._others
        self.fields: Mapping[str, Field] = {
            name: Field(tuple(array.shape[1:]), array.dtype) for name, array in self._arrays.items()
        }

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places in out[name]: C-contiguous, the field's dtype."""
        try:
            for reader in self._readers:
                reader.read(extents, out)
            self._read_by_hdf5(extents, out)
        except UNPACK_ERRORS as error:
            if which_memory(error) is not None:
                raise
            self._check_unchanged()
            raise DataError(
                f"Rows {extents.starts[0]:,} to {extents.stops[-1]:,} of {self._path} cannot be"
                f" read ({error}). Check the disk and the file; restore it from a copy if it is"
                " damaged."
            ) from error
        self._check_unchanged()

    def _read_by_hdf5(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        for start, stop, place in extents if self._others else ():
            for name, array in self._others.items():
                into = out[name][place : place + stop - start]
                array.read_direct(into, source_sel=np.s_[start:stop])

    def close(self) -> None:
        self._threads.close()
        self._file.close()

    def _open_array(self, name: str) -> h5py.Dataset:
        try:
            array = find_array(self._file, name)
            reason = None if array is None else unusable_because(array)
        except HDF5_ERRORS as error:
            raise DataError(
                f"{name!r} of {self._path} cannot be opened ({error}): the file is damaged. Write"
                " it again, or restore it from a copy."
            ) from error
        if array is None:
            raise SpecMismatch(
                f"{self._path.name} has no array {name!r} (at its top are"
                f" {', '.join(sorted(self._file))}); correct its name in the spec's data."
            )
        if reason:
            raise DataError(f"{name!r} of {self._path} {reason}; write it as a plain array.")
        return array

    def _common_length(self) -> int:
        lengths = {name: int(array.shape[0]) for name, array in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"The arrays of {self._path} differ in length ({lengths}), so their rows do not"
                " belong together; write one row per sample in each."
            )
        return next(iter(lengths.values()))

    def _stamp_now(self) -> Stamp:
        """The stamp of the open file, even if its name has come to mean another."""
        stat = os.fstat(self._file.id.get_vfd_handle())
        return Stamp(stat.st_size, stat.st_mtime_ns)

    def _check_unchanged(self) -> None:
        if (now := self._stamp_now()) != self.stamp:
            raise DatasetChanged(
                f"{self._path} was changed during the run ({self.stamp.size:,} bytes at the start,"
                f" {now.size:,} now), so what was read cannot be trusted. Restore it, or register"
                " it again and restart the run."
            )
