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
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import write_roles
from worker.trainer.data.formats.window_files import STEP_SECONDS, write_windows
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError

DAY = 86_400
UNIT_SECONDS = {"M": 60, "H": 3_600, "D": DAY, "W": 7 * DAY}
# A trading day has rows. Nights, weekends and holidays up to this long are no gap between two.
TRADING, TRADING_GAP = "T", 5 * DAY
# Months differ in length; this mean of 400 years only says which timeframe is slower.
MONTH, MONTH_SECONDS = "MN", 2_629_746
LABEL = re.compile(r"(MN|[MHDWT])([1-9][0-9]{0,4})")
# 1970 began on a Thursday, and weeks begin on Mondays.
FIRST_MONDAY = 4 * DAY
# When a bar closes that has no end in the data.
NEVER = np.iinfo(np.int64).max
# How the bars of a bucket become one; any other column is taken as it was at the end.
COMBINED = {
    "open": "first", "high": "max", "low": "min", "close": "last", "volume": "sum",
}  # fmt: skip

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Timeframe:
    """A unit, how many of it a bar takes, and how many bars a sample looks back on."""

    unit: str
    count: int
    window: int

    @property
    def label(self) -> str:
        return f"{self.unit}{self.count}"

    @property
    def name(self) -> str:
        """The name of its array."""
        return self.label.lower()

    @property
    def step_seconds(self) -> int | None:
        """Seconds from one bar to the next; None if these differ."""
        return self.count * UNIT_SECONDS[self.unit] if self.unit in UNIT_SECONDS else None

    @property
    def seconds(self) -> int:
        """Seconds of a bar: of so many days for trading days, about so many for months."""
        others = {TRADING: DAY, MONTH: MONTH_SECONDS}
        return self.count * (UNIT_SECONDS | others)[self.unit]

    def is_made_of(self, fastest: "Timeframe") -> bool:
        """True if its bars begin and end where bars of the fastest timeframe do."""
        if self.unit == fastest.unit == "W" or (self.unit in "MHD" and fastest.unit != "W"):
            return self.seconds % fastest.seconds == 0
        return DAY % fastest.seconds == 0

    def buckets(self, times: Rows) -> tuple[Rows, Rows]:
        """Returns when the bar of each of these ascending times opens and closes.

        All are seconds since 1970. NEVER is the end of trading days that are not all there.
        """
        if self.unit == MONTH:
            return _months(times, self.count)
        if self.unit == TRADING:
            return _trading_days(times, self.count)
        first = FIRST_MONDAY if self.unit == "W" else 0
        opened = (times - first) // self.seconds * self.seconds + first
        return opened, opened + self.seconds


def _months(times: Rows, count: int) -> tuple[Rows, Rows]:
    """Calendar months; of several the first is January 1970, or whole counts from there."""
    months = times.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
    first = months // count * count
    opened, closes = (
        each.astype("datetime64[M]").astype("datetime64[s]").astype(np.int64)
        for each in (first, first + count)
    )
    return opened, closes


