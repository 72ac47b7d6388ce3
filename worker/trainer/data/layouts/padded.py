"""Padded: samples that differ in length, filled up to the longest in a batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.planning.residency import PIECE_BYTES
from worker.trainer.data.feed.rows import each_row, read_stored, rows_in
from worker.trainer.data.formats.ragged_files import VALUES, Ragged
from worker.trainer.data.layouts.layout import Layout, Piece
from worker.trainer.data.source import LENGTH, NO_ROWS, Extents, Field, Rows, Source, lengths_of
from worker.trainer.data.tensors import empty_arrays, take_steps
from worker.trainer.errors import DataError


@dataclass(frozen=True)
class PaddedLayout:
    """A sample is a stretch of values, with zeros behind its end in a batch, and its length beside
    it. Until then samples lie one behind another.
    """

    name: str
    ragged: Ragged
    longest: int
    """Values of the longest sample that a batch may have."""
    mean_bytes: int
    """Of the values of a sample, rounded up."""

    @classmethod
    def of(cls, name: str, ragged: Ragged) -> "PaddedLayout":
        return cls(name, ragged, ragged.longest, ragged.mean_bytes)

    @property
    def fields(self) -> Mapping[str, Field]:
        value = self.ragged.value
        filled_up = Field((self.longest, *value.shape), value.dtype)
        return {self.name: filled_up, lengths_of(self.name): LENGTH}

    @property
    def stored(self) -> Mapping[str, Field]:
        return {f"{self.name}/{VALUES}": self.ragged.value}

    @property
    def num_samples(self) -> int:
        return self.ragged.num_samples

    @property
    def kept_bytes(self) -> int:
        """With its length, and the place where it begins."""
        return self.mean_bytes + 2 * LENGTH.sample_bytes

    @property
    def spare_bytes(self) -> int:
        """As many values as the longest has follow wherever a sample begins."""
        return self.longest * self.ragged.value.sample_bytes

    @property
    def facts(self) -> Mapping[str, int]:
        return {"longest": self.longest}

    @property
    def breaks(self) -> Rows:
        return NO_ROWS

    def bytes_of(self, rows: Rows) -> int:
        values = int(self.ragged.lengths_at(rows).sum()) * self.ragged.value.sample_bytes
        return values + 2 * LENGTH.sample_bytes * len(rows)

    def alike(self, each: Sequence[Layout]) -> "PaddedLayout":
        """As long as the longest of all: a model has one input shape, whichever part a batch
        comes from. Room is made by the training's mean.
        """
        same = [one for one in each if isinstance(one, PaddedLayout)]
        longest = max(one.longest for one in same)
        return replace(self, longest=longest, mean_bytes=same[0].mean_bytes)

    def read(self, source: Source, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        if not out.keys() & self.fields.keys():
            return
        rows, places = each_row(extents)
        lengths = self.ragged.lengths_at(rows)
        if lengths_of(self.name) in out:
            out[lengths_of(self.name)][places] = lengths
        if self.name in out:
            filled = out[self.name]
            for place, length in zip(places.tolist(), lengths.tolist(), strict=True):
                filled[place, length:] = 0
            [name], values = self.stored, filled.reshape(-1, *self.ragged.value.shape)
            read_stored(source, name, self._filled_up(rows, places), values)

    def _filled_up(self, rows: Rows, places: Rows) -> Extents:
        """The values of these samples, each from its place on, where places are as far apart as
        the longest is long.
        """
        begins, lengths = self.ragged.offsets[rows], self.ragged.lengths_at(rows)
        some = lengths > 0
        ends = begins + lengths
        return Extents(begins[some], ends[some], places[some] * self.longest)

    def pieces_to_sum(self, source: Source, rows: Rows, *, pooled: bool) -> Iterator[Piece]:
        """The values, whatever sample they are of."""
        [name] = self.stored
        return values_to_sum(source, self.name, (name, self.ragged), rows)

    def rows_in_batch(self, rows: Rows) -> Mapping[str, Rows]:
        return {}

    def packed_fields(self, source: Source, rows: Rows) -> Mapping[str, NDArray[Any]]:
        return {}

    def hold(self, rows: Rows, device: torch.device) -> "DeviceValues":
        return self._device_values(int(self.ragged.lengths_at(rows).sum()), len(rows), device)

    def chunk(self, samples: int, device: torch.device) -> "DeviceValues":
        """With room for what so many samples have that are of the mean length; those of the longest
        at least.
        """
        capacity = -(-samples * self.mean_bytes // self.ragged.value.sample_bytes)
        return self._device_values(max(self.longest, capacity), samples, device)

    def _device_values(self, capacity: int, samples: int, device: torch.device) -> "DeviceValues":
        steps = torch.arange(self.longest, device=device)
        [values] = empty_arrays(
            self.stored, capacity + self.longest, device, pin_memory=False
        ).values()
        places = {lengths_of(self.name): LENGTH, "begins": LENGTH}
        lengths, begins = empty_arrays(places, samples, device, pin_memory=False).values()
        return DeviceValues(self, values, lengths, begins, steps)


def values_to_sum(
    source: Source, array: str, stored: tuple[str, Ragged], rows: Rows
) -> Iterator[Piece]:
    """The values of these samples, some at a time, by the name that they are stored under."""
    (name, ragged), buffer = stored, None
    value = ragged.value
    for places, extents in one_behind_another(ragged, rows, rows_in(value, PIECE_BYTES)):
        count = places.stop - places.start
        if buffer is None:
            buffer = np.empty((count, *value.shape), value.dtype)
        read_stored(source, name, extents, buffer[:count])
        yield buffer[:count], None
    if buffer is None:
        raise DataError(
            f"The training part of {array!r} has samples without a value alone, so there is no mean"
            " to standardize by. Set data.standardize to false for it, or train on others."
        )


def one_behind_another(
    ragged: Ragged, ascending: Rows, most: int
) -> Iterator[tuple[slice, Extents]]:
    """The values of these samples in pieces of `most` at most: where each piece goes, and its
    extents, whose places count from there.
    """
    lengths = ragged.lengths_at(ascending)
    ends = np.cumsum(lengths)
    for begin in range(0, int(ends[-1]), most):
        end = min(begin + most, int(ends[-1]))
        touched = slice(
            np.searchsorted(ends, begin, side="right"), np.searchsorted(ends, end, side="left") + 1
        )
        before = ends[touched] - lengths[touched]
        places, stops = np.maximum(before, begin), np.minimum(ends[touched], end)
        in_file = ragged.offsets[ascending[touched]] - before
        some = places < stops
        apart = Extents((places + in_file)[some], (stops + in_file)[some], places[some] - begin)
        yield slice(begin, end), _joined(apart)


def _joined(extents: Extents) -> Extents:
    """What follows in the file as in its places, as one."""
    borders = np.flatnonzero(extents.starts[1:] != extents.stops[:-1]) + 1
    first = np.concatenate(([0], borders))
    last = np.concatenate((borders, [len(extents)])) - 1
    return Extents(extents.starts[first], extents.stops[last], extents.places[first])


# Whatever lies behind the end of a sample is zero when its bits are masked, NaN too; and on a CPU
# that is up to 20 times as fast as torch's masked_fill.
WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class DeviceValues:
    """The values of samples, one sample behind another."""

    layout: PaddedLayout
    values: Tensor
    """(capacity + longest, …): wherever a sample begins, as many as the longest has follow."""
    lengths: Tensor
    """int64 (samples,)"""
    begins: Tensor
    """int64: at which value each sample begins."""
    steps: Tensor
    """0, 1, … of the longest."""

    @property
    def rows(self) -> Mapping[str, Tensor]:
        return {lengths_of(self.layout.name): self.lengths}

    @property
    def stored(self) -> Mapping[str, Field]:
        return self.layout.stored

    def fitting(self, rows: Rows) -> int:
        capacity, ends = (
            len(self.values) - len(self.steps),
            np.cumsum(self.layout.ragged.lengths_at(rows)),
        )
        return int(np.searchsorted(ends, capacity, side="right"))

    def pieces(self, ascending: Rows, most_bytes: int) -> Iterator[tuple[str, Tensor, Extents]]:
        [(name, value)] = self.stored.items()
        most = rows_in(value, most_bytes)
        for places, extents in one_behind_another(self.layout.ragged, ascending, most):
            yield name, self.values[places], extents

    def settle(self, samples: int) -> None:
        """Where each begins, by the lengths in the order in which they lie."""
        begins = self.begins[:samples]
        torch.cumsum(self.lengths[:samples], 0, out=begins)
        begins -= self.lengths[:samples]

    def arrange(self, places: Rows) -> None:
        """Whatever the order, a sample is a row."""

    def view(self, start: int, stop: int) -> None:
        """They are not filled up."""

    def packed_rows(self, start: int, stop: int) -> Mapping[str, int]:
        return {}

    def gather(self, samples: Tensor | slice, out: Mapping[str, Tensor]) -> None:
        """Filled up with zeros."""
        filled, lengths = out[self.layout.name], out[lengths_of(self.layout.name)]
        if isinstance(samples, slice):
            lengths.copy_(self.lengths[samples])
        else:
            torch.index_select(self.lengths, 0, samples, out=lengths)
        longest, numbers = len(self.steps), self.values[0].numel()
        take_steps(self.values, self.begins[samples], longest, filled)
        bits = WHOLE_NUMBERS[filled.element_size()]
        inside = (self.steps < lengths[:, None]).to(bits).neg_()  # of -1 all bits are set
        filled.view(bits).view(len(filled), longest, numbers).bitwise_and_(inside[..., None])
