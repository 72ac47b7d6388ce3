"""Datasets of a run whose files were found to be the registered ones, and how each is opened."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from app.spec.data import Data, DatasetsSplit
from worker.trainer.data.feed.read_threads import READ_THREADS
from worker.trainer.data.fingerprint import check_fingerprint
from worker.trainer.data.formats.arrow_index import ArrowIndex, is_arrow, read_index
from worker.trainer.data.formats.arrow_source import ArrowSource
from worker.trainer.data.formats.hdf5 import Hdf5Source, Placement, Stamp
from worker.trainer.data.formats.hdf5_file import open_file
from worker.trainer.data.formats.packed_files import find_packed
from worker.trainer.data.formats.ragged_files import find_ragged
from worker.trainer.data.formats.window_files import (
    STEP_SECONDS,
    find_windows,
    past_features,
    target_feature,
)
from worker.trainer.data.layouts.layout import Layout
from worker.trainer.data.layouts.packed import PackedLayout
from worker.trainer.data.layouts.padded import PaddedLayout
from worker.trainer.data.layouts.plain import PlainLayout
from worker.trainer.data.layouts.windows import WindowsLayout
from worker.trainer.data.sample_source import SampleSource
from worker.trainer.data.source import NO_ROWS, Field, Rows, Source
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

    def place_of(self, sample: int) -> str:
        """Where a person finds it: its row, counted from 0, and the file's name."""

    def target_feature(self, array: str) -> int | None:
        """Returns which feature of these windows is the target's past; None if no file says so."""

    def past_features(self, array: str) -> Mapping[int, int]:
        """Returns the panel's features that are the target's past, by the dates they look back."""

    def step_seconds(self, array: str) -> float | None:
        """Seconds from one step of an array's windows to the next; None where no file says so."""


@dataclass(frozen=True)
class Hdf5Stored:
    path: Path
    stamp: Stamp
    placement: Placement
    """Of what is read past HDF5."""

    @property
    def read_directly(self) -> Sequence[str]:
        return self.placement.names

    def open(self, names: Sequence[str], threads: int = READ_THREADS) -> Source:
        return Hdf5Source(self.path, names, self.stamp, self.placement, threads)

    def reads_apart(self, names: Sequence[str]) -> bool:
        return all(name in self.placement.direct for name in names)

    def place_of(self, sample: int) -> str:
        return f"row {sample:,} of {self.path.name}"

    def target_feature(self, array: str) -> int | None:
        with open_file(self.path) as file:
            return target_feature(file, array)

    def past_features(self, array: str) -> Mapping[int, int]:
        with open_file(self.path) as file:
            return past_features(file, array)

    def step_seconds(self, array: str) -> float | None:
        with open_file(self.path) as file:
            seconds = file[array].attrs.get(STEP_SECONDS, file.attrs.get(STEP_SECONDS))
        return None if seconds is None else float(seconds)


@dataclass(frozen=True)
class ArrowStored:
    index: ArrowIndex

    @property
    def read_directly(self) -> Sequence[str]:
        return ()

    def open(self, names: Sequence[str], threads: int = READ_THREADS) -> Source:
        return ArrowSource(self.index.of(names), threads)

    def reads_apart(self, names: Sequence[str]) -> bool:
        return False  # a record batch is read whole

    def place_of(self, sample: int) -> str:
        return self.index.place_of(sample)

    def target_feature(self, array: str) -> int | None:
        return None

    def past_features(self, array: str) -> Mapping[int, int]:
        return {}

    def step_seconds(self, array: str) -> float | None:
        return None


@dataclass(frozen=True)
class Checked:
    """A dataset whose files were found to be the registered ones, with the arrays of the spec."""

    stored: Stored
    layouts: Mapping[str, Layout]
    """How each of the arrays lies, by name."""

    @property
    def num_samples(self) -> int:
        return next(iter(self.layouts.values())).num_samples

    @property
    def fields(self) -> Mapping[str, Field]:
        """What a batch has of them."""
        return {name: field for one in self.layouts.values() for name, field in one.fields.items()}

    def open(self, threads: int = READ_THREADS) -> SampleSource:
        return SampleSource(self.layouts, partial(self.stored.open, threads=threads))

    def open_some(self, names: Sequence[str]) -> SampleSource:
        """Of these arrays alone."""
        return SampleSource({name: self.layouts[name] for name in names}, self.stored.open)

    @property
    def reads_apart(self) -> bool:
        """Whether rows that are far apart are read by themselves: none is packed with others."""
        each = [name for array, one in self.layouts.items() for name in one.stored or (array,)]
        return self.stored.reads_apart(each)

    @property
    def kept_bytes(self) -> int:
        """Of a sample where it waits for its batch; on average, where samples differ in length."""
        return sum(one.kept_bytes for one in self.layouts.values())

    def saved_bytes(self, rows: Rows) -> int:
        """Less of these samples where they stay on the device together; or more, where they are
        longer than the average.
        """
        return len(rows) * self.kept_bytes - sum(
            one.bytes_of(rows) for one in self.layouts.values()
        )

    def breaks(self, names: Sequence[str]) -> Rows:
        """The samples at which another series begins in one of these arrays."""
        return np.unique(np.concatenate([NO_ROWS, *(self.layouts[name].breaks for name in names)]))

    def facts(self, name: str) -> dict[str, int]:
        """What is worth telling of the arrays that have it, by array."""
        return {array: one.facts[name] for array, one in self.layouts.items() if name in one.facts}


