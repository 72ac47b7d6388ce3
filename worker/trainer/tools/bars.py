"""Cuts bars of prices into samples of several timeframes: what `stoker data convert` does to them.

`python -m worker.trainer.tools.bars IN OUT.h5 --timeframes M1:480,M5:288 --horizon N` prints one
JSON document. IN is a CSV file, or a folder of them, with a time and columns of numbers: open,
high, low, close and volume make slower bars as their names say, others as they were at the end.
What is forecast is the range of each following bar, ln((high - low) / close), or a column of it;
the range is also the last feature of each bar. `worker.trainer.tools.timeframes` says which bars a
sample has.

Rows that cannot be used end it, or are left out (`--on-bad skip`) and counted: numbers that are
missing or not finite, times that repeat or go back, a low above its high. A gap longer than
`--max-gap` ends it too, or begins a new stretch, out of which no sample reaches.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.spec.suffixes import ARROW, CSV, HDF5, NUMPY
from app.suggest import closest, did_you_mean
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer, require_new
from worker.trainer.tools.bad_rows import LEFT_OUT, MICROSECONDS, Bad, Time, gap_of, told_time
from worker.trainer.tools.row_times import clock_changed
from worker.trainer.tools.rows.form import PLAIN, Form, add_form, form_of
from worker.trainer.tools.rows.head import (
    Head,
    csv_rows,
    head_of,
    misfit,
    require_lines,
    time_places,
)
from worker.trainer.tools.rows.quotes import CsvRows
from worker.trainer.tools.timeframes import (
    COMBINED,
    Bars,
    Cut,
    Floats,
    align,
    require_samples,
    timeframes_of,
    write,
)

NO_TEXT = (".parquet", *ARROW, *HDF5, *NUMPY, ".gz", ".zip", ".xlsx")
PRICES = ("high", "low", "close")
RANGE = "range"
# A bar of which all trades had one price has a range of this part of it, and no logarithm of zero.
LEAST_RANGE = 1e-6


@dataclass(frozen=True)
class Header:
    """Which column of a file is the time, and which are numbers; names in small letters."""

    time: tuple[int, ...]
    numbers: dict[str, int]
    width: int
    """How many columns it has."""

    @property
    def last(self) -> int:
        """The last place that is used."""
        return max(*self.time, *self.numbers.values())


def header_of(path: Path, head: Head, form: Form) -> Header:
    """Raises DataError where a file has no time or no numbers."""
    names = head.names
    low = [name.lower() for name in names]
    time = time_places(path, head, form)
    # A column without a name is the row numbers that pandas writes, or a separator too many.
    others = [(name, place) for place, name in enumerate(low) if name and place not in time]
    numbers = dict(others)
    if not numbers:
        raise DataError(f"{path} has no column beside {names[time[0]]!r}.")
    if len(numbers) != len(others):
        raise DataError(f"{path} has two columns of one name: {', '.join(names)}. Rename one.")
    return Header(time, numbers, head.width)


class BarProblem(NamedTuple):
    """What is wrong with a row."""

    kind: str
    sentence: str


class BarFile(NamedTuple):
    """The columns of a file, its bars in stretches without a gap, and as what the first time was
    read; None: no row can be used.
    """

    columns: tuple[str, ...]
    stretches: list[Bars]
    read_as: str | None


@dataclass(frozen=True)
class BarReading:
    """How bars are read: seconds of one, the longest gap, and what becomes of bad ones."""

    period: int
    max_gap: int
    wants_range: bool
    bad: Bad
    form: Form = PLAIN

    def stretches(self, path: Path) -> BarFile:
        """What is in a file. Raises DataError."""
        found: list[tuple[list[int], list[list[float]]]] = [([], [])]
        read_as = None
        with csv_rows(path, self.form) as (head, rows):
            header = header_of(path, head, self.form)
            for at, time, values in self._usable(rows, header):
                read_as = read_as or time.read_as
                times = found[-1][0]
                if times and time.seconds - times[-1] > self.max_gap:
                    self._add_gap(at, time.seconds - times[-1])
                    found.append(([], []))
                found[-1][0].append(time.seconds)
                found[-1][1].append(values)
        bars = [Bars(np.array(t, np.int64), np.array(v, np.float64)) for t, v in found if t]
        return BarFile(tuple(header.numbers), bars, read_as)

    def _add_gap(self, at: str, seconds: int) -> None:
        missing = seconds // self.period - 1
        what = "1 bar is" if missing == 1 else f"{missing:,} bars are" if missing else "time is"
        instead = (
            "no sample then reaches over a gap; --max-gap allows longer ones, such as 3d for the"
            " weekends of a market"
        )
        self.bad.add(
            "gaps", f"{at}, column {self.form.time_column}: {what} missing before it.", instead
        )

    def _usable(self, rows: CsvRows, header: Header) -> Iterator[tuple[str, Time, list[float]]]:
        """(where, time, values) of each row that can be used."""
        last = None
        for row in rows:
            if not row:
                continue
            read = self._read(rows.at, row, header)
            problem = (
                read
                if isinstance(read, BarProblem)
                else self._out_of_order(rows.at, read[0].seconds, last)
            )
            if problem is not None:
                rows.require_one_line()
                self.bad.add(*problem, LEFT_OUT)
            elif not isinstance(read, BarProblem):
                last = read[0].seconds
                yield rows.at, *read

    def _read(
        self, at: str, row: list[str], header: Header
    ) -> BarProblem | tuple[Time, list[float]]:
        """Its time and values, or what is wrong with it by itself."""
        if (misfitting := misfit(row, header.last, header.width)) is not None:
            kind, what = misfitting
            return BarProblem(kind, f"{at}: {what}")
        text = " ".join(row[place] for place in header.time)
        try:
            time = self.form.moment(text)
        except ValueError:
            what = self.form.no_time(text) if self.bad.tells else ""
            return BarProblem("times", f"{at}, column {self.form.time_column}: {what}")
        numbers = {name: self.form.number(row[place]) for name, place in header.numbers.items()}
        for name, value in numbers.items():
            if not math.isfinite(value):
                text = row[header.numbers[name]]
                what = f"{text!r} is no finite number.{self.form.advice(text)}"
                return BarProblem("not_numbers", f"{at}, column {name}: {what}")
        if numbers.get("low", -math.inf) > numbers.get("high", math.inf):
            what = f"{numbers['low']:g} is above the high, {numbers['high']:g}."
            return BarProblem("prices", f"{at}, column low: {what}")
        if self.wants_range and numbers.get("close", 1.0) <= 0:
            what = f"{numbers['close']:g} is no price above zero, and the range is relative to it."
            return BarProblem("prices", f"{at}, column close: {what}")
        return time, list(numbers.values())

    def _out_of_order(self, at: str, time: int, last: int | None) -> BarProblem | None:
        if last is None or time >= last + self.period:
            return None
        shown, before = f"{at}, column {self.form.time_column}: {told_time(time)}", told_time(last)
        clock = clock_changed(time * MICROSECONDS)
        if time == last:
            return BarProblem("duplicates", f"{shown} is there already.{clock}")
        if time < last:
            return BarProblem("unsorted", f"{shown} is before {before}, further up.{clock}")
        what = f"is {time - last} s after {before}, further up, and a bar takes {self.period} s."
        return BarProblem("too_close", f"{shown} {what}")


def convert(
    path: Path,
    out: Path,
    cut: Cut,
    target: str,
    bad: Bad,
    max_gap: int | None = None,
    form: Form = PLAIN,
    *,
    force: bool = True,
) -> dict[str, Any]:
    """Write `out`, which is replaced where that is allowed (`force`); says what it holds, and what
    was left out. Raises DataError.
    """
    period, files = cut.frames[0].seconds, csv_files(path)
    head, header = _opened(files[0], target, form)
    require_lines(path, files, cut.frames[0].window + cut.horizon)
    require_new(out, force=force)
    longest = cut.usual_gap if max_gap is None else max_gap
    reading = BarReading(period, max(longest, period), target == RANGE, bad, form)
    read = _read_alike(reading, files)
    columns = read[0].columns
    stretches = [bars for one in read for bars in one.stretches]
    _require_rows(path, stretches, bad)
    columns, stretches = _without_constants(path, columns, stretches, bad)
    targets = [_target(path, target, columns, bars.values) for bars in stretches]
    how = [COMBINED.get(name, "last") for name in columns]
    made = align(list(zip(stretches, targets, strict=True)), how, cut)
    if target == RANGE:
        columns = (*columns, RANGE)
        for series in made.series.values():
            series[:] = [np.column_stack([one, _range(columns, one)]) for one in series]
    require_samples(made, cut)
    require_new(out, force=force)
    write(out, made, cut, columns, target_name=target)
    return {
        "path": str(out),
        "bytes": out.stat().st_size,
        "samples": made.samples,
        "rows": sum(len(bars.times) for bars in stretches),
        "stretches": len(stretches),
        "timeframes": {frame.label: sum(map(len, made.series[frame.name])) for frame in cut.frames},
        "features": list(columns),
        "target": target,
        **head.told(header.time),
        "times_read_as": next((one.read_as for one in read if one.read_as), None),
        "bad": dict(bad.counts),
        "told": bad.told,
    }


def _require_rows(path: Path, stretches: list[Bars], bad: Bad) -> None:
    bad.require_order(path, sum(len(bars.times) for bars in stretches))
    if not stretches:
        raise DataError(f"{path} has no row that can be used{bad.left_out()}.")


def _read_alike(reading: BarReading, files: list[Path]) -> list[BarFile]:
    """All files. DataError where one has other columns."""
    read = [reading.stretches(file) for file in files]
    columns = read[0].columns
    for file, one in zip(files, read, strict=True):
        if one.columns != columns:
            raise DataError(
                f"{file} has the columns {', '.join(one.columns)}, and {files[0].name}"
                f" {', '.join(columns)}; all files need the same, in the same order."
            )
    return read


def _opened(file: Path, target: str, form: Form) -> tuple[Head, Header]:
    """How a file begins. DataError where it has no such target, before all of it is read."""
    head = head_of(file, form)
    header = header_of(file, head, form)
    names = tuple(header.numbers)
    if target != RANGE and target not in names:
        raise DataError(
            f"{file} has no column {target!r} to forecast; it has {', '.join(names)}, and `range`"
            f" where there are high, low and close.{did_you_mean(closest(target, names))}"
        )
    return head, header


def csv_files(path: Path) -> list[Path]:
    """Raises DataError where none is CSV."""
    if not path.is_dir():
        if path.suffix.lower() in NO_TEXT:
            raise DataError(
                f"{path} is no CSV file, of which bars and panels are made (--timeframes,"
                " --entity). Write it as CSV, or unpack it first."
            )
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in CSV)
    if not files:
        raise DataError(f"{path} has no CSV file ({', '.join(CSV)}).")
    return files


def _without_constants(
    path: Path, columns: tuple[str, ...], stretches: list[Bars], bad: Bad
) -> tuple[tuple[str, ...], list[Bars]]:
    """A column of one value tells nothing."""
    first = stretches[0].values[0]
    varies = np.logical_or.reduce([(bars.values != first).any(0) for bars in stretches])
    for name, value in [(columns[i], first[i]) for i in np.flatnonzero(~varies)]:
        sentence = f"{path}, column {name}: it is {value:g} in every row."
        bad.add("constant_columns", sentence, "such columns are left out")
    kept = [name for name, one in zip(columns, varies, strict=True) if one]
    return tuple(kept), [Bars(bars.times, bars.values[:, varies]) for bars in stretches]


def _target(path: Path, target: str, columns: tuple[str, ...], values: Floats) -> Floats:
    """Of each bar, what is forecast."""
    if target == RANGE:
        if missing := [name for name in PRICES if name not in columns]:
            raise DataError(
                f"The range of a bar needs high, low and close, and {path} has no {missing[0]} that"
                f" varies. Name another column to forecast: {', '.join(columns) or 'there is none'}"
                " (--target)."
            )
        return _range(columns, values)
    if target not in columns:
        raise DataError(
            f"{path} has no column {target!r} to forecast; it has {', '.join(columns)}, and"
            " `range` where there are high, low and close."
        )
    return values[:, columns.index(target)]


def _range(columns: tuple[str, ...], values: Floats) -> Floats:
    """ln((high - low) / close) of each bar."""
    high, low, close = (values[:, columns.index(name)] for name in PRICES)
    return np.asarray(np.log(np.maximum((high - low) / close, LEAST_RANGE)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bars", description="Bars to samples of timeframes.")
    parser.add_argument("path", type=Path, metavar="IN")
    parser.add_argument("out", type=Path, metavar="OUT.h5")
    parser.add_argument("--timeframes", required=True)
    parser.add_argument("--horizon", type=int, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--target", default=RANGE)
    parser.add_argument("--on-bad", choices=("stop", "skip"), default="stop")
    parser.add_argument("--max-gap")
    parser.add_argument(
        "--new", dest="force", action="store_false", help="refuse an OUT that is there"
    )
    add_form(parser)
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        cut = Cut(timeframes_of(options.timeframes), options.horizon, options.every)
        gap = gap_of(options.max_gap) if options.max_gap is not None else None
        bad = Bad(skips=options.on_bad == "skip")
        target, form = options.target.lower(), form_of(options)
        return convert(options.path, options.out, cut, target, bad, gap, form, force=options.force)

    return answer(work, f"{options.path} could not be written as {options.out}")


if __name__ == "__main__":
    sys.exit(main())
