"""Datasets of a run whose files were found to be the registered ones, and how each is opened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from app.spec.data import Data, DatasetsSplit
from worker.trainer.data.arrow_folder import ArrowIndex, is_arrow, read_index
from worker.trainer.data.arrow_source import ArrowSource
from worker.trainer.data.fingerprint import check_fingerprint
from worker.trainer.data.group_source import Groups, open_source
from worker.trainer.data.hdf5 import Layout, Stamp
from worker.trainer.data.ragged_files import Ragged, find_ragged
from worker.trainer.data.read_threads import READ_THREADS
from worker.trainer.data.source import Field, RaggedField, Rows, Source, kept_per_sample
from worker.trainer.data.window_files import SERIES, find_windows
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
    groups: Groups
    layout: Layout
    """Of what is read past HDF5."""

    @property
    def read_directly(self) -> Sequence[str]:
        return self.layout.names

    def open(self, names: Sequence[str], threads: int = READ_THREADS) -> Source:
        return open_source(self.path, names, self.groups, self.stamp, self.layout, threads)

    def reads_apart(self, names: Sequence[str]) -> bool:
        return all(self.groups.stored(name) in self.layout.direct for name in names)


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
    """A dataset whose files were found to be the registered ones, with the arrays of the spec."""

    stored: Stored
    num_samples: int
    names: Sequence[str]
    """Of the arrays."""
    fields: Mapping[str, Field]
    """What is read of them."""
    groups: Groups = Groups()  # noqa: RUF009 - it is frozen
    """Those of the arrays that are kept as a series, or as values and offsets."""

    def open(self, threads: int = READ_THREADS) -> Source:
        return self.stored.open(self.names, threads)

    def open_fields(self, names: Sequence[str]) -> Source:
        return self.stored.open(names)

    def open_series(self, name: str) -> Source:
        """The steps of the series that a field of windows is kept as."""
        return self.stored.open((f"{name}/{SERIES}",))

    @property
    def reads_apart(self) -> bool:
        """Whether rows that are far apart are read by themselves: none is packed with others."""
        return self.stored.reads_apart(self.names)

    @property
    def kept_bytes(self) -> int:
        """Of a sample where it waits for its batch; on average, where samples differ in length."""
        return kept_per_sample(self.fields)

    def saved_bytes(self, rows: Rows) -> int:
        """Less of these samples on the device, where windows stay the series that they slide over;
        or more, where they are longer than the average.
        """
        series = sum(
            len(rows) * one.field.sample_bytes - one.kept_bytes(rows)
            for one in self.groups.windows.values()
        )
        return series + sum(
            len(rows) * one.field.mean_bytes
            - int(one.lengths_at(rows).sum()) * one.value.sample_bytes
            for one in self.groups.ragged.values()
        )


def check_all(data: Data, datasets: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Checked]:
    """Every dataset that the spec names, by name."""
    named = [data.dataset]
    if isinstance(data.split, DatasetsSplit):
        named += [data.split.validation, *([data.split.test] if data.split.test else [])]
    names = tuple(dict.fromkeys((*data.inputs, *data.targets)))
    ragged: dict[str, dict[str, Ragged]] = {}
    for name in named:
        path = Path(datasets[name]["path"])
        check_fingerprint(name, path, datasets[name]["fingerprint"])
        ragged[name] = {} if is_arrow(path) else find_ragged(path, names)
    ragged = _of_one_shape(ragged, data.dataset)
    checked = {name: _check(datasets[name], names, ragged[name]) for name in named}
    reference = checked[data.dataset].fields
    for name, one in checked.items():
        if one.fields != reference:
            raise SpecMismatch(
                f"Dataset {name!r} has {_shapes(one.fields)} while {data.dataset!r} has"
                f" {_shapes(reference)}; a validation or test dataset needs the same arrays."
            )
    return checked


def _of_one_shape(
    found: Mapping[str, Mapping[str, Ragged]], training: str
) -> dict[str, dict[str, Ragged]]:
    """The ragged arrays of each dataset, as long as the longest of all: a model has one input
    shape, whichever part a batch comes from. Room is made by the training's mean.
    """
    alike = {name: dict(arrays) for name, arrays in found.items()}
    for array, one in found[training].items():
        those = {name: arrays[array] for name, arrays in found.items() if array in arrays}
        longest = max(other.field.longest for other in those.values())
        for name, other in those.items():
            shape = (longest, *other.value.shape)
            field = RaggedField(shape, other.field.dtype, one.field.mean_bytes)
            alike[name][array] = replace(other, field=field)
    return alike


def _check(
    dataset: Mapping[str, Any], names: Sequence[str], ragged: Mapping[str, Ragged]
) -> Checked:
    path, expected = Path(dataset["path"]), dataset["fingerprint"]
    stamp = Stamp(expected["size"], expected["mtime_ns"])
    checked = _arrow(path, names, stamp) if is_arrow(path) else _hdf5(path, names, stamp, ragged)
    if not checked.num_samples:
        raise DataError(f"{path} holds no samples; write at least one row, then register it again.")
    return checked


def _hdf5(path: Path, names: Sequence[str], stamp: Stamp, ragged: Mapping[str, Ragged]) -> Checked:
    groups = Groups(find_windows(path, tuple(names)), ragged)
    source = open_source(path, names, groups, stamp)
    source.close()
    stored = Hdf5Stored(path, source.stamp, groups, source.layout)
    return Checked(stored, source.num_samples, names, source.fields, groups)


def _arrow(path: Path, names: Sequence[str], stamp: Stamp) -> Checked:
    index = read_index(path).of(names)
    if (index.size, index.newest_ns) != (stamp.size, stamp.mtime_ns):
        raise DatasetChanged(
            f"Files of {path} were written while the run began. Wait until that is over, register"
            " it again and restart the run."
        )
    return Checked(ArrowStored(index), index.num_samples, names, index.fields)


def _shapes(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name} {field.dtype.name}{field.shape}" for name, field in fields.items())
