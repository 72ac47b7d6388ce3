"""What a layout is: how the samples of one array lie in a file, on the device and in a batch.

There are four, each a class in a file of its own beside this one: plain (a row a sample), windows
(a series that they slide over), padded (values one sample behind another, filled up to the longest
in a batch) and packed (nodes and edges one sample behind another, also in a batch). To add one:
write such a class, whose file is found by `worker.trainer.data.checked`. Nothing else in the data
plane asks which layout an array has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.trainer.data.source import Extents, Field, Rows, Source

Piece = tuple[NDArray[Any], Rows | None]
"""Rows of numbers, and how often each of them counts; None: once."""


class Layout(Protocol):
    """Of the samples of one array. A value, which may be sent to another process."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """What a batch has of it, by name."""

    @property
    def stored(self) -> Mapping[str, Field]:
        """Arrays of the file that hold it, where their rows are not its samples, and what a row
        of each is. None: its rows are samples, which are read together with those of others.
        """

    @property
    def num_samples(self) -> int:
        """All of the dataset."""

    @property
    def kept_bytes(self) -> int:
        """Of a sample in a chunk, on average."""

    @property
    def spare_bytes(self) -> int:
        """For which there is room behind the samples of every chunk and part."""

    @property
    def facts(self) -> Mapping[str, int]:
        """What is worth telling of it in applied.json, by name."""

    @property
    def breaks(self) -> Rows:
        """The samples that do not go on where the one before ended, as far as the file tells it:
        another series begins, or some of one is left out.
        """

    def bytes_of(self, rows: Rows) -> int:
        """Of these samples together, as `hold` keeps them."""

    def alike(self, each: Sequence["Layout"]) -> Self:
        """With the shape that it needs beside the same array of each dataset of the run, of which
        the first is trained on.
        """

    def read(self, source: Source, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """Read samples as a batch has them, from what is `stored`: those of each extent to their
        places in each of its fields that `out` names.
        """

    def pieces_to_sum(self, source: Source, rows: Rows, *, pooled: bool) -> Iterator[Piece] | None:
        """All that its statistics over these samples are summed from; each is overwritten by the
        next. None: its samples. `pooled`: one mean for all its numbers, not one a feature.
        """

    def rows_in_batch(self, rows: Rows) -> Mapping[str, Rows]:
        """By packed field: how many rows each of these samples has in a batch."""

    def packed_fields(self, source: Source, rows: Rows) -> Mapping[str, NDArray[Any]]:
        """The packed fields of a batch of these samples, in this order, with no row too many."""

    def hold(self, rows: Rows, device: torch.device) -> "DeviceArray":
        """Memory for these samples, which ascend and are there all at once."""

    def chunk(self, samples: int, device: torch.device) -> "DeviceArray":
        """Memory for so many samples at a time, wherever they lie."""


class DeviceArray(Protocol):
    """Samples of one array in device memory, in the order of the slot that they belong to."""

    @property
    def rows(self) -> Mapping[str, Tensor]:
        """(samples, …), by field: what is read a row a sample, together with other arrays."""

    @property
    def stored(self) -> Mapping[str, Field]:
        """What is read by itself: arrays of the file, and what a row of each is."""

    def fitting(self, rows: Rows) -> int:
        """How many of these samples, the first ones, have room."""

    def pieces(self, ascending: Rows, most_bytes: int) -> Iterable[tuple[str, Tensor, Extents]]:
        """What is `stored` of these samples, at most so many bytes at a time: the array's name, the
        part of device memory, and which rows belong at which places of it.
        """

    def settle(self, samples: int) -> None:
        """Done on the device once the first so many samples were copied to it."""

    def arrange(self, places: Rows) -> None:
        """From now on the samples are asked for in this order, of those that are there."""

    def packed_rows(self, start: int, stop: int) -> Mapping[str, int]:
        """By packed field: rows that the samples asked for at [start, stop) have in a batch."""

    def view(self, start: int, stop: int) -> dict[str, Tensor] | None:
        """Samples [start, stop) where they lie; None where they do not lie as a batch has them."""

    def gather(self, samples: Tensor | slice, out: Mapping[str, Tensor]) -> None:
        """Copy samples, by their numbers or neighbours, to the fields of `out`, which have room for
        just these.
        """


def packed_fields(layouts: Iterable[Layout], source: Source, rows: Rows) -> dict[str, NDArray[Any]]:
    """Of all of them, what a batch of these samples has whose rows are no samples."""
    each = (layout.packed_fields(source, rows) for layout in layouts)
    return {name: array for found in each for name, array in found.items()}
