"""Bars of one timeframe as samples of several, without look-ahead: what `bars` and the sample use.

A sample ends when a bar of the fastest timeframe closes, at time T. Of each timeframe it has the
last so many bars that closed at or before T: a bar of four hours that is still open is not there.
The targets are bars of the fastest timeframe behind T. All are kept as series and starts
(`worker.trainer.data.formats.window_files`), so overlapping windows are not written out.
"""

import io
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import write_roles
from worker.trainer.data.formats.window_files import STEP_SECONDS, write_windows
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError

UNIT_SECONDS = {"M": 60, "H": 3_600, "D": 86_400}
LABEL = re.compile(r"([MHD])([1-9][0-9]{0,4})")
# How the bars of a bucket become one; any other column is taken as it was at the end.
COMBINED = {
    "open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum",
}  # fmt: skip

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Timeframe:
    """A label such as M5, its seconds, and how many of its bars a sample looks back on."""

    label: str
    seconds: int
    window: int

    @property
    def name(self) -> str:
        """Of its array."""
        return self.label.lower()


@dataclass(frozen=True)
class Bars:
    """Bars in time without a break: when each opened (epoch seconds), and its columns."""

    times: Rows
    values: Floats
    """(bars, columns)."""


@dataclass(frozen=True)
class Cut:
    """Which samples are cut out: frames, the fastest first; steps ahead; every how many bars."""

    frames: tuple[Timeframe, ...]
    horizon: int
    every: int = 1


def timeframes_of(text: str) -> tuple[Timeframe, ...]:
    """Of `M1:480,M5:288`, the fastest first. Raises DataError."""
    frames = []
    for part in text.split(","):
        label, _, window = part.strip().partition(":")
        found = LABEL.fullmatch(label.upper())
        if found is None or not window.isdecimal() or not 1 <= int(window) <= 1_000_000:
            raise DataError(
                f"{part.strip()!r} is no timeframe. Write a unit (M minutes, H hours, D days), how"
                " many, and the bars of a window, such as M5:288."
            )
        seconds = UNIT_SECONDS[found[1]] * int(found[2])
        frames.append(Timeframe(label.upper(), seconds, int(window)))
    frames.sort(key=lambda frame: frame.seconds)
    fastest = frames[0]
    for before, frame in itertools.pairwise(frames):
        if frame.seconds == before.seconds:
            raise DataError(f"{before.label} and {frame.label} are the same timeframe; keep one.")
        if frame.seconds % fastest.seconds:
            raise DataError(
                f"{frame.label} is no whole number of {fastest.label}, so its bars cannot be made"
                " of those. Leave it out, or take another fastest timeframe."
            )
    return tuple(frames)


def combined(bars: Bars, seconds: int, how: Sequence[str]) -> Bars:
    """Bars of so many seconds, which begin at multiples of it, made of faster ones.

    The first one is left out where its beginning is not there. `how`: of each column, first,
    max, min, sum, mean or last.
    """
    opened = bars.times // seconds * seconds
    firsts = np.flatnonzero(np.diff(opened, prepend=opened[0] - 1))
    ends = np.append(firsts[1:], len(opened))
    columns = [
        _of_buckets(bars.values[:, column], kind, firsts, ends) for column, kind in enumerate(how)
    ]
    begun_before = int(bars.times[0] != opened[0])
    return Bars(opened[firsts][begun_before:], np.column_stack(columns)[begun_before:])


def _of_buckets(column: Floats, kind: str, firsts: Rows, ends: Rows) -> Floats:
    if kind == "first":
        return column[firsts]
    if kind == "max":
        return np.maximum.reduceat(column, firsts)
    if kind == "min":
        return np.minimum.reduceat(column, firsts)
    if kind == "sum":
        return np.add.reduceat(column, firsts)
    if kind == "mean":
        return np.asarray(np.add.reduceat(column, firsts) / (ends - firsts))
    return column[ends - 1]