def _trading_days(times: Rows, count: int) -> tuple[Rows, Rows]:
    """Days that have rows, counted from the first; a bar closes at its last day's midnight."""
    days, day_numbers = np.unique(times // DAY, return_inverse=True)
    firsts = np.arange(0, len(days), count)
    lasts = firsts + count - 1
    closes = np.where(lasts < len(days), (days[lasts.clip(max=len(days) - 1)] + 1) * DAY, NEVER)
    bars = day_numbers // count
    return (days[firsts] * DAY)[bars], closes[bars]


@dataclass(frozen=True)
class Bars:
    """Bars in time without a break: when each opened (epoch seconds), and its columns."""

    times: Rows
    values: Floats
    """(bars, columns)."""


class Combined(NamedTuple):
    """Slower bars, and when each closes (epoch seconds)."""

    bars: Bars
    closes: Rows


@dataclass(frozen=True)
class Cut:
    """Which samples are cut out: frames, the fastest first; steps ahead; every how many bars."""

    frames: tuple[Timeframe, ...]
    horizon: int
    every: int = 1

    @property
    def usual_gap(self) -> int:
        """Seconds from one row to the next that are no gap, unless --max-gap says otherwise."""
        in_trading = any(frame.unit == TRADING for frame in self.frames)
        return TRADING_GAP if in_trading else self.frames[0].seconds


def timeframes_of(text: str) -> tuple[Timeframe, ...]:
    """Of `M1:480,M5:288`, the fastest first. Raises DataError."""
    frames = []
    for part in text.split(","):
        label, _, window = part.strip().partition(":")
        found = LABEL.fullmatch(label.upper())
        if found is None or not window.isdecimal() or not 1 <= int(window) <= 1_000_000:
            raise DataError(
                f"{part.strip()!r} is no timeframe. Write a unit (M minutes, H hours, D days, W"
                " weeks, MN months, T trading days), how many, and the bars of a window, such as"
                " M5:288."
            )
        frames.append(Timeframe(found[1], int(found[2]), int(window)))
    frames.sort(key=lambda frame: frame.seconds)
    fastest = frames[0]
    if fastest.unit == MONTH or (fastest.unit == TRADING and fastest.count > 1):
        raise DataError(
            f"{fastest.label} cannot be the fastest timeframe, because its bars differ in length"
            " and are made of faster ones. Add a faster timeframe, that of the rows in the file,"
            " such as D1 or T1."
        )
    for before, frame in itertools.pairwise(frames):
        if frame.seconds == before.seconds and _cut_alike(frame, before):
            raise DataError(f"{before.label} and {frame.label} are the same timeframe; keep one.")
        if not frame.is_made_of(fastest):
            raise DataError(
                f"{frame.label} is no whole number of {fastest.label}, so its bars cannot be made"
                " of those. Leave it out, or take another fastest timeframe."
            )
    return tuple(frames)


def _cut_alike(one: Timeframe, other: Timeframe) -> bool:
    """True if timeframes of one length have the same bars. Days and a trading day have."""
    kinds = {each.unit if each.unit in ("W", TRADING) else "clock" for each in (one, other)}
    return len(kinds) == 1 or (one.seconds == DAY and "W" not in kinds)


def combined(bars: Bars, frame: Timeframe, how: Sequence[str]) -> Combined:
    """Returns bars of a slower timeframe, made of faster ones.

    The first bar is left out if its beginning is not there; so is a first trading day. `how`: of
    each column, first, max, min, sum, mean or last.
    """
    if frame.unit == TRADING:
        bars = _from_midnight(bars)
    opened, closes = frame.buckets(bars.times)
    firsts = np.flatnonzero(np.diff(opened, prepend=NEVER))
    ends = np.append(firsts, len(opened))[1:]
    columns = [
        _of_buckets(bars.values[:, column], kind, firsts, ends) for column, kind in enumerate(how)
    ]
    # A trading day opens after midnight, and _from_midnight has left out a first day in part.
    begun_before = int(frame.unit != TRADING and len(firsts) > 0 and bars.times[0] != opened[0])
    firsts = firsts[begun_before:]
    values = np.column_stack(columns)[begun_before:]
    return Combined(Bars(opened[firsts], values), closes[firsts])


def _from_midnight(bars: Bars) -> Bars:
    """Drops the first day if the bars begin within it."""
    first = bars.times[0]
    begin = int(np.searchsorted(bars.times, -(-first // DAY) * DAY))
    return Bars(bars.times[begin:], bars.values[begin:])


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
        fastest, *slower = cut.frames
        frames = {fastest.name: Combined(bars, bars.times + fastest.seconds)}
        frames |= {frame.name: combined(bars, frame, how) for frame in slower}
        samples, starts, ends = _samples(bars, frames, cut)
        for name, found in frames.items():
            made.series[name].append(found.bars.values)
            made.starts[name].append(starts[name] + steps[name])
            steps[name] += len(found.bars.values)
        made.targets.append(targets)
        made.target_starts.append(samples + 1 + steps["targets"])
        steps["targets"] += len(targets)
        made.ends.append(ends)
    return made


def _samples(
    bars: Bars, frames: Mapping[str, Combined], cut: Cut
) -> tuple[Rows, dict[str, Rows], Rows]:
    """The bar that each sample ends with, where its windows begin, and when it ends."""
    fastest = cut.frames[0].name
    samples = np.arange(0, max(0, len(bars.times) - cut.horizon), cut.every)
    ends = frames[fastest].closes[samples]
    starts = {
        # The last bars that have closed by then.
        frame.name: np.searchsorted(frames[frame.name].closes, ends, side="right").astype(np.int64)
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
            group.attrs["feature_names"] = list(columns)
            if frame.step_seconds is not None:
                group.attrs[STEP_SECONDS] = frame.step_seconds
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
