"""Memory for a batch, which its samples are gathered into: packed arrays one behind another."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from worker.trainer.data.batch import BatchShapes, Bucket
from worker.trainer.data.source import Field
from worker.trainer.data.tensors import torch_dtype

Fields = Mapping[str, Field]


class Gatherable(Protocol):
    """Samples at positions, which can be copied to where a batch has them."""

    def packed_rows(self, start: int, stop: int) -> Bucket:
        """How many rows the samples at [start, stop) have of each packed array."""

    def gather(self, start: int, stop: int, out: Mapping[str, Tensor]) -> None:
        """Copy them to the arrays of `out`, which have room for just these."""


class BatchMemory:
    """Room for the largest batch; each array is used from its beginning."""

    def __init__(
        self, fields: Fields, shapes: BatchShapes, samples: int, device: torch.device
    ) -> None:
        self._fields, self._shapes = fields, shapes
        most = shapes.largest if samples else {}
        self._arrays = {
            name: torch.empty(
                (most.get(name, samples), *field.shape),
                dtype=torch_dtype(field.dtype),
                device=device,
            )
            for name, field in fields.items()
        }
        self._samples = 0
        self._rows: dict[str, int] = {}

    def begin(self) -> None:
        """What is added next is the first of a batch."""
        self._samples, self._rows = 0, {}

    def add(self, source: Gatherable, start: int, stop: int) -> None:
        """The samples at these positions, behind those that were added before."""
        before, packed = (self._samples, self._rows), source.packed_rows(start, stop)
        self._samples = before[0] + stop - start
        self._rows = {name: rows + before[1].get(name, 0) for name, rows in packed.items()}
        out = {
            name: array[before[1].get(name, 0) : self._rows[name]]
            if name in packed
            else array[before[0] : self._samples]
            for name, array in self._arrays.items()
        }
        source.gather(start, stop, out)
        if before[0]:
            for name, of in numbered(self._fields).items():
                out[name] += before[1].get(of, before[0])

    def batch(self) -> dict[str, Tensor]:
        """What was added, filled up; what is added next is of another batch."""
        size, rows = self._samples, self._rows
        self.begin()
        found = self.place(size, self._shapes.bucket(size, rows))
        fill_up(found, self._fields, rows, size)
        return found

    def place(self, size: int, bucket: Bucket) -> dict[str, Tensor]:
        """Returns the memory that batches of this shape come into."""
        return {name: array[: bucket.get(name, size)] for name, array in self._arrays.items()}

    def close(self) -> None:
        """Give the memory back."""
        self._arrays.clear()


def filled_up(
    arrays: Mapping[str, Tensor], fields: Fields, shapes: BatchShapes, size: int
) -> dict[str, Tensor]:
    """A batch of so many samples whose packed arrays have the rows of these and no more, in memory
    of its own as far as that changes.
    """
    rows = {name: len(array) for name, array in arrays.items() if fields[name].rows is not None}
    found = dict(arrays)
    for name, count in shapes.bucket(size, rows).items():
        found[name] = arrays[name].new_empty((count, *arrays[name].shape[1:]))
        found[name][: rows[name]] = arrays[name]
    fill_up(found, fields, rows, size)
    return found


def fill_up(arrays: Mapping[str, Tensor], fields: Fields, rows: Bucket, size: int) -> None:
    """Set what lies behind the `rows` of packed arrays: zeros; numbers of rows of a packed array
    are that of its last row, which is free; those of samples are one more than there are.
    """
    for name, count in rows.items():
        of = fields[name].numbers
        value = 0 if of is None else len(arrays[of]) - 1 if of in rows else size
        arrays[name][count:].fill_(value)


def numbered(fields: Fields) -> dict[str, str]:
    """The arrays whose values are numbers of rows, and of whose."""
    return {name: one.numbers for name, one in fields.items() if one.numbers is not None}
