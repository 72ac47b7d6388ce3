"""What a source of samples is: named arrays, all with one row per sample."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Rows = NDArray[np.int64]


class Extent(NamedTuple):
    """Rows [start, stop) of a file or a chunk, and the place of the first in the output."""

    start: int
    stop: int
    place: int


@dataclass(frozen=True)
class Extents:
    """Many of them, which ascend. As arrays: of scattered rows, an object each would take longer
    to make than the row to be read.
    """

    starts: Rows
    stops: Rows
    places: Rows

    @classmethod
    def of(cls, *each: Extent) -> "Extents":
        return cls(*np.array(each, np.int64).reshape(-1, 3).T)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Extent]:
        lists = self.starts.tolist(), self.stops.tolist(), self.places.tolist()
        return itertools.starmap(Extent, zip(*lists, strict=True))


@dataclass(frozen=True)
class Field:
    """One named array; `shape` is that of one sample, without the leading axis of samples."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def sample_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def kept_bytes(self) -> int:
        """Of a sample where it waits for its batch."""
        return self.sample_bytes


@dataclass(frozen=True)
class RaggedField(Field):
    """A named array whose samples differ in length: `shape` begins with the longest.

    In a batch each sample has that shape, with zeros behind its end, and `lengths_of(name)` is a
    field beside it that says where that is. Until then samples lie one behind another.
    """

    mean_bytes: int
    """Of the values of a sample, rounded up."""

    @property
    def longest(self) -> int:
        return self.shape[0]

    @property
    def value(self) -> Field:
        return Field(self.shape[1:], self.dtype)

    @property
    def kept_bytes(self) -> int:
        """With the place where it begins."""
        return self.mean_bytes + LENGTH.sample_bytes

    def room(self, samples: int) -> int:
        """Values that so many samples have, were they of the mean length; those of the longest
        at least.
        """
        return max(self.longest, -(-samples * self.mean_bytes // self.value.sample_bytes))


LENGTH = Field((), np.dtype(np.int64))


def lengths_of(name: str) -> str:
    """The field that says how many values the samples of a ragged array have. No array can have
    this name: of the group of a ragged one, nothing else is read.
    """
    return f"{name}/lengths"


def at_full_length(name: str, field: Field) -> dict[str, Field]:
    """The fields of a ragged array whose samples are all as long as the longest."""
    return {
        name: RaggedField(field.shape, field.dtype, field.sample_bytes),
        lengths_of(name): LENGTH,
    }


def ragged_of(fields: Mapping[str, Field]) -> dict[str, RaggedField]:
    """Those whose samples differ in length."""
    return {name: field for name, field in fields.items() if isinstance(field, RaggedField)}


def not_ragged(fields: Mapping[str, Field]) -> dict[str, Field]:
    """The others; the lengths of the ragged ones are among them."""
    ragged = ragged_of(fields)
    return {name: field for name, field in fields.items() if name not in ragged}


class Source(Protocol):
    """Samples in a file. One thread opens it, reads it and closes it."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The arrays that `read` gives."""

    @property
    def num_samples(self) -> int:
        """Rows of every field."""

    @property
    def places_rows(self) -> bool:
        """Whether many extents of a row each are read as fast as few of many."""

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """Read the rows of each extent into their places in each field's out[name],
        shape (places, *field.shape), C-contiguous.

        Raises DataError when they cannot be read, DatasetChanged when the file was changed
        since it was opened.
        """

    def close(self) -> None:
        """Give the file back; closing twice is harmless."""


# A source is opened on the thread that reads it, so what is handed around is how to open it.
OpenSource = Callable[[], Source]


def bytes_per_sample(fields: Mapping[str, Field]) -> int:
    """In a batch."""
    return sum(field.sample_bytes for field in fields.values())


def kept_per_sample(fields: Mapping[str, Field]) -> int:
    """Bytes where samples wait for their batch."""
    return sum(field.kept_bytes for field in fields.values())
