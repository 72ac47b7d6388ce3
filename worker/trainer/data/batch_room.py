"""Room for a few batches, in memory that the trainer shares with its loader's processes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.trainer.data.shared_memory import SharedMemory
from worker.trainer.data.source import (
    Arrays,
    Field,
    Rows,
    bytes_per_sample,
    lengths_of,
    not_ragged,
    ragged_of,
)
from worker.trainer.data.transfer import rows_of

# Where an array begins in a page has a part in how fast a file is read into it (docs/lab-notes.md).
PAGE_BYTES = 4096


class BatchRoom:
    """`slots` slots of a batch each, at most `samples` long.

    Beside the arrays, a slot has the `rows` of the dataset that are wanted in it, in the order of
    the batch, and `filled[slot]` is the number of the batch that was last read into it, from 1.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        samples: int,
        slots: int,
        memory: SharedMemory | None = None,
    ) -> None:
        self.slots, self.sample_bytes = slots, bytes_per_sample(fields)
        self._plain_bytes, self._ragged = bytes_per_sample(not_ragged(fields)), ragged_of(fields)
        self._sizes = dict(fields), samples, slots
        row_bytes = {name: field.sample_bytes * samples for name, field in fields.items()}
        slot_bytes = sum(map(_whole_pages, (8 * samples, *row_bytes.values())))
        self.memory = memory or SharedMemory(_whole_pages(8 * slots) + slots * slot_bytes)
        taken = _Taken(self.memory.bytes)
        self.filled: NDArray[np.int64] = taken.next((slots,), np.dtype(np.int64))
        self._rows = []
        self._arrays: list[dict[str, Tensor]] = []
        for _ in range(slots):
            self._rows.append(taken.next((samples,), np.dtype(np.int64)))
            arrays = {n: taken.next((samples, *f.shape), f.dtype) for n, f in fields.items()}
            self._arrays.append({n: torch.from_numpy(array) for n, array in arrays.items()})

    def rows(self, slot: int, size: int) -> Rows:
        return self._rows[slot][:size]

    def arrays(self, slot: int, size: int) -> dict[str, Tensor]:
        """Views of a slot's first `size` samples."""
        return rows_of(self._arrays[slot], 0, size)

    def numpy(self, slot: int, size: int) -> Arrays:
        """The same, as what is read into."""
        return {name: array.numpy() for name, array in self.arrays(slot, size).items()}

    def read_bytes(self, slot: int, size: int) -> int:
        """Of what was read into a slot: a sample that was filled up is not as long as its place."""
        arrays = self.arrays(slot, size)
        return size * self._plain_bytes + sum(
            int(arrays[lengths_of(name)].sum()) * field.value.sample_bytes
            for name, field in self._ragged.items()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchRoom, (*self._sizes, self.memory)


class _Taken:
    """Takes arrays from memory, one after the other, each from a page of its own on."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory, self._at = memory, 0

    def next(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        array = self._memory[self._at : self._at + size].view(dtype).reshape(shape)
        self._at += _whole_pages(size)
        return array


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
