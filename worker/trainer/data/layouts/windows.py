"""Windows: samples that slide over one series, which is all that the file and the device keep."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.trainer.data.feed.rows import piece_bounds
from worker.trainer.data.formats.window_files import SERIES, Windows, expand
from worker.trainer.data.layouts.layout import Layout, Piece
from worker.trainer.data.layouts.plain import DeviceRows
from worker.trainer.data.source import Extent, Extents, Field, Rows, Source
from worker.trainer.data.tensors import empty_arrays, take_steps


@dataclass(frozen=True)
class WindowsLayout:
    """Each sample is so many steps of the series from its start on.

    Where a part stays on the device, so does the series, and the windows of a batch are cut out
    there. In a chunk, whose samples come from everywhere, each window is a row.
    """

    name: str
    windows: Windows

    spare_bytes = 0

    @property
    def fields(self) -> Mapping[str, Field]:
        return {self.name: self.windows.field}

    @property
    def stored(self) -> Mapping[str, Field]:
        return {self._series: self.windows.step}

    @property
    def _series(self) -> str:
        return f"{self.name}/{SERIES}"

    @property
    def num_samples(self) -> int:
        return len(self.windows.starts)

    @property
    def kept_bytes(self) -> int:
        return self.windows.field.sample_bytes

    @property
    def facts(self) -> Mapping[str, int]:
        return {"series_steps": self.windows.series_steps}

    @property
    def breaks(self) -> Rows:
        """Where a window begins before the one before it, or behind its end."""
        moved = np.diff(self.windows.starts)
        return np.flatnonzero((moved < 0) | (moved > self.windows.length)) + 1

    def bytes_of(self, rows: Rows) -> int:
        return self.windows.kept_bytes(rows)

    def alike(self, each: Sequence[Layout]) -> "WindowsLayout":
        return self

    def read(self, source: Source, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        if self.name in out:
            read = partial(self._read_steps, source)
            for start, stop, place in extents:
                into = out[self.name][place : place + stop - start]
                expand(self.windows, slice(start, stop), read, into)

    def _read_steps(self, source: Source, start: int, out: NDArray[Any]) -> None:
        steps = Extents.of(Extent(start, start + len(out), 0))
        source.read(steps, {self._series: out})

    def pieces_to_sum(self, source: Source, rows: Rows, *, pooled: bool) -> Iterator[Piece] | None:
        """Each step, as often as windows hold it; unless each place in a window is a feature."""
        return self._steps(source, rows) if pooled or self.windows.step.shape else None

    def _steps(self, source: Source, rows: Rows) -> Iterator[Piece]:
        times = self.windows.times(rows)
        first, last = np.flatnonzero(times)[[0, -1]].tolist()
        step, buffer = self.windows.step, None
        for start, stop in piece_bounds(self.stored, last + 1 - first):
            if buffer is None:
                buffer = np.empty((stop, *step.shape), step.dtype)
            steps = buffer[: stop - start]
            self._read_steps(source, first + start, steps)
            yield steps, times[first + start : first + stop]

    def rows_in_batch(self, rows: Rows) -> Mapping[str, Rows]:
        return {}

    def packed_fields(self, source: Source, rows: Rows) -> Mapping[str, NDArray[Any]]:
        return {}

    def hold(self, rows: Rows, device: torch.device) -> "DeviceSeries":
        starts, length = self.windows.starts[rows], self.windows.length
        first = int(starts.min())
        steps = int(starts.max()) + length - first
        [series] = empty_arrays(self.stored, steps, device, pin_memory=False).values()
        begins = torch.from_numpy(starts - first).to(device)
        return DeviceSeries(self.name, self.stored, first, series, begins, length)

    def chunk(self, samples: int, device: torch.device) -> DeviceRows:
        return DeviceRows(empty_arrays(self.fields, samples, device, pin_memory=False))


@dataclass(frozen=True)
class DeviceSeries:
    """A stretch of the series, and where in it each sample begins."""

    name: str
    stored: Mapping[str, Field]
    first: int
    """Which step of the file is the first."""
    series: Tensor
    """(steps, …)"""
    begins: Tensor
    """int64 (samples,)"""
    length: int

    @property
    def rows(self) -> Mapping[str, Tensor]:
        return {}

    def fitting(self, rows: Rows) -> int:
        return len(rows)

    def pieces(self, ascending: Rows, most_bytes: int) -> Iterator[tuple[str, Tensor, Extents]]:
        [name] = self.stored
        for start, stop in piece_bounds(self.stored, len(self.series), most_bytes):
            steps = Extent(self.first + start, self.first + stop, 0)
            yield name, self.series[start:stop], Extents.of(steps)

    def settle(self, samples: int) -> None:
        """Nothing is left to do."""

    def arrange(self, places: Rows) -> None:
        """Whatever the order, a sample is a row."""

    def packed_rows(self, start: int, stop: int) -> Mapping[str, int]:
        return {}

    def view(self, start: int, stop: int) -> None:
        """No window is there by itself."""

    def gather(self, samples: Tensor | slice, out: Mapping[str, Tensor]) -> None:
        take_steps(self.series, self.begins[samples], self.length, out[self.name])
