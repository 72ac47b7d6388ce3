"""What a source of samples is: named arrays, all with one row per sample."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from app.spec.recipe import Array

Arrays = dict[str, NDArray[Any]]
Rows = NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, np.int64)


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
    """One named array; `shape` is that of one sample, without the leading axis of samples; of a
    packed array, that of one of its rows.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: float | None = None
    """Of a packed array: how many rows a sample has on average. In a batch those of all samples lie
    one behind another, and their total is rounded up. None: each sample is a row.
    """
    numbers: str | None = None
    """Of whose rows these are the numbers: counted in a batch, not in the sample. None: of none."""
    target_feature: int | None = None
    """Index of the feature of these windows that is the target's own past; None if not known."""

    @property
    def sample_bytes(self) -> int:
        """Of a packed array on average."""
        row = prod(self.shape) * self.dtype.itemsize
        return row if self.rows is None else ceil(row * self.rows)


LENGTH = Field((), np.dtype(np.int64))


def lengths_of(name: str) -> str:
    """The field beside a ragged array, whose samples differ in length: how many values each has,
    with zeros behind them. No array can have this name: of the group of a ragged one, nothing else
    is read.
    """
    return f"{name}/lengths"


def at_full_length(name: str, field: Field) -> dict[str, Field]:
    """The fields of a ragged array whose samples are all as long as the longest."""
    return {name: field, lengths_of(name): LENGTH}


def arrays_of(fields: Mapping[str, Field]) -> dict[str, Array]:
    """As a recipe is told of them."""
    return {
        name: Array(
            field.shape,
            str(field.dtype),
            lengths_of(name) in fields,
            field.rows,
            target_feature=field.target_feature,
        )
        for name, field in fields.items()
    }


def fields_of(arrays: Mapping[str, Array]) -> dict[str, Field]:
    """What a batch has, where a recipe says so."""
    return {name: Field(one.shape, np.dtype(one.dtype), one.rows) for name, one in arrays.items()}


def in_rows(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Those of which each sample is a row."""
    return {name: field for name, field in fields.items() if field.rows is None}


class Source(Protocol):
    """Samples in a file. One thread opens it, reads it and closes it."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The arrays that have a row a sample, by name."""

    @property
    def num_samples(self) -> int:
        """Rows of every field."""

    @property
    def places_rows(self) -> bool:
        """Whether many extents of a row each are read as fast as few of many."""

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """Read the rows of each extent into their places in out[name], shape
        (places, *field.shape), C-contiguous: of each field, or of one array that others are
        stored as.

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
