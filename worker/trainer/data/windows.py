"""Windows that a file keeps as series: expanded as they are read, or cut out on the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.hdf5 import Hdf5Source, Layout, Stamp
from worker.trainer.data.read_threads import READ_THREADS
from worker.trainer.data.source import Extent, Extents, Field, Rows
from worker.trainer.data.transfer import SeriesWindows, Slot, Transfer
from worker.trainer.data.window_files import SERIES, Windows, expand
from worker.trainer.errors import DataError


class WindowsSource:
    """Fields of one HDF5 file of which some are kept as series, and others as plain arrays."""

    places_rows = True

    def __init__(
        self,
        path: Path,
        names: Iterable[str],
        windows: Mapping[str, Windows],
        stamp: Stamp | None = None,
        layout: Layout | None = None,
        threads: int = READ_THREADS,
    ) -> None:
        """`windows`: what `find_windows` found of these names; the rest as for Hdf5Source.

        Raises DataError, DatasetChanged, or SpecMismatch for a name that is not there.
        """
        names = tuple(names)
        self.windows = {name: windows[name] for name in names if name in windows}
        self._opened: list[Hdf5Source] = []

        def opened(*arrays: str) -> Hdf5Source:
            self._opened.append(Hdf5Source(path, arrays, stamp, layout, threads))
            return self._opened[-1]

        try:
            plain = [name for name in names if name not in self.windows]
            self.plain = opened(*plain) if plain else None
            self.series = {name: opened(f"{name}/{SERIES}") for name in self.windows}
            self.num_samples = self._common_length(path)
        except BaseException:
            self.close()
            raise
        self.stamp = self._opened[0].stamp
        self.layout = Layout(
            {name: place for one in self._opened for name, place in one.layout.direct.items()},
            {name: chunks for one in self._opened for name, chunks in one.layout.packed.items()},
        )
        fields = dict(self.plain.fields) if self.plain else {}
        fields |= {name: one.field for name, one in self.windows.items()}
        self.fields: Mapping[str, Field] = {name: fields[name] for name in names}

    def read(self, extents: Extents, out: Mapping[str, NDArray[Any]]) -> None:
        """The rows of each extent to their places in out[name]: C-contiguous, the field's dtype."""
        if self.plain:
            self.plain.read(extents, out)
        for name, windows in self.windows.items():
            for start, stop, place in extents:
                into = out[name][place : place + stop - start]
                expand(windows, slice(start, stop), partial(self._read_steps, name), into)

    def close(self) -> None:
        for source in self._opened:
            source.close()

    def _read_steps(self, name: str, start: int, out: NDArray[Any]) -> None:
        steps = Extents.of(Extent(start, start + len(out), 0))
        self.series[name].read(steps, {f"{name}/{SERIES}": out})

    def _common_length(self, path: Path) -> int:
        lengths = {name: len(one.starts) for name, one in self.windows.items()}
        if self.plain:
            lengths |= dict.fromkeys(self.plain.fields, self.plain.num_samples)
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"The arrays of {path} differ in length ({lengths}), so their rows do not belong"
                " together; convert the data again with `stoker data convert`."
            )
        return next(iter(lengths.values()))


def open_source(
    path: Path,
    names: Sequence[str],
    windows: Mapping[str, Windows],
    stamp: Stamp | None = None,
    layout: Layout | None = None,
    threads: int = READ_THREADS,
) -> Hdf5Source | WindowsSource:
    """The source of these fields, of which `windows` are kept as series."""
    if any(name in windows for name in names):
        return WindowsSource(path, names, windows, stamp, layout, threads)
    return Hdf5Source(path, names, stamp, layout, threads)


def load_series(
    source: WindowsSource,
    rows: Rows,
    slot: Slot,
    make_transfer: Callable[[Mapping[str, Field]], Transfer],
) -> Iterator[int]:
    """Put the steps that the windows of these rows slide over into device memory, and into the slot
    how they are cut; yields after each piece with the bytes it had.
    """
    for name, windows in source.windows.items():
        starts, series = windows.starts[rows], source.series[name]
        first, end = int(starts.min()), int(starts.max()) + windows.length
        transfer = make_transfer(series.fields)
        steps = transfer.new_slot(end - first, 0)
        yield from transfer.load(series, np.arange(first, end), steps)
        transfer.end_loading()
        transfer.close()
        [array] = steps.arrays.values()
        slot.windows[name] = SeriesWindows.of(array, starts - first, windows.length)
