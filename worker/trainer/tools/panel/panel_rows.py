"""Cuts rows of many entities into samples of a panel: what `stoker data convert --entity` does.

`python -m worker.trainer.tools.panel.panel_rows IN OUT.h5 --entity NAME --window N --horizon M`
prints one JSON document. IN is a CSV file, or a folder of them, with a time, a column that says
whose row it is, and numbers. `worker.trainer.tools.panel.panel_cut` says what is written.

Rows that cannot be used end it, or are left out (`--on-bad skip`) and counted: numbers that are
missing or not finite, times that repeat or go back for an entity. So does an entity that is missing
for longer than `--max-gap`, which is masked meanwhile, or has fewer dates than a sample, which is
left out; and a column of one value.
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.suggest import closest, did_you_mean
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer
from worker.trainer.tools.bad_rows import TIME_NAMES, Bad, Time, gap_of, time_of
from worker.trainer.tools.bars import csv_files
from worker.trainer.tools.panel.panel_cut import (
    VOLATILITY,
    Panel,
    PanelCut,
    price_of,
    write_panel,
)

LEFT_OUT = "such rows are left out and counted"
# Of the time that usually lies between two dates; longer an entity is not missing without a word.
USUAL_GAPS = 10


class RowProblem(NamedTuple):
    """What is wrong with a row."""

    kind: str
    sentence: str


@dataclass
class Rows:
    """What was read of one entity: times, where each row was, and its numbers."""

    times: list[int] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class PanelHeader:
    """Which column of a file is the time, which says whose row it is, and which are numbers; names
    in small letters.
    """

    time: int
    entity: int
    numbers: dict[str, int]

    @classmethod
    def of(cls, path: Path, names: Sequence[str], entity: str) -> "PanelHeader":
        """Raises DataError where a file has no time, no such entity or no numbers."""
        low = [name.strip().lower() for name in names]
        if len(set(low)) != len(low):
            raise DataError(f"{path} has two columns of one name: {', '.join(names)}. Rename one.")
        time = next((low.index(name) for name in TIME_NAMES if name in low), None)
        if time is None:
            raise DataError(
                f"{path} has no column of times among {', '.join(names) or 'none'}. Name one"
                " `time`."
            )
        if entity not in low:
            raise DataError(
                f"{path} has no column {entity!r} that says whose row it is; it has"
                f" {', '.join(low)}.{did_you_mean(closest(entity, low))}"
            )
        numbers = {name: place for place, name in enumerate(low) if name not in (low[time], entity)}
        if not numbers:
            raise DataError(f"{path} has no column beside {low[time]!r} and {entity!r}.")
        return cls(time, low.index(entity), numbers)

    @property
    def last(self) -> int:
        return max(self.time, self.entity, *self.numbers.values())


@dataclass
class PanelReading:
    """Reads files, whose rows may be sorted by entity or by time."""

    bad: Bad
    entity: str
    columns: tuple[str, ...] = ()
    rows: dict[str, Rows] = field(default_factory=dict)
    times_read_as: str | None = None
    """As what the first time was read."""

    def read(self, path: Path) -> None:
        """Append the rows of a file. Raises DataError."""
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                lines = csv.reader(file)
                header = PanelHeader.of(path, next(lines, []), self.entity)
                self._require_same_columns(path, tuple(header.numbers))
                for line in lines:
                    self._take(f"{path}, line {lines.line_num}", line, header)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path} is no CSV file that can be read: {error}.") from error

    def _require_same_columns(self, path: Path, columns: tuple[str, ...]) -> None:
        if self.columns and columns != self.columns:
            raise DataError(
                f"{path} has the columns {', '.join(columns)}, and the file before"
                f" {', '.join(self.columns)}; all files need the same, in the same order."
            )
        self.columns = columns

    def _take(self, at: str, line: list[str], header: PanelHeader) -> None:
        """Keep a row, unless something is wrong with it."""
        found = self._read(at, line, header)
        if isinstance(found, RowProblem):
            self.bad.add(*found, LEFT_OUT)
            return
        name, time, values = found
        rows = self.rows.setdefault(name, Rows())
        problem = _out_of_order(at, name, time.seconds, rows.times)
        if problem is not None:
            self.bad.add(*problem, LEFT_OUT)
            return
        self.times_read_as = self.times_read_as or time.read_as
        rows.times.append(time.seconds)
        rows.places.append(at)
        rows.values.append(values)

    def _read(
        self, at: str, line: list[str], header: PanelHeader
    ) -> RowProblem | tuple[str, Time, list[float]]:
        """Whose row it is, its time and numbers; or what is wrong with it by itself."""
        if len(line) <= header.last:
            what = f"{at}: {len(line)} columns, fewer than the header has."
            return RowProblem("short_rows", what)
        try:
            time = _time(line[header.time])
        except (ValueError, OverflowError):
            what = f"{line[header.time]!r} is no time (ISO 8601, or epoch seconds)."
            return RowProblem("times", f"{at}, column time: {what}")
        values = [_number(line[place]) for place in header.numbers.values()]
        for (name, place), value in zip(header.numbers.items(), values, strict=True):
            if not math.isfinite(value):
                what = f"{at}, column {name}: {line[place]!r} is no finite number."
                return RowProblem("not_numbers", what)
        name = line[header.entity].strip()
        if not name:
            return RowProblem("no_entity", f"{at}, column {self.entity}: it is empty.")
        return name, time, values


def _out_of_order(at: str, name: str, time: int, times: list[int]) -> RowProblem | None:
    if not times or time > times[-1]:
        return None
    shown = f"{at}, column time: {_shown(time)} of {name}"
    if time == times[-1]:
        return RowProblem("duplicates", f"{shown} is there already.")
    return RowProblem("unsorted", f"{shown} is before {_shown(times[-1])}, further up.")


@cache
def _time(text: str) -> Time:
    return time_of(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _shown(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")


def convert_rows(
    path: Path,
    out: Path,
    entity: str,
    cut: PanelCut,
    bad: Bad,
    max_gap: int | None = None,
    *,
    force: bool = True,
) -> dict[str, Any]:
    """Write `out`, which is replaced where that is allowed (`force`); says what it holds, and what
    was left out. Raises DataError.
    """
    reading = PanelReading(bad, entity.lower())
    for file in csv_files(path):
        reading.read(file)
    if not reading.rows:
        raise DataError(f"{path} has no row that can be used.")
    _require_column(path, cut.target, reading.columns)
    rows = dict(sorted(reading.rows.items()))
    times = np.unique(np.concatenate([one.times for one in rows.values()]))
    usual = int(np.median(np.diff(times))) if len(times) > 1 else 1
    longest = max_gap or USUAL_GAPS * usual
    rows = dict(_long_enough(rows, cut, bad))
    if not rows:
        raise DataError(f"No entity of {path} has the dates of a sample; ask for a shorter window.")
    _tell_gaps(rows, longest, bad)
    panel = _without_constants(path, _in_a_panel(rows, reading.columns), bad)
    made = write_panel(out, panel, cut, longest, force=force)
    missing = {name: _gap_dates(one.times, panel.times) for name, one in rows.items()}
    return {
        **made,
        "rows": sum(len(one.times) for one in rows.values()),
        "missing_dates": {name: count for name, count in missing.items() if count},
        "times_read_as": reading.times_read_as,
        "bad": dict(bad.counts),
        "told": bad.told,
    }


def _require_column(path: Path, target: str, columns: tuple[str, ...]) -> None:
    if target == VOLATILITY:
        price_of(columns)
    elif target not in columns:
        raise DataError(
            f"{path} has no column {target!r} to forecast; it has {', '.join(columns)}, and"
            f" `volatility` where there is a price.{did_you_mean(closest(target, columns))}"
        )


def _long_enough(rows: dict[str, Rows], cut: PanelCut, bad: Bad) -> Iterator[tuple[str, Rows]]:
    needed = cut.window + max(cut.horizons)
    for name, one in rows.items():
        if len(one.times) >= needed:
            yield name, one
        else:
            what = f"{one.places[0]}, column of entities: {name} has {len(one.times):,} dates, and"
            what += f" a sample takes {needed:,}."
            bad.add("short_entities", what, "such entities are left out")


def _tell_gaps(rows: dict[str, Rows], longest: int, bad: Bad) -> None:
    for name, one in rows.items():
        times = np.array(one.times)
        for place in np.flatnonzero(np.diff(times) > longest).tolist():
            what = f"{one.places[place + 1]}, column time: {name} is missing since"
            what += f" {_shown(one.times[place])}, for {_days(times[place + 1] - times[place])}."
            instead = "it is masked then; --max-gap allows longer ones, such as 30d"
            bad.add("gaps", what, instead)


def _days(seconds: int) -> str:
    return f"{seconds / 86_400:,.0f} days" if seconds >= 2 * 86_400 else f"{seconds:,} s"


def _gap_dates(times: list[int], dates: Any) -> int:
    """Of the panel between the first of an entity and its last, so many that it has not."""
    first, last = np.searchsorted(dates, [times[0], times[-1]])
    return int(last - first + 1 - len(times))


def _in_a_panel(rows: dict[str, Rows], columns: tuple[str, ...]) -> Panel:
    times = np.unique(np.concatenate([one.times for one in rows.values()])).astype(np.int64)
    values = np.full((len(times), len(rows), len(columns)), np.nan)
    for place, one in enumerate(rows.values()):
        values[np.searchsorted(times, one.times), place] = one.values
    return Panel(times, tuple(rows), columns, values)


def _without_constants(path: Path, panel: Panel, bad: Bad) -> Panel:
    """A column of one value tells nothing."""
    least, most = np.nanmin(panel.values, (0, 1)), np.nanmax(panel.values, (0, 1))
    for place in np.flatnonzero(least == most).tolist():
        what = f"{path}, column {panel.columns[place]}: it is {least[place]:g} in every row."
        bad.add("constant_columns", what, "such columns are left out")
    kept = least != most
    if not kept.any():
        raise DataError(f"{path} has no column that varies.")
    names = tuple(n for n, one in zip(panel.columns, kept.tolist(), strict=True) if one)
    return Panel(panel.times, panel.entities, names, panel.values[..., kept])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="panel_rows", description="Rows to samples of a panel.")
    parser.add_argument("path", type=Path, metavar="IN")
    parser.add_argument("out", type=Path, metavar="OUT.h5")
    parser.add_argument("--entity", required=True)
    parser.add_argument("--window", type=int, required=True)
    parser.add_argument("--horizon", type=int, action="append", required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--target", default=VOLATILITY)
    parser.add_argument("--on-bad", choices=("stop", "skip"), default="stop")
    parser.add_argument("--max-gap")
    parser.add_argument(
        "--new", dest="force", action="store_false", help="refuse an OUT that is there"
    )
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        horizons = tuple(sorted(set(options.horizon)))
        cut = PanelCut(options.window, horizons, options.target.lower(), options.every)
        gap = gap_of(options.max_gap) if options.max_gap is not None else None
        bad = Bad(skips=options.on_bad == "skip")
        return convert_rows(
            options.path, options.out, options.entity, cut, bad, gap, force=options.force
        )

    return answer(work, f"{options.path} could not be written as {options.out}")


if __name__ == "__main__":
    sys.exit(main())
