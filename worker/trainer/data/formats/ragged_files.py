"""Files that keep samples of different lengths: what lies in one, how it is checked and written.

A group in place of an array, with the attribute `ragged` = 1, holds the arrays `values` (total, …)
and `offsets` (samples + 1,), int64: sample i is values[offsets[i] : offsets[i + 1]].
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.formats.hdf5_file import (
    USABLE_DTYPES,
    find_node,
    hard_link,
    is_marked,
    read_marked,
    unusable_because,
)
from worker.trainer.data.formats.window_files import PIECE_BYTES
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError

RAGGED, VALUES, OFFSETS = "ragged", "values", "offsets"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Ragged:
    """Samples of different lengths: where each begins among the values, and what one value is."""

    offsets: Rows
    """(samples + 1,), from 0 to the number of values, never falling."""
    value: Field
    """One value."""

    @property
    def longest(self) -> int:
        """Values of the longest sample, at least 1."""
        return int(np.diff(self.offsets).max(initial=1))

    @property
    def mean_bytes(self) -> int:
        """Of the values of a sample, rounded up."""
        values_bytes = int(self.offsets[-1]) * self.value.sample_bytes
        return -(-values_bytes // max(1, len(self.offsets) - 1))

    def lengths_at(self, rows: Rows) -> Rows:
        """How many values these samples have."""
        return self.offsets[rows + 1] - self.offsets[rows]

    @property
    def num_samples(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Rows:
        """(samples,): how many values each sample has, which may be none."""
        return np.diff(self.offsets)


class RaggedArray:
    """A ragged array of an open file, when it is looked into; its rows are its samples."""

    def __init__(self, group: h5py.Group, name: str) -> None:
        """DataError where the group `name` does not hold together."""
        self.ragged = read_ragged(group, name)
        self.values: h5py.Dataset = group[VALUES]
        self.parts = {VALUES: self.values}
        self.shape = (self.ragged.num_samples, *self.ragged.value.shape)
        """(samples, *shape of one value)."""
        self.dtype = self.ragged.value.dtype


def is_ragged(node: Any) -> bool:
    """Whether a group of the file stands for samples of different lengths."""
    return is_marked(node, RAGGED)


def find_ragged(path: Path, names: Sequence[str]) -> dict[str, Ragged]:
    """Those of `names` that the file keeps so. DataError where one cannot be used."""
    return read_marked(path, names, RAGGED, read_ragged, "ragged arrays")


def read_ragged(group: h5py.Group, name: str) -> Ragged:
    """What the group `name` says. DataError where it does not hold together."""
    version = group.attrs[RAGGED]
    if np.ndim(version) != 0 or version != VERSION:
        raise _bad(name, f"has the attribute {RAGGED} = {version}, and only {VERSION} is known")
    return stretches(group, VALUES, OFFSETS, lambda what: _bad(name, what))


def stretches(
    group: h5py.Group, of_values: str, of_offsets: str, bad: Callable[[str], DataError]
) -> Ragged:
    """Those of one array of the group that begin where another says. `bad` makes the error where
    they do not hold together, of the end of a sentence.
    """
    values, offsets = hard_link(group, of_values), hard_link(group, of_offsets)
    for part, array in ((of_values, values), (of_offsets, offsets)):
        if not isinstance(array, h5py.Dataset):
            raise bad(f"has no array {part!r} of its own")
        if (reason := unusable_because(array)) is not None:
            raise bad(f"has an array {part!r} that {reason}")
    if offsets.ndim != 1 or offsets.dtype != np.int64 or not len(offsets):
        raise bad(f"has {of_offsets!r} that are not one int64 for each sample, and one more")
    begins, total = offsets[:], int(values.shape[0])
    if begins[0] != 0:
        raise bad(f"has {of_offsets!r} that begin with {begins[0]:,}, not with 0")
    # Compared, not subtracted: a difference of two int64 may wrap around.
    if len(falls := np.flatnonzero(begins[1:] < begins[:-1])):
        raise bad(f"has {of_offsets!r} that fall: sample {falls[0]:,} would end before it begins")
    if begins[-1] != total:
        raise bad(f"has {of_offsets!r} that end with {begins[-1]:,}, and {total:,} {of_values}")
    return Ragged(begins, Field(tuple(values.shape[1:]), values.dtype))


def write_ragged(file: h5py.File, name: str, samples: Sequence[NDArray[Any]]) -> h5py.Group:
    """Write a group `name` of samples (length, …), which may differ in length alone.

    DataError, with nothing written, where there is none or they differ in more.
    """
    kinds = {(sample.shape[1:], sample.dtype) for sample in samples if sample.ndim}
    if len(kinds) != 1 or not all(sample.ndim for sample in samples):
        raise DataError(
            f"The samples of {name!r} cannot be written as one ragged array: there has to be at"
            " least one, each with an axis of its length, and all of one type and of one shape"
            " behind that axis."
        )
    [(shape, dtype)] = kinds
    if dtype.name not in USABLE_DTYPES or not dtype.isnative or 0 in shape:
        raise DataError(
            f"The samples of {name!r} have values of {dtype.str} {shape}, and a ragged array is of"
            " native booleans, integers or floats, at least one in each value."
        )
    offsets = np.cumsum([0, *(len(sample) for sample in samples)], dtype=np.int64)
    group = file.create_group(name)
    group.attrs[RAGGED] = VERSION
    group[OFFSETS] = offsets
    values = group.create_dataset(VALUES, (int(offsets[-1]), *shape), dtype)
    ragged = Ragged(offsets, Field(shape, dtype))
    for start, stop in _pieces(ragged, 0):
        if offsets[start] < offsets[stop]:
            values[offsets[start] : offsets[stop]] = np.concatenate(samples[start:stop])
    return group


def pad_ragged(
    file: h5py.File,
    name: str,
    padded: str,
    length: int,
    fill: float = 0,
    into: h5py.File | None = None,
) -> None:
    """Write an array `padded` (samples, length, …) of the ragged array `name`: shorter samples are
    filled up behind their last value, of longer ones the first values are kept. `into`: the file to
    write it to; None: the same.

    DataError where `name` is no ragged array that can be used, or `length` is none.
    """
    if length < 1:
        raise DataError(f"Samples cannot be padded to a length of {length}; it is 1 at least.")
    group = find_node(file, name)
    if not is_ragged(group):
        raise DataError(f"{file.filename} has no ragged array {name!r}; name one that it has.")
    ragged = read_ragged(group, name)
    shape = (ragged.num_samples, length, *ragged.value.shape)
    out = (file if into is None else into).create_dataset(padded, shape, ragged.value.dtype)
    for start, stop in _pieces(ragged, length):
        offsets = ragged.offsets[start : stop + 1]
        rows = np.full((stop - start, *shape[1:]), fill, out.dtype)
        kept = np.arange(length) < np.diff(offsets)[:, None]
        taken = (offsets[:-1, None] - offsets[0] + np.arange(length))[kept]
        rows[kept] = group[VALUES][offsets[0] : offsets[-1]][taken]
        out[start:stop] = rows


def _pieces(ragged: Ragged, length: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of samples that take PIECE_BYTES at most were each as long as the longest, and
    `length` at least; of one sample where one takes more.
    """
    longest = max(length, ragged.longest)
    # Padding holds an index of eight bytes for each value.
    at_once = max(1, PIECE_BYTES // (longest * max(8, ragged.value.sample_bytes)))
    for start in range(0, ragged.num_samples, at_once):
        yield start, min(start + at_once, ragged.num_samples)


def _bad(name: str, what: str) -> DataError:
    return DataError(
        f"The ragged array {name!r} cannot be used: the group {what}. Write the group again, with"
        f" {VALUES!r} (all values, one sample behind another) and {OFFSETS!r} (int64: where each"
        " sample begins, and where the last one ends)."
    )
