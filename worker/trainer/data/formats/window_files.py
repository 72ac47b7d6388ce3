"""Files that keep windows as the series they slide over: what lies in one, and how it is checked.

A group in place of an array, with the attribute `window_length`, holds the arrays `series`
(steps, …) and `starts` (samples,), int64: sample i is `window_length` steps from starts[i] on.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.formats.hdf5_file import (
    hard_link,
    is_marked,
    read_marked,
    unusable_because,
)
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError

LENGTH, SERIES, STARTS = "window_length", "series", "starts"
# Of a file whose samples were cut out of rows: the column of their times; empty where none has one.
TIME_COLUMN = "time_column"
# Of an array of targets: how many steps ahead each reaches.
HORIZONS = "horizons"
# What a panel forecasts that names no column: of a price, and looked back on by `volatility_20`.
VOLATILITY = "volatility"
# Of an array of windows, or of its file: seconds from one step to the next, where times are known.
STEP_SECONDS = "step_seconds"
PIECE_BYTES = 64 * 2**20


@dataclass(frozen=True, eq=False)
class Windows:
    """Samples that are windows of one series: where each begins, and how long all are."""

    length: int
    starts: Rows
    series_steps: int
    step: Field
    """One step of the series."""

    @property
    def field(self) -> Field:
        """One window."""
        return Field((self.length, *self.step.shape), self.step.dtype)

    def times(self, rows: Rows) -> Rows:
        """How many of the windows of these rows hold each step of the series."""
        changes = np.zeros(self.series_steps + 1, np.int64)
        np.add.at(changes, self.starts[rows], 1)
        np.add.at(changes, self.starts[rows] + self.length, -1)
        return np.cumsum(changes[:-1])

    def kept_bytes(self, rows: Rows) -> int:
        """Of the steps that the windows of these rows slide over, and of where each begins."""
        if not len(rows):
            return 0
        starts = self.starts[rows]
        steps = int(starts.max() - starts.min()) + self.length
        return steps * self.step.sample_bytes + starts.nbytes


class WindowArray:
    """Windows of an open file as the array that they would be, expanded: what is asked of an
    h5py.Dataset when it is looked into.
    """

    def __init__(self, series: h5py.Dataset, windows: Windows) -> None:
        self.series = series
        self.windows = windows
        self.shape = (len(windows.starts), *windows.field.shape)
        self.dtype = windows.step.dtype
        self.size = int(np.prod(self.shape, dtype=object))

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        out = np.empty((len(range(*rows.indices(self.shape[0]))), *self.shape[1:]), self.dtype)
        self.read_direct(out, rows)
        return out

    def read_direct(self, out: NDArray[Any], source_sel: slice) -> None:
        def read(start: int, steps: NDArray[Any]) -> None:
            self.series.read_direct(steps, np.s_[start : start + len(steps)])

        expand(self.windows, source_sel, read, out)


def expand(
    windows: Windows, rows: slice, read: Callable[[int, NDArray[Any]], None], out: NDArray[Any]
) -> None:
    """Write the windows of these rows to `out`, one each; `read` gives steps from one on.

    What lies between the first and the last step is read once, unless that is more than the windows
    themselves: then each is read by itself.
    """
    starts, length = windows.starts[rows], windows.length
    if not len(starts):
        return
    first, end = int(starts.min()), int(starts.max()) + length
    if end - first > len(starts) * length:
        for window, start in zip(out, starts.tolist(), strict=True):
            read(start, window)
        return
    between = np.empty((end - first, *windows.step.shape), windows.step.dtype)
    read(first, between)
    slides = np.lib.stride_tricks.sliding_window_view(between, length, 0)
    out[...] = np.moveaxis(slides, -1, 1)[starts - first]


def target_feature(file: h5py.File, name: str) -> int | None:
    """Returns the index of the feature of the array `name` that is the target's own past.

    The file says so by the attributes `feature_names`, of the array or the file, and `target_name`.
    None if it does not, or if the array has no samples of (steps, features) with these names.
    """
    array = file[name]
    of_file, of_array = file.attrs, array.attrs
    names = list(map(str, of_array.get("feature_names", of_file.get("feature_names", ()))))
    target = str(of_file.get("target_name", ""))
    if isinstance(array, h5py.Dataset):
        shape = array.shape[1:]
    elif is_windows(array):
        shape = (0, *hard_link(array, SERIES).shape[1:])
    else:
        return None
    is_named = len(shape) == 2 and len(names) == shape[1] and target in names
    return names.index(target) if is_named else None


def past_features(file: h5py.File, name: str) -> dict[int, int]:
    """Returns the features of a panel that are the target's own past in the target's units: the
    index of each by the number of dates that it looks back over, ascending.

    A file of `stoker data convert --entity` says so by the attributes `forecasts` and
    `feature_names`: the forecast column covers one date, `volatility_20` covers 20. Empty if the
    file does not, or if `name` has no windows of (entities, features) with these names.
    """
    if not is_windows(file[name]):
        return {}
    shape = hard_link(file[name], SERIES).shape
    names = list(map(str, file.attrs.get("feature_names", ())))
    target = str(file.attrs.get("forecasts", ""))
    if len(shape) != 3 or len(names) != shape[2]:
        return {}
    if target != VOLATILITY:
        return {1: names.index(target)} if target in names else {}
    past = dict[int, int]()
    for place, feature in reversed(list(enumerate(names))):  # those of Stoker come first
        column, _, dates = feature.rpartition("_")
        if column == VOLATILITY and dates.isdecimal():
            past[int(dates)] = place
    return dict(sorted(past.items()))


def is_windows(node: Any) -> bool:
    """Whether a group of the file stands for an array."""
    return is_marked(node, LENGTH)


def find_windows(path: Path, names: tuple[str, ...]) -> dict[str, Windows]:
    """Those of `names` that the file keeps as a series. DataError where one cannot be used."""
    return read_marked(path, names, LENGTH, read_windows, "windows")


def read_windows(group: h5py.Group, name: str) -> Windows:
    """What the group `name` says. DataError where it does not hold together."""
    series, starts, length = hard_link(group, SERIES), hard_link(group, STARTS), group.attrs[LENGTH]
    for part, array in ((SERIES, series), (STARTS, starts)):
        if not isinstance(array, h5py.Dataset):
            raise _bad(name, f"has no array {part!r}")
        if (reason := unusable_because(array)) is not None:
            raise _bad(name, f"has a {part!r} that {reason}")
    if starts.ndim != 1 or starts.dtype != np.int64:
        raise _bad(name, "has 'starts' that are not one int64 for each sample")
    steps = int(series.shape[0])
    if np.ndim(length) != 0 or not np.issubdtype(np.asarray(length).dtype, np.integer):
        raise _bad(name, f"has a {LENGTH} that is no whole number")
    if not 1 <= int(length) <= steps:
        raise _bad(name, f"has a {LENGTH} of {length}, and its series {steps:,} steps")
    begins = starts[:]
    if len(begins) and not 0 <= begins.min() <= begins.max() <= steps - int(length):
        raise _bad(name, f"has windows that reach beyond the {steps:,} steps of its series")
    return Windows(int(length), begins, steps, Field(tuple(series.shape[1:]), series.dtype))


def write_windows(
    file: h5py.File, name: str, steps: IO[bytes], step: Field, starts: Rows, length: int
) -> h5py.Group:
    """Write a group `name`: the bytes of `steps` as its series, one `step` behind another."""
    count = steps.seek(0, os.SEEK_END) // step.sample_bytes
    steps.seek(0)
    group = file.create_group(name)
    group.attrs[LENGTH] = length
    group[STARTS] = starts
    series = group.create_dataset(SERIES, (count, *step.shape), step.dtype)
    at_once = max(1, PIECE_BYTES // step.sample_bytes)
    for start in range(0, count, at_once):
        piece = np.empty((min(at_once, count - start), *step.shape), step.dtype)
        steps.readinto(piece.data)  # type: ignore[attr-defined]  # an open file has it
        series[start : start + len(piece)] = piece
    return group


def _bad(name: str, what: str) -> DataError:
    return DataError(
        f"The windows {name!r} cannot be used: the group {what}. Convert the data again with"
        " `stoker data convert`."
    )


def horizons_of(array: h5py.Dataset) -> list[int] | None:
    """Of targets that say it; None where the attribute is none that Stoker writes."""
    told = np.asarray(array.attrs.get(HORIZONS, ()))
    return told.tolist() if told.dtype.kind in "iu" and told.ndim == 1 and len(told) else None
