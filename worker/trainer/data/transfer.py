"""Moves rows from a source into device memory, in pieces, beside the computation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from app.planning.residency import LEAST_PLACED_BYTES, PIECE_BYTES
from worker.trainer.data.counters import Cause
from worker.trainer.data.group_source import as_groups
from worker.trainer.data.ragged import RaggedValues, one_behind_another
from worker.trainer.data.rows import in_file_order, inverse, read_rows
from worker.trainer.data.source import (
    Arrays,
    Field,
    Rows,
    Source,
    bytes_per_sample,
    lengths_of,
    not_ragged,
    ragged_of,
)

# Threads that read wait for each other after each piece, which no copy has to pass by here. Of the
# rate of a plain read, samples of 235 and 23 KiB: pieces of 64 MiB 0.72 and 0.79, 128 MiB 0.80 and
# 0.81, 256 MiB 0.84 and 0.81. A stop waits for the piece that is being read.
HOST_PIECE_BYTES = 8 * PIECE_BYTES
ROUND_SAMPLES = 64


@dataclass(frozen=True)
class SeriesWindows:
    """Windows of one series in device memory, none of which is there by itself."""

    every: Tensor
    """(steps - length + 1, numbers of a window): views of the series that overlap."""
    starts: Tensor
    """int64: at which step each sample begins."""

    @classmethod
    def of(cls, series: Tensor, starts: Rows, length: int) -> "SeriesWindows":
        """`series` is (steps, …); each window is `length` of them."""
        numbers = series[0].numel()
        every = series.as_strided((len(series) - length + 1, length * numbers), (numbers, 1))
        return cls(every, torch.from_numpy(starts).to(series.device))

    def gather(self, samples: Tensor | slice, out: Tensor) -> None:
        torch.index_select(self.every, 0, self.starts[samples], out=out.view(len(out), -1))


@dataclass
class Slot:
    """Room for samples on the device, in the order in which they are asked for; or, where it is
    `arranged`, in the file's, with the row of each position beside them.
    """

    arrays: dict[str, Tensor]
    places: Tensor  # int64: in which row the sample at each position of the chunk lies
    arranged: bool = field(default=False, kw_only=True)
    windows: dict[str, SeriesWindows] = field(default_factory=dict, kw_only=True)
    """Arrays that are kept as a series."""
    ragged: dict[str, RaggedValues] = field(default_factory=dict, kw_only=True)
    """Arrays whose samples differ in length, in the file's order; their lengths are in `arrays`."""

    def view(self, start: int, stop: int) -> dict[str, Tensor] | None:
        """The samples at positions [start, stop) where they lie; None if they lie scattered."""
        if self.arranged or self.windows or self.ragged:
            return None
        return rows_of(self.arrays, start, stop)

    def gather(self, start: int, stop: int, out: Mapping[str, Tensor]) -> None:
        """Copy the samples at positions [start, stop) to the arrays of `out`, which are as long."""
        places = self.places[start:stop]
        for name, array in self.arrays.items():
            if self.arranged:
                torch.index_select(array, 0, places, out=out[name])
            else:
                out[name].copy_(array[start:stop])
        samples = places if self.arranged else slice(start, stop)
        for name, windows in self.windows.items():
            windows.gather(samples, out[name])
        for name, ragged in self.ragged.items():
            ragged.gather(samples, out[lengths_of(name)], out[name])


class Transfer(Protocol):
    """A producer thread loads a slot; a consumer acquires, gathers and releases it.

    One producer at a time. On CUDA the two run on streams of their own, and events in the slot
    keep the one from overwriting what the other still reads.
    """

    @property
    def copy_seconds(self) -> float | None:
        """What the copies waited for so far took; None where nothing has to be copied."""

    def new_slot(self, samples: int, places: int, room: Mapping[str, int] | None = None) -> Slot:
        """A slot for so many samples, of which so many positions can be arranged, with `room` for
        so many values of each ragged array; None: for those of samples of the mean length.
        """

    def new_batch(self, samples: int) -> dict[str, Tensor]:
        """Memory of the device for a batch, which is gathered into it."""

    def load(self, source: Source, rows: Rows, slot: Slot) -> Iterator[int]:
        """Fill the slot with these rows, in this order, without repeats; yields after each piece
        with the bytes it had.
        """

    def end_loading(self) -> None:
        """Give back what only `load` needs; a later one takes it again."""

    def arrange(self, slot: Slot, places: Rows) -> None:
        """Set another order for a slot whose rows were loaded in the file's."""

    def why_waiting(self) -> Callable[[], Cause | None] | None:
        """Asked by the consumer as it begins to wait for a slot: what tells, at each later moment
        of that wait, whether it is the device that holds it up, which still has work from before,
        or a copy; None: neither. None in its place where there can be no such thing.
        """

    def acquire(self, slot: Slot) -> None:
        """Called by the consumer before it gathers."""

    def release(self, slot: Slot) -> None:
        """Called by the consumer when it has gathered all it wants, and used what it viewed."""

    def close(self) -> None:
        """Wait for copies under way; the slots may be freed then."""