def check_all(data: Data, datasets: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Checked]:
    """Every dataset that the spec names, by name; first the one that is trained on."""
    named = [data.dataset]
    if isinstance(data.split, DatasetsSplit):
        named += [data.split.validation, *([data.split.test] if data.split.test else [])]
    names = tuple(dict.fromkeys((*data.inputs, *data.targets)))
    for name in named:
        check_fingerprint(name, Path(datasets[name]["path"]), datasets[name]["fingerprint"])
    found = _of_one_shape([_check(datasets[name], names) for name in named])
    checked = dict(zip(named, found, strict=True))
    reference = checked[data.dataset].fields
    for name, one in checked.items():
        if one.fields != reference:
            raise SpecMismatch(
                f"Dataset {name!r} has {_shapes(one.fields)} while {data.dataset!r} has"
                f" {_shapes(reference)}; a validation or test dataset needs the same arrays."
            )
    return checked


def check_field(data: Data, datasets: Mapping[str, Mapping[str, Any]], name: str) -> Checked:
    """The dataset that is trained on, with one number a sample alone."""
    checked = _check(datasets[data.dataset], (name,))
    found = checked.fields[name]
    if found.shape or found.dtype.kind not in "biu":
        raise SpecMismatch(
            f"{name!r} has samples of {found.dtype.name} {found.shape}; a field that splits the"
            " samples has one whole number for each: 0 training, 1 validation, 2 test."
        )
    return checked


def _of_one_shape(found: Sequence[Checked]) -> list[Checked]:
    """The same datasets with each array in the shape that it has in all of them; the first is that
    which is trained on.
    """
    alike = []
    for dataset in found:
        layouts = {
            name: one.alike([other.layouts[name] for other in found])
            for name, one in dataset.layouts.items()
        }
        alike.append(replace(dataset, layouts=layouts))
    return alike


def _check(dataset: Mapping[str, Any], names: Sequence[str]) -> Checked:
    path, expected = Path(dataset["path"]), dataset["fingerprint"]
    stamp = Stamp(expected["size"], expected["mtime_ns"])
    checked = _arrow(path, names, stamp) if is_arrow(path) else _hdf5(path, names, stamp)
    if not checked.num_samples:
        raise DataError(f"{path} holds no samples; write at least one row, then register it again.")
    return checked


def _hdf5(path: Path, names: Sequence[str], stamp: Stamp) -> Checked:
    found: dict[str, Layout] = {}
    for name, windows in find_windows(path, tuple(names)).items():
        found[name] = WindowsLayout(name, windows)
    for name, ragged in find_ragged(path, names).items():
        found[name] = PaddedLayout.of(name, ragged)
    for name, packed in find_packed(path, names).items():
        found[name] = PackedLayout.of(name, packed)
    in_rows = [name for name in names if name not in found]
    together = [[name] for one in found.values() for name in one.stored]
    placement = Placement({}, {})
    for arrays in ([in_rows] if in_rows else []) + together:
        with closing(Hdf5Source(path, arrays, stamp)) as source:
            placement |= source.placement
            if arrays is in_rows:
                for name, field in source.fields.items():
                    found[name] = PlainLayout(name, field, source.num_samples)
    layouts = {name: found[name] for name in names}
    _require_one_length(path, layouts)
    return Checked(Hdf5Stored(path, stamp, placement), layouts)


def _require_one_length(path: Path, layouts: Mapping[str, Layout]) -> None:
    lengths = {name: one.num_samples for name, one in layouts.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"The arrays of {path} differ in length ({lengths}), so their rows do not belong"
            " together; write one sample for each in every array."
        )


def _arrow(path: Path, names: Sequence[str], stamp: Stamp) -> Checked:
    index = read_index(path).of(names)
    if (index.size, index.newest_ns) != (stamp.size, stamp.mtime_ns):
        raise DatasetChanged(
            f"Files of {path} were written while the run began. Wait until that is over, register"
            " it again and restart the run."
        )
    fields, samples = index.fields, index.num_samples
    layouts = {name: PlainLayout(name, fields[name], samples) for name in names}
    return Checked(ArrowStored(index), layouts)


def _shapes(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name} {field.dtype.name}{field.shape}" for name, field in fields.items())
