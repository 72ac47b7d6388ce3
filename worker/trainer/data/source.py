"""What a source of samples is: named arrays, all with one row per sample."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Rows = NDArray[np.int64]
Extent = tuple[int, int]
"""Rows [start, stop)."""


@dataclass(frozen=True)
class Field:
    """One named array; `shape` is that of one sample, without the leading axis of samples."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def sample_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Source(Protocol):
    """Samples in a file. One thread opens it, reads it and closes it."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The arrays that `read` gives."""

    @property
    def num_samples(self) -> int:
        """Rows of every field."""

    def read(self, extents: Sequence[Extent], out: Mapping[str, NDArray[Any]]) -> None:
        """Read the rows of each extent in turn into the first places of each field's out[name],
        shape (rows, *field.shape), C-contiguous.

        Raises DataError when they cannot be read, DatasetChanged when the file was changed
        since it was opened.
        """

    def close(self) -> None:
        """Give the file back; closing twice is harmless."""


# A source is opened on the thread that reads it, so what is handed around is how to open it.
OpenSource = Callable[[], Source]


def bytes_per_sample(fields: Mapping[str, Field]) -> int:
    return sum(field.sample_bytes for field in fields.values())