def fitting(source: Source, rows: Rows, slot: Slot) -> int:
    """How many of these rows, the first ones, have room in the slot: one at least."""
    count = len(rows)
    for name, values in slot.ragged.items():
        ends = np.cumsum(as_groups(source).ragged[name].lengths_at(rows))
        count = min(count, int(np.searchsorted(ends, values.room, side="right")))
    return count


def rows_of(arrays: Mapping[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """Views of rows [start, stop) of each."""
    return {name: array[start:stop] for name, array in arrays.items()}


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


def empty_ragged(
    fields: Mapping[str, Field],
    samples: int,
    room: Mapping[str, int] | None,
    device: str | torch.device,
) -> dict[str, RaggedValues]:
    """Of the fields that are ragged; `room` as for `Transfer.new_slot`."""
    return {
        name: RaggedValues.empty(
            field,
            torch_dtype(field.dtype),
            field.room(samples) if room is None else room[name],
            samples,
            device,
        )
        for name, field in ragged_of(fields).items()
    }


def made_up(
    fields: Mapping[str, Field], samples: int, device: str | torch.device
) -> dict[str, Tensor]:
    """A batch of nothing but ones, in the shapes and types of the data."""
    batch = empty_arrays(fields, samples, device, pin_memory=False)
    # Not zeros, which a host may hand out without memory behind them.
    return {name: array.fill_(1) for name, array in batch.items()}


def piece_bounds(
    fields: Mapping[str, Field], samples: int, piece_bytes: int | None = None
) -> Iterator[tuple[int, int]]:
    """`samples` cut into pieces of about so many bytes; None: PIECE_BYTES.

    The copy engine works first come, first served: small pieces let other copies pass in between.
    """
    size = piece_samples(fields, piece_bytes or PIECE_BYTES)
    for start in range(0, samples, size):
        yield start, min(start + size, samples)


def piece_samples(fields: Mapping[str, Field], piece_bytes: int) -> int:
    """Rounded, so that pieces end where chunks of a packed file mostly do: one that lies in two
    pieces is unpacked twice.
    """
    samples = max(1, piece_bytes // bytes_per_sample(fields))
    return samples - samples % ROUND_SAMPLES if samples > ROUND_SAMPLES else samples


class HostTransfer:
    """The device is the host: large samples are read to their places in the order of the slot."""

    copy_seconds: float | None = None

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields, self._plain = fields, not_ragged(fields)
        self._sample_bytes = bytes_per_sample(self._plain)

    def new_slot(self, samples: int, places: int, room: Mapping[str, int] | None = None) -> Slot:
        arrays = empty_arrays(self._plain, samples, "cpu", pin_memory=False)
        ragged = empty_ragged(self._fields, samples, room, "cpu")
        return Slot(arrays, torch.empty(places, dtype=torch.int64), ragged=ragged)

    def new_batch(self, samples: int) -> dict[str, Tensor]:
        return empty_arrays(self._fields, samples, "cpu", pin_memory=False)

    def load(self, source: Source, rows: Rows, slot: Slot) -> Iterator[int]:
        host: Arrays = {name: array.numpy() for name, array in slot.arrays.items()}
        ascending, positions = in_file_order(rows)
        large = self._sample_bytes >= LEAST_PLACED_BYTES and not slot.ragged
        placed = source.places_rows and large
        for start, stop in piece_bounds(self._plain, len(rows), HOST_PIECE_BYTES):
            out = host if placed else {name: array[start:stop] for name, array in host.items()}
            to = positions[start:stop] if placed else None
            read_rows(source, ascending[start:stop], out, to)
            yield (stop - start) * self._sample_bytes
        for name, values in slot.ragged.items():
            yield from _load_values(source, ascending, name, values)
            values.set_begins(slot.arrays[lengths_of(name)][: len(rows)])
        slot.arranged = False
        if not placed and ascending is not rows:
            self.arrange(slot, inverse(positions))

    def end_loading(self) -> None:
        """Nothing is between the file and the slot."""

    def arrange(self, slot: Slot, places: Rows) -> None:
        slot.arranged = True
        slot.places[: len(places)] = torch.from_numpy(places)

    def why_waiting(self) -> None:
        """Nothing but the file holds anybody up."""

    def acquire(self, slot: Slot) -> None:
        """Nothing to wait for: gathering on the host is done when it returns."""

    def release(self, slot: Slot) -> None:
        """Nothing to mark."""

    def close(self) -> None:
        """Nothing is under way."""


def _load_values(source: Source, rows: Rows, name: str, values: RaggedValues) -> Iterator[int]:
    """Of these samples, which ascend."""
    groups, host = as_groups(source), values.values.numpy()
    most = max(1, HOST_PIECE_BYTES // host[:1].nbytes)
    for places, extents in one_behind_another(groups.ragged[name], rows, most):
        groups.read_values(name, extents, host[places])
        yield host[places].nbytes
