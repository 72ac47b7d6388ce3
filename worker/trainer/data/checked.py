"""Datasets of a run whose files were found to be the registered ones, and how each is opened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.spec.data import Data, DatasetsSplit
from worker.trainer.data.fingerprint import check_fingerprint
from worker.trainer.data.hdf5 import Hdf5Source, Layout, Stamp
from worker.trainer.data.read_threads import READ_THREADS
from worker.trainer.data.source import Field, Rows
from worker.trainer.data.window_files import SERIES, Windows, find_windows
from worker.trainer.data.windows import WindowsSource, open_source
from worker.trainer.errors import DataError, SpecMismatch


@dataclass(frozen=True)
class Checked:
    """A dataset whose file was found to be the registered one, with the fields of the spec. It may
    be sent to another process, which opens it there.
    """

    path: Path
    stamp: Stamp
    num_samples: int
    fields: Mapping[str, Field]
    windows: Mapping[str, Windows]
    """Of the fields that are kept as a series."""
    layout: Layout
    """Of what is read past HDF5."""

    def open(self, threads: int = READ_THREADS) -> Hdf5Source | WindowsSource:
        return self.open_fields(tuple(self.fields), threads)

    def open_fields(
        self, names: Sequence[str], threads: int = READ_THREADS
    ) -> Hdf5Source | WindowsSource:
        return open_source(self.path, names, self.windows, self.stamp, self.layout, threads)

    def open_series(self, name: str) -> Hdf5Source:
        """The steps of the series that a field of windows is kept as."""
        return Hdf5Source(self.path, (f"{name}/{SERIES}",), self.stamp, self.layout)

    @property
    def reads_apart(self) -> bool:
        """Whether rows that are far apart are read by themselves: none is packed with others."""
        series = [f"{name}/{SERIES}" for name in self.windows]
        plain = [name for name in self.fields if name not in self.windows]
        return all(name in self.layout.direct for name in (*series, *plain))

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
    windows = find_windows(path, names)
    source = open_source(path, names, windows, Stamp(expected["size"], expected["mtime_ns"]))
    source.close()
    if not source.num_samples:
        raise DataError(f"{path} holds no samples; write at least one row, then register it again.")
    return Checked(path, source.stamp, source.num_samples, source.fields, windows, source.layout)


def _shapes(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name} {field.dtype.name}{field.shape}" for name, field in fields.items())
