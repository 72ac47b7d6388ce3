"""Datasets of a run whose files were found to be the registered ones, and how each is opened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from app.spec.data import Data, DatasetsSplit
from worker.trainer.data.arrow_folder import ArrowIndex, is_arrow, read_index
from worker.trainer.data.arrow_source import ArrowSource
from worker.trainer.data.fingerprint import check_fingerprint
from worker.trainer.data.hdf5 import Layout, Stamp
from worker.trainer.data.ragged_files import find_ragged
from worker.trainer.data.read_threads import READ_THREADS
from worker.trainer.data.source import Field, Rows, Source
from worker.trainer.data.window_files import SERIES, Windows, find_windows
from worker.trainer.data.windows import open_source
from worker.trainer.errors import DataError, DatasetChanged, SpecMismatch


class Stored(Protocol):
    """Files that were found to be the registered ones. They may be sent to another process, which
    opens them there.
    """

    @property
    def read_directly(self) -> Sequence[str]:
        """Arrays that are read past the library of their format."""

    def open(self, names: Sequence[str], threads: int = READ_THREADS) -> Source:
        """The source of these arrays."""

    def reads_apart(self, names: Sequence[str]) -> bool:
        """Whether rows of these that are far apart are read by themselves: none is packed with
        others.
        """


@dataclass(frozen=True)
class Hdf5Stored:
    path: Path
    stamp: Stamp
    windows: Mapping[str, Windows]
    layout: Layout
    """Of what is read past HDF5."""

    @property
    def read_directly(self) -> Sequence[str]:
        return self.layout.names

    def open(self, names: Sequence[str], threads: int = READ_THREADS) -> Source:
        return open_source(self.path, names, self.windows, self.stamp, self.layout, threads)

    def reads_apart(self, names: Sequence[str]) -> bool:
        stored = [f"{name}/{SERIES}" if name in self.windows else name for name in names]
        return all(name in self.layout.direct for name in stored)


@dataclass(frozen=True)
class ArrowStored:
    index: ArrowIndex

    @property
    def read_directly(self) -> Sequence[str]:
        return tuple(self.index.places)

    def open(self, names: Sequence[str], threads: int = READ_THREADS) -> Source:
        return ArrowSource(self.index.of(names), threads)

    def reads_apart(self, names: Sequence[str]) -> bool:
        return self.index.packing is None


@dataclass(frozen=True)
class Checked:
    """A dataset whose files were found to be the registered ones, with the fields of the spec."""

    stored: Stored
    num_samples: int
    fields: Mapping[str, Field]
    windows: Mapping[str, Windows]
    """Of the fields that are kept as a series."""

    def open(self, threads: int = READ_THREADS) -> Source:
        return self.stored.open(tuple(self.fields), threads)

    def open_fields(self, names: Sequence[str]) -> Source:
        return self.stored.open(names)

    def open_series(self, name: str) -> Source:
        """The steps of the series that a field of windows is kept as."""
        return self.stored.open((f"{name}/{SERIES}",))

    @property
    def reads_apart(self) -> bool:
        """Whether rows that are far apart are read by themselves: none is packed with others."""
        return self.stored.reads_apart(tuple(self.fields))

    def saved_bytes(self, rows: Rows) -> int:
        """Of these samples, where windows stay the series that they slide over."""
        return sum(
            len(rows) * one.field.sample_bytes - one.kept_bytes(rows)
            for one in self.windows.values()
        )


def check_all(data: Data, datasets: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Checked]:
    """Every dataset that the spec names, by name."""
    names = [data.dataset]
    if isinstance(data.split, DatasetsSplit):
        names += [data.split.validation, *([data.split.test] if data.split.test else [])]
    checked = {name: _check(name, datasets[name], data) for name in names}
    reference = checked[data.dataset].fields
    for name, one in checked.items():
        if one.fields != reference:
            raise SpecMismatch(
                f"Dataset {name!r} has {_shapes(one.fields)} while {data.dataset!r} has"
                f" {_shapes(reference)}; a validation or test dataset needs the same arrays."
            )
    return checked


def _check(name: str, dataset: Mapping[str, Any], data: Data) -> Checked:
    path, expected = Path(dataset["path"]), dataset["fingerprint"]
    check_fingerprint(name, path, expected)
    names = tuple(dict.fromkeys((*data.inputs, *data.targets)))
    stamp = Stamp(expected["size"], expected["mtime_ns"])
    checked = _arrow(path, names, stamp) if is_arrow(path) else _hdf5(path, names, stamp)
    if not checked.num_samples:
        raise DataError(f"{path} holds no samples; write at least one row, then register it again.")
    return checked


def _hdf5(path: Path, names: Sequence[str], stamp: Stamp) -> Checked:
    for name, ragged in find_ragged(path, names).items():
        longest = int(ragged.lengths.max(initial=1))
        raise SpecMismatch(
            f"{name!r} of {path.name} is ragged: its samples have up to {longest:,} values, and the"
            " recipe reads arrays whose samples all have one shape. Pad or cut them to one length"
            " (pad_ragged of worker.trainer.data.ragged_files), register the file again and name"
            " the new array in data.inputs or data.targets."
        )
    windows = find_windows(path, tuple(names))
    source = open_source(path, names, windows, stamp)
    source.close()
    stored = Hdf5Stored(path, source.stamp, windows, source.layout)
    return Checked(stored, source.num_samples, source.fields, windows)


def _arrow(path: Path, names: Sequence[str], stamp: Stamp) -> Checked:
    index = read_index(path).of(names)
    if (index.size, index.newest_ns) != (stamp.size, stamp.mtime_ns):
        raise DatasetChanged(
            f"Files of {path} were written while the run began. Wait until that is over, register"
            " it again and restart the run."
        )
    return Checked(ArrowStored(index), index.num_samples, index.fields, {})


def _shapes(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name} {field.dtype.name}{field.shape}" for name, field in fields.items())