@dataclass
class Aligned:
    """What is written: by frame its series and where each sample's window begins; the targets' own;
    and when each sample ends.
    """

    series: dict[str, list[Floats]]
    starts: dict[str, list[Rows]]
    targets: list[Floats]
    target_starts: list[Rows]
    ends: list[Rows]

    @property
    def samples(self) -> int:
        return sum(map(len, self.ends))


def align(stretches: Sequence[tuple[Bars, Floats]], how: Sequence[str], cut: Cut) -> Aligned:
    """Samples of stretches, none of which reaches from one into the next. Each stretch: bars of the
    fastest frame, and the value of each that is forecast.
    """
    made = Aligned(
        {frame.name: [] for frame in cut.frames}, {frame.name: [] for frame in cut.frames}, [], [],
        [],
    )  # fmt: skip
    steps = dict.fromkeys((*made.series, "targets"), 0)
    for bars, targets in stretches:
        frames = {
            frame.name: bars if frame is cut.frames[0] else combined(bars, frame.seconds, how)
            for frame in cut.frames
        }
        samples, starts, ends = _samples(bars, frames, cut)
        for name, found in frames.items():
            made.series[name].append(found.values)
            made.starts[name].append(starts[name] + steps[name])
            steps[name] += len(found.values)
        made.targets.append(targets)
        made.target_starts.append(samples + 1 + steps["targets"])
        steps["targets"] += len(targets)
        made.ends.append(ends)
    return made


def _samples(
    bars: Bars, frames: Mapping[str, Bars], cut: Cut
) -> tuple[Rows, dict[str, Rows], Rows]:
    """The bar that each sample ends with, where its windows begin, and when it ends."""
    samples = np.arange(0, max(0, len(bars.times) - cut.horizon), cut.every)
    ends = bars.times[samples] + cut.frames[0].seconds
    starts = {
        # Bars that have closed by then: of those that open at b, where b + seconds <= end.
        frame.name: np.searchsorted(
            frames[frame.name].times, ends - frame.seconds, side="right"
        ).astype(np.int64)
        - frame.window
        for frame in cut.frames
    }
    whole = np.logical_and.reduce([start >= 0 for start in starts.values()])
    return samples[whole], {name: start[whole] for name, start in starts.items()}, ends[whole]


def require_samples(made: Aligned, cut: Cut) -> None:
    """DataError when there is not one sample."""
    if not made.samples:
        longest = max(cut.frames, key=lambda frame: frame.seconds * frame.window)
        raise DataError(
            f"Not one sample fits: {longest.window:,} bars of {longest.label}, and {cut.horizon:,}"
            f" of {cut.frames[0].label} behind them, are more than any stretch without a gap has."
            " Ask for shorter windows, or allow longer gaps (--max-gap)."
        )


def write(out: Path, made: Aligned, cut: Cut, columns: Sequence[str], **attributes: Any) -> None:
    """Write `out`: an array of windows a frame, `targets`, and `ends` (epoch seconds). DataError
    when there is not one sample.
    """
    require_samples(made, cut)
    with whole_file(out) as partial, h5py.File(partial, "w") as file:
        for frame in cut.frames:
            group = _write(file, frame.name, made.series, made.starts, frame.window)
            group.attrs.update({"feature_names": list(columns), STEP_SECONDS: frame.seconds})
        _write(
            file, "targets", {"targets": made.targets}, {"targets": made.target_starts}, cut.horizon
        )
        file["ends"] = np.concatenate(made.ends)
        file.attrs.update({"timeframes": [frame.label for frame in cut.frames], **attributes})
        write_roles(file, [frame.name for frame in cut.frames], ["targets"])


def _write(
    file: h5py.File,
    name: str,
    series: Mapping[str, list[Floats]],
    starts: Mapping[str, list[Rows]],
    window: int,
) -> h5py.Group:
    steps = np.concatenate(series[name]).astype(np.float32)
    step = Field(steps.shape[1:], steps.dtype)
    begins = np.concatenate(starts[name])
    return write_windows(file, name, io.BytesIO(steps.tobytes()), step, begins, window)
