"""Plain: an array with a row a sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.trainer.data.layouts.layout import Layout
from worker.trainer.data.source import NO_ROWS, Extents, Field, Rows, Source
from worker.trainer.data.tensors import empty_arrays, parts_to_copy, take_steps


@dataclass(frozen=True)
class PlainLayout:
    """Each sample is a row of the array, and lies so on the device."""

    name: str
    field: Field
    num_samples: int

    spare_bytes = 0

    @property
    def fields(self) -> Mapping[str, Field]:
        return {self.name: self.field}

    @property
    def stored(self) -> Mapping[str, Field]:
        return {}

    @property
    def kept_bytes(self) -> int:
        return self.field.sample_bytes

    @property
    def facts(self) -> Mapping[str, int]:
        return {}

    @property
    def breaks(self) -> Rows:
        return NO_ROWS

    def bytes_of(self, rows: Rows) -> int:
        return len(rows) * self.field.sample_bytes

    def alike(self, each: Sequence[Layout]) -> "PlainLayout":
        return self

    def read(self, source: Source, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """Nothing is stored apart from its rows."""

    def pieces_to_sum(self, source: Source, rows: Rows, *, pooled: bool) -> None:
        """Its samples are."""

    def rows_in_batch(self, rows: Rows) -> Mapping[str, Rows]:
        return {}

    def packed_fields(self, source: Source, rows: Rows) -> Mapping[str, NDArray[Any]]:
        return {}

    def hold(self, rows: Rows, device: torch.device) -> "DeviceRows":
        return self.chunk(len(rows), device)

    def chunk(self, samples: int, device: torch.device) -> "DeviceRows":
        return DeviceRows(empty_arrays(self.fields, samples, device, pin_memory=False))


@dataclass(frozen=True)
class DeviceRows:
    """A row a sample."""

    rows: Mapping[str, Tensor]

    @property
    def stored(self) -> Mapping[str, Field]:
        return {}

    def fitting(self, rows: Rows) -> int:
        return len(rows)

    def pieces(self, ascending: Rows, most_bytes: int) -> tuple[()]:
        """Nothing is read by itself."""
        return ()

    def settle(self, samples: int) -> None:
        """Nothing is left to do."""

    def arrange(self, places: Rows) -> None:
        """Whatever the order, a sample is a row."""

    def packed_rows(self, start: int, stop: int) -> Mapping[str, int]:
        return {}

    def view(self, start: int, stop: int) -> dict[str, Tensor]:
        return {name: array[start:stop] for name, array in self.rows.items()}

    def gather(self, samples: Tensor | slice, out: Mapping[str, Tensor]) -> None:
        for name, array in self.rows.items():
            if isinstance(samples, slice):
                out[name].copy_(array[samples])
            elif parts_to_copy(numbers := array.shape[1:].numel(), 1, array.device) == 1:
                torch.index_select(array, 0, samples, out=out[name])
            else:
                take_steps(array.flatten(), samples * numbers, numbers, out[name])
