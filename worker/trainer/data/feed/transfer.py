"""Moves rows from a source into device memory, in pieces, beside the computation."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from app.planning.residency import LEAST_PLACED_BYTES, PIECE_BYTES
from worker.trainer.data.batch import BatchShapes
from worker.trainer.data.batch_memory import BatchMemory
from worker.trainer.data.counters import Cause
from worker.trainer.data.feed.rows import (
    in_file_order,
    inverse,
    piece_bounds,
    piece_samples,
    read_rows,
    read_stored,
    rows_in,
)
from worker.trainer.data.layouts.layout import DeviceArray, Layout
from worker.trainer.data.source import Arrays, Field, Rows, Source, bytes_per_sample
from worker.trainer.data.tensors import rows_of

# Threads that read wait for each other after each piece, which no copy has to pass by here. Of the
# rate of a plain read, samples of 235 and 23 KiB: pieces of 64 MiB 0.72 and 0.79, 128 MiB 0.80 and
# 0.81, 256 MiB 0.84 and 0.81. A stop waits for the piece that is being read.
HOST_PIECE_BYTES = 8 * PIECE_BYTES


class Fence(Protocol):
    """Keeps those who load a slot from overwriting what is still gathered from it, and the other
    way round, where the two are queued on streams of their own.
    """

    def wait_until_used(self) -> None:
        """What is queued next to load the slot waits for the last `release`."""

    def mark_loaded(self) -> None:
        """It is loaded by all that was queued."""

    def set_places(self, places: Rows) -> None:
        """Set the first so many of the slot's places."""

    def acquire(self) -> None:
        """What is queued next to use the slot waits until it is loaded."""

    def release(self) -> None:
        """It is used by all that was queued."""


@dataclass
class Slot:
    """Room for samples on the device, in the order in which they are asked for; or, where it is
    `arranged`, in the file's, with the row of each position beside them.
    """

    arrays: Sequence[DeviceArray]
    places: Tensor
    """int64: in which row the sample at each position of the chunk lies."""
    fence: Fence
    arranged: bool = False

    @property
    def rows(self) -> dict[str, Tensor]:
        """What has a row a sample, whichever array it is of."""
        return {name: rows for one in self.arrays for name, rows in one.rows.items()}

    def fitting(self, rows: Rows) -> int:
        """How many of these samples, the first ones, have room: one at least."""
        return min(one.fitting(rows) for one in self.arrays)

    def packed_rows(self, start: int, stop: int) -> Mapping[str, int]:
        """By packed field: rows that the samples at positions [start, stop) have in a batch."""
        each = (one.packed_rows(start, stop) for one in self.arrays)
        return {name: rows for found in each for name, rows in found.items()}

    def view(self, start: int, stop: int) -> dict[str, Tensor] | None:
        """The samples at positions [start, stop) where they lie; None if they lie scattered, or
        not as a batch has them.
        """
        found: dict[str, Tensor] = {}
        for array in self.arrays:
            view = None if self.arranged else array.view(start, stop)
            if view is None:
                return None
            found |= view
        return found

    def gather(self, start: int, stop: int, out: Mapping[str, Tensor]) -> None:
        """Copy the samples at positions [start, stop) to the arrays of `out`, which are as long."""
        samples = self.places[start:stop] if self.arranged else slice(start, stop)
        for array in self.arrays:
            array.gather(samples, out)


class Device(Protocol):
    """Where batches are computed, and how a piece of the data gets there: it is staged in memory of
    the host, read, and copied.
    """

    @property
    def memory(self) -> torch.device:
        """Where slots and batches are."""

    @property
    def copy_seconds(self) -> float | None:
        """What the copies waited for so far took; None where nothing has to be copied."""

    @property
    def stages_in_place(self) -> bool:
        """Whether a piece is read to where it stays."""

    def piece_bytes(self, kinds: int) -> int:
        """Of a piece, where pieces of so many kinds of arrays take turns."""

    def stage(self, into: Mapping[str, Tensor], most: int) -> Arrays:
        """Memory of the host to read a piece to that goes into these parts of a slot; none is
        longer than `most` rows.
        """

    def copy(self, into: Mapping[str, Tensor]) -> None:
        """Copy the piece that was staged last."""

    def sync(self) -> None:
        """Wait until all pieces were copied, and give back their memory; `stage` takes it again."""

    def loading(self) -> AbstractContextManager[object]:
        """Within it, work of the device is queued behind the copies."""

    def new_fence(self, places: Tensor) -> Fence:
        """Of a slot with these places."""

    def why_waiting(self) -> Callable[[], Cause | None] | None:
        """As `Transfer.why_waiting`."""

    def close(self) -> None:
        """Wait for all that was queued to load slots."""


class HostDevice:
    """The device is the host: nothing is copied, and whatever is called is done when it returns."""

    memory = torch.device("cpu")
    copy_seconds: float | None = None
    stages_in_place = True

    def piece_bytes(self, kinds: int) -> int:
        return HOST_PIECE_BYTES

    def stage(self, into: Mapping[str, Tensor], most: int) -> Arrays:
        return {name: array.numpy() for name, array in into.items()}

    def copy(self, into: Mapping[str, Tensor]) -> None:
        """It was read to its place."""

    def sync(self) -> None:
        """Nothing is under way."""

    def loading(self) -> AbstractContextManager[object]:
        return nullcontext()

    def new_fence(self, places: Tensor) -> Fence:
        return HostFence(places)

    def why_waiting(self) -> Callable[[], Cause | None] | None:
        """Nothing but the file holds anybody up."""
        return None

    def close(self) -> None:
        """Nothing is under way."""


