"""Moves rows from a source into device memory, in pieces, beside the computation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from app.spec.residency import PIECE_BYTES
from worker.trainer.data.rows import read_rows
from worker.trainer.data.source import Arrays, Field, Rows, Source, bytes_per_sample


@dataclass
class Slot:
    """Room for samples on the device: the rows of a chunk in the file's order."""

    arrays: dict[str, Tensor]
    places: Tensor  # int64: in which row the sample at each position of the chunk lies

    def gather(self, start: int, stop: int) -> dict[str, Tensor]:
        """The samples at positions [start, stop) of the chunk, in memory of their own."""
        places = self.places[start:stop]
        return {name: array.index_select(0, places) for name, array in self.arrays.items()}


class Transfer(Protocol):
    """A producer thread loads and arranges a slot; a consumer acquires, gathers and releases it.

    One producer at a time. On CUDA the two run on streams of their own, and events in the slot
    keep the one from overwriting what the other still reads.
    """

    @property
    def copy_seconds(self) -> float | None:
        """What the copies waited for so far took; None where nothing has to be copied."""

    def new_slot(self, samples: int, places: int) -> Slot:
        """A slot for so many samples, of which so many positions can be arranged."""

    def load(self, source: Source, ascending: Rows, slot: Slot) -> Iterator[int]:
        """Read these rows into the slot; yields after each piece with the bytes it had."""

    def end_loading(self) -> None:
        """Give back what only `load` needs; a later one takes it again."""

    def arrange(self, slot: Slot, places: Rows) -> None:
        """Set the order in which the slot's rows are gathered; the slot is full then."""

    def acquire(self, slot: Slot) -> None:
        """Called by the consumer before it gathers."""

    def release(self, slot: Slot) -> None:
        """Called by the consumer when it has gathered all it wants."""

    def close(self) -> None:
        """Wait for copies under way; the slots may be freed then."""


def torch_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def empty_arrays(
    fields: Mapping[str, Field], samples: int, device: str | torch.device, *, pin_memory: bool
) -> dict[str, Tensor]:
    return {
        name: torch.empty(
            (samples, *field.shape),
            dtype=torch_dtype(field.dtype),
            device=device,
            pin_memory=pin_memory,
        )
        for name, field in fields.items()
    }


def piece_bounds(fields: Mapping[str, Field], samples: int) -> Iterator[tuple[int, int]]:
    """`samples` cut into pieces of about PIECE_BYTES.

    The copy engine works first come, first served: small pieces let other copies pass in between.
    """
    size = piece_samples(fields)
    for start in range(0, samples, size):
        yield start, min(start + size, samples)


def piece_samples(fields: Mapping[str, Field]) -> int:
    return max(1, PIECE_BYTES // bytes_per_sample(fields))


class HostTransfer:
    """The device is the host: rows are read straight into the slot."""

    copy_seconds: float | None = None

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        self._sample_bytes = bytes_per_sample(fields)

    def new_slot(self, samples: int, places: int) -> Slot:
        arrays = empty_arrays(self._fields, samples, "cpu", pin_memory=False)
        return Slot(arrays, torch.empty(places, dtype=torch.int64))

    def load(self, source: Source, ascending: Rows, slot: Slot) -> Iterator[int]:
        host: Arrays = {name: array.numpy() for name, array in slot.arrays.items()}
        for start, stop in piece_bounds(self._fields, len(ascending)):
            out = {name: array[start:stop] for name, array in host.items()}
            read_rows(source, ascending[start:stop], out)
            yield (stop - start) * self._sample_bytes

    def end_loading(self) -> None:
        """Nothing is between the file and the slot."""

    def arrange(self, slot: Slot, places: Rows) -> None:
        slot.places[: len(places)] = torch.from_numpy(places)

    def acquire(self, slot: Slot) -> None:
        """Nothing to wait for: gathering on the host is done when it returns."""

    def release(self, slot: Slot) -> None:
        """Nothing to mark."""

    def close(self) -> None:
        """Nothing is under way."""
