"""Cuts rows of many entities into samples of a panel: what `stoker data convert --entity` does.

`python -m worker.trainer.tools.panel.panel_rows IN OUT.h5 --entity NAME --window N --horizon M`
prints one JSON document. IN is a CSV file, or a folder of them, with a time, a column that says
whose row it is, and numbers. `worker.trainer.tools.panel.panel_cut` says what is written.

Rows that cannot be used end it, or are left out (`--on-bad skip`) and counted: numbers that are
missing or not finite, times that repeat or go back for an entity, prices that are not above 0. So
does an entity that is missing for longer than `--max-gap`, which is masked meanwhile, or has fewer
dates than a sample or a price that never changes, which is left out; and a column of one value. One
that is to be forecast always ends it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.suggest import closest, did_you_mean
from worker.trainer.data.formats.window_files import VOLATILITY
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer, require_new
from worker.trainer.tools.bad_rows import LEFT_OUT, Bad, Time, gap_of, told_time
from worker.trainer.tools.bars import csv_files
from worker.trainer.tools.panel.panel_cut import (
    Panel,
    PanelCut,
    price_of,
    write_panel,
)
from worker.trainer.tools.rows.form import PLAIN, Form, add_form, form_of
from worker.trainer.tools.rows.head import (
    Head,
    csv_rows,
    head_of,
    misfit,
    require_lines,
    time_places,
)

# Of the time that usually lies between two dates; longer an entity is not missing without a word.
USUAL_GAPS = 10
# As what numbers are written.
LARGEST = float(np.finfo(np.float32).max)


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

    time: tuple[int, ...]
    entity: int
    numbers: dict[str, int]
    width: int
    """How many columns it has."""

    @classmethod
    def of(cls, path: Path, head: Head, entity: str, form: Form) -> "PanelHeader":
        """Raises DataError where a file has no time, no such entity or no numbers."""
        names = head.names
        low = [name.lower() for name in names]
        named = [name for name in low if name]  # none: pandas' row numbers, a separator too many
        if len(set(named)) != len(named):
            raise DataError(f"{path} has two columns of one name: {', '.join(names)}. Rename one.")
        time = time_places(path, head, form)
        if entity not in low:
            raise DataError(
                f"{path} has no column {entity!r} that says whose row it is; it has"
                f" {', '.join(low)}.{did_you_mean(closest(entity, low))}"
            )
        others = (*time, low.index(entity))
        numbers = {n: place for place, n in enumerate(low) if n and place not in others}
        if not numbers:
            raise DataError(f"{path} has no column beside {low[time[0]]!r} and {entity!r}.")
        return cls(time, low.index(entity), numbers, head.width)

    @property
    def last(self) -> int:
        return max(*self.time, self.entity, *self.numbers.values())


@dataclass
class PanelReading:
    """Reads files, whose rows may be sorted by entity or by time."""

    bad: Bad
    entity: str
    form: Form = PLAIN
    columns: tuple[str, ...] = ()
    rows: dict[str, Rows] = field(default_factory=dict)
    times_read_as: str | None = None
    """As what the first time was read."""

    def read(self, path: Path) -> None:
        """Append the rows of a file. Raises DataError."""
        with csv_rows(path, self.form) as (head, lines):
            header = PanelHeader.of(path, head, self.entity, self.form)
            self._require_same_columns(path, tuple(header.numbers))
            for line in lines:
                if line and (problem := self._take(lines.at, line, header)) is not None:
                    lines.require_one_line()
                    self.bad.add(*problem, LEFT_OUT)

    def _require_same_columns(self, path: Path, columns: tuple[str, ...]) -> None:
        if self.columns and columns != self.columns:
            raise DataError(
                f"{path} has the columns {', '.join(columns)}, and the file before"
                f" {', '.join(self.columns)}; all files need the same, in the same order."
            )
        self.columns = columns

    def _take(self, at: str, line: list[str], header: PanelHeader) -> RowProblem | None:
        """Keep a row, unless something is wrong with it, which is returned."""
        found = self._read(at, line, header)
        if isinstance(found, RowProblem):
            return found
        name, time, values = found
        rows = self.rows.setdefault(name, Rows())
        problem = _out_of_order(
            f"{at}, column {self.form.time_column}", name, time.seconds, rows.times
        )
        if problem is not None:
            return problem
        self.times_read_as = self.times_read_as or time.read_as
        rows.times.append(time.seconds)
        rows.places.append(at)
        rows.values.append(values)
        return None

    def _read(
        self, at: str, line: list[str], header: PanelHeader
    ) -> RowProblem | tuple[str, Time, list[float]]:
        """Whose row it is, its time and numbers; or what is wrong with it by itself."""
        if (misfitting := misfit(line, header.last, header.width)) is not None:
            kind, what = misfitting
            return RowProblem(kind, f"{at}: {what}")
        text = " ".join(line[place] for place in header.time)
        try:
            time = _time(text, self.form)
        except ValueError:
            what = self.form.no_time(text) if self.bad.tells else ""
            return RowProblem("times", f"{at}, column {self.form.time_column}: {what}")
        values = [self.form.number(line[place]) for place in header.numbers.values()]
        for (name, place), value in zip(header.numbers.items(), values, strict=True):
            if not abs(value) <= LARGEST:  # NaN neither
                what = f"{line[place]!r} is no finite number of 32 bits."
                what += self.form.advice(line[place])
                return RowProblem("not_numbers", f"{at}, column {name}: {what}")
        name = line[header.entity].strip()
        if not name:
            return RowProblem("no_entity", f"{at}, column {self.entity}: it is empty.")
        return name, time, values


def _out_of_order(at: str, name: str, time: int, times: list[int]) -> RowProblem | None:
    if not times or time > times[-1]:
        return None
    shown = f"{at}: {told_time(time)} of {name}"
    if time == times[-1]:
        return RowProblem("duplicates", f"{shown} is there already.")
    return RowProblem("unsorted", f"{shown} is before {told_time(times[-1])}, further up.")


@cache
def _time(text: str, form: Form) -> Time:
    return form.moment(text)


def _read_all(path: Path, reading: PanelReading, files: Sequence[Path]) -> None:
    for file in files:
        reading.read(file)
    reading.bad.require_order(path, sum(len(one.times) for one in reading.rows.values()))
    if not reading.rows:
        raise DataError(f"{path} has no row that can be used{reading.bad.left_out()}.")


def convert_rows(
    path: Path,
    out: Path,
    entity: str,
    cut: PanelCut,
    bad: Bad,
    max_gap: int | None = None,
    form: Form = PLAIN,
    *,
    force: bool = True,
) -> dict[str, Any]:
    """Write `out`, which is replaced where that is allowed (`force`); says what it holds, and what
    was left out. Raises DataError.
    """
    reading, files = PanelReading(bad, entity.lower(), form), csv_files(path)
    head, header = _opened(files[0], reading, cut.target)
    require_lines(path, files, cut.window + max(cut.horizons))
    require_new(out, force=force)
    _read_all(path, reading, files)
    forecast = _column_of(path, cut.target, reading.columns)
    place = reading.columns.index(forecast)
    rows = dict(sorted(reading.rows.items()))
    if cut.target == VOLATILITY:
        rows = dict(_with_prices(rows, forecast, place, bad))
    times = np.unique([time for one in rows.values() for time in one.times])
    usual = int(np.median(np.diff(times))) if len(times) > 1 else 1
    longest = max_gap or USUAL_GAPS * usual
    rows = dict(_usable(rows, cut, forecast, place, bad))
    if not rows:
        raise DataError(
            f"No entity of {path} has what a sample takes{bad.left_out()}; ask for a shorter"
            " window, or mend what was left out."
        )
    _tell_gaps(rows, longest, bad, form.time_column)
    panel = _without_constants(path, _in_a_panel(rows, reading.columns), forecast, bad)
    made = write_panel(out, panel, cut, longest, force=force)
    missing = {name: _gap_dates(one.times, panel.times) for name, one in rows.items()}
    return {
        **made,
        "rows": sum(len(one.times) for one in rows.values()),
        "missing_dates": {name: count for name, count in missing.items() if count},
        **head.told(header.time),
        "times_read_as": reading.times_read_as,
        "bad": dict(bad.counts),
        "told": bad.told,
    }


def _opened(file: Path, reading: PanelReading, target: str) -> tuple[Head, PanelHeader]:
    """How a file begins. DataError where it has no such target, before all of it is read."""
    head = head_of(file, reading.form)
    header = PanelHeader.of(file, head, reading.entity, reading.form)
    _column_of(file, target, tuple(header.numbers))
    return head, header


def _column_of(path: Path, target: str, columns: tuple[str, ...]) -> str:
    """The column that the forecast is made of. DataError."""
    if target == VOLATILITY:
        return price_of(columns)
    if target not in columns:
        raise DataError(
            f"{path} has no column {target!r} to forecast; it has {', '.join(columns)}, and"
            f" `volatility` where there is a price.{did_you_mean(closest(target, columns))}"
        )
    return target


def _with_prices(
    rows: dict[str, Rows], column: str, place: int, bad: Bad
) -> Iterator[tuple[str, Rows]]:
    """Volatility is that of logarithms: without rows that have none."""
    for name, one in rows.items():
        kept = Rows()
        for time, at, values in zip(one.times, one.places, one.values, strict=True):
            if values[place] > 0:
                kept.times.append(time)
                kept.places.append(at)
                kept.values.append(values)
            else:
                what = f"{at}, column {column}: {values[place]:g} of {name} is no price above 0."
                bad.add("not_prices", what, LEFT_OUT)
        if kept.times:
            yield name, kept


def _usable(
    rows: dict[str, Rows], cut: PanelCut, column: str, place: int, bad: Bad
) -> Iterator[tuple[str, Rows]]:
    """Entities with the dates of a sample, and of which something can be forecast: a price that
    never changes has no logarithm of its volatility.
    """
    needed = cut.window + max(cut.horizons)
    for name, one in rows.items():
        instead, at = "such entities are left out", one.places[0]
        if len(one.times) < needed:
            what = f"{at}, column of entities: {name} has {len(one.times):,} dates, and"
            what += f" a sample takes {needed:,}."
            bad.add("short_entities", what, instead)
        elif cut.target == VOLATILITY and len({values[place] for values in one.values}) == 1:
            what = f"{at}, column {column}: the price of {name} never changes from"
            what += f" {one.values[0][place]:g}, so it has no volatility."
            bad.add("still_entities", what, instead)
        else:
            yield name, one


def _tell_gaps(rows: dict[str, Rows], longest: int, bad: Bad, column: str) -> None:
    for name, one in rows.items():
        times = np.array(one.times)
        for place in np.flatnonzero(np.diff(times) > longest).tolist():
            what = f"{one.places[place + 1]}, column {column}: {name} is missing since"
            what += f" {told_time(one.times[place])}, for {_days(times[place + 1] - times[place])}."
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


def _without_constants(path: Path, panel: Panel, forecast: str, bad: Bad) -> Panel:
    """A column of one value tells nothing; that of which a forecast is made has to vary."""
    least, most = np.nanmin(panel.values, (0, 1)), np.nanmax(panel.values, (0, 1))
    kept = least != most
    for place in np.flatnonzero(~kept).tolist():
        what = f"{path}, column {panel.columns[place]}: it is {least[place]:g} in every row"
        if panel.columns[place] == forecast:
            raise DataError(
                f"{what} that can be used, and it is to be forecast: there is nothing to learn."
                " Name another column (--target)."
            )
        bad.add("constant_columns", f"{what}.", "such columns are left out")
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
    add_form(parser)
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        horizons = tuple(sorted(set(options.horizon)))
        cut = PanelCut(options.window, horizons, options.target.lower(), options.every)
        gap = gap_of(options.max_gap) if options.max_gap is not None else None
        bad = Bad(skips=options.on_bad == "skip")
        path, out, entity, form = options.path, options.out, options.entity, form_of(options)
        return convert_rows(path, out, entity, cut, bad, gap, form, force=options.force)

    return answer(work, f"{options.path} could not be written as {options.out}")


if __name__ == "__main__":
    sys.exit(main())