@dataclass
class HostFence:
    """Between two who take turns already."""

    places: Tensor

    def wait_until_used(self) -> None:
        """It was used when it was released."""

    def mark_loaded(self) -> None:
        """It is loaded when that returns."""

    def set_places(self, places: Rows) -> None:
        self.places[: len(places)] = torch.from_numpy(places)

    def acquire(self) -> None:
        """Nothing to wait for."""

    def release(self) -> None:
        """Nothing to mark."""


class Transfer:
    """A producer thread loads a slot; a consumer acquires, gathers and releases it.

    One producer at a time. Large samples are read to their places in the order of the slot where
    the device is the host; others in the order of the file, and are gathered by their places.
    """

    def __init__(self, layouts: Iterable[Layout], device: Device) -> None:
        self._layouts = tuple(layouts)
        self._fields: dict[str, Field] = {}
        for one in self._layouts:
            self._fields |= one.fields
        self._device = device

    @property
    def copy_seconds(self) -> float | None:
        """What the copies waited for so far took; None where nothing has to be copied."""
        return self._device.copy_seconds

    def new_slot(self, samples: int) -> Slot:
        """For so many samples at a time, of the mean length where they differ in it."""
        return self._slot(
            [one.chunk(samples, self._device.memory) for one in self._layouts], samples
        )

    def slot_of(self, rows: Rows, places: int) -> Slot:
        """For these samples of the file, which ascend and stay, of which so many positions can be
        arranged.
        """
        return self._slot([one.hold(rows, self._device.memory) for one in self._layouts], places)

    def _slot(self, arrays: Sequence[DeviceArray], places: int) -> Slot:
        on_device = torch.empty(places, dtype=torch.int64, device=self._device.memory)
        return Slot(arrays, on_device, self._device.new_fence(on_device))

    def new_batch(self, samples: int, shapes: BatchShapes) -> BatchMemory:
        """Memory of the device for batches of up to so many samples."""
        return BatchMemory(self._fields, shapes, samples, self._device.memory)

    def load(self, source: Source, rows: Rows, slot: Slot) -> Iterator[int]:
        """Fill the slot with these samples, in this order, without repeats; yields after each piece
        with the bytes it had.
        """
        ascending, positions = in_file_order(rows)
        slot.fence.wait_until_used()
        in_order = ascending is rows or self._is_placed(source, slot)
        to = positions if in_order and ascending is not rows else None
        share = self._device.piece_bytes(1 + sum(bool(one.stored) for one in slot.arrays))
        yield from self._load_rows(source, ascending, slot.rows, share, to)
        for array in slot.arrays:
            yield from self._load_stored(source, ascending, array, share)
            with self._device.loading():
                array.settle(len(rows))
        if in_order:
            slot.arranged = False
            slot.fence.mark_loaded()
        else:  # gathered on the device, which is many times as fast as they come
            self.arrange(slot, inverse(positions))

    def _is_placed(self, source: Source, slot: Slot) -> bool:
        """Whether scattered rows are read to their places in the order of the slot."""
        large = sum(self._fields[name].sample_bytes for name in slot.rows) >= LEAST_PLACED_BYTES
        in_rows = not any(one.stored for one in slot.arrays)
        return self._device.stages_in_place and source.places_rows and large and in_rows

    def _load_rows(
        self,
        source: Source,
        ascending: Rows,
        rows: Mapping[str, Tensor],
        piece_bytes: int,
        positions: Rows | None,
    ) -> Iterator[int]:
        """What has a row a sample, one behind another, or to these positions."""
        fields = {name: self._fields[name] for name in rows}
        if not fields:
            return
        sample_bytes, most = bytes_per_sample(fields), piece_samples(fields, piece_bytes)
        for start, stop in piece_bounds(fields, len(ascending), piece_bytes):
            into = rows if positions is not None else rows_of(rows, start, stop)
            places = None if positions is None else positions[start:stop]
            read_rows(source, ascending[start:stop], self._device.stage(into, most), places)
            self._device.copy(into)
            yield (stop - start) * sample_bytes

    def _load_stored(
        self, source: Source, ascending: Rows, array: DeviceArray, piece_bytes: int
    ) -> Iterator[int]:
        """What is read by itself of one array."""
        for name, into, runs in array.pieces(ascending, piece_bytes):
            most = rows_in(array.stored[name], piece_bytes)
            read_stored(source, name, runs, self._device.stage({name: into}, most)[name])
            self._device.copy({name: into})
            yield into.nbytes

    def end_loading(self) -> None:
        """Give back what only `load` needs; a later one takes it again."""
        self._device.sync()

    def arrange(self, slot: Slot, places: Rows) -> None:
        """Set another order for a slot whose rows were loaded in the file's."""
        slot.arranged = True
        for array in slot.arrays:
            array.arrange(places)
        slot.fence.set_places(places)

    def why_waiting(self) -> Callable[[], Cause | None] | None:
        """Asked by the consumer as it begins to wait for a slot: what tells, at each later moment
        of that wait, whether it is the device that holds it up, which still has work from before,
        or a copy; None: neither. None in its place where there can be no such thing.
        """
        return self._device.why_waiting()

    def close(self) -> None:
        """Wait for copies under way; the slots may be freed then."""
        self._device.close()
