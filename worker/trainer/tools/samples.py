"""Cuts a table into samples: writes the series and where the windows of each sample begin.

`python -m worker.trainer.tools.samples IN OUT.h5 --window N --horizon M --target COLUMN` prints
one JSON document. A sample is `features` (N, columns), the table's rows from one on, and `targets`
(M,), the rows of one column that follow. With --classes `targets` is the class of the last of
these, and its column is no feature. No sample reaches from one file of a folder into the next.

Rows with a number that is missing or not finite end it, or are left out and counted (`--on-bad
skip`); so do rows that are out of order and gaps, where a column says when each row was, see
`worker.trainer.tools.row_times`. No sample reaches over what is left out.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import write_class_names, write_roles
from worker.trainer.data.formats.window_files import (
    HORIZONS,
    SERIES,
    STEP_SECONDS,
    TIME_COLUMN,
    write_windows,
)
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer, require_new
from worker.trainer.tools.bad_rows import MICROSECONDS, Bad, gap_of
from worker.trainer.tools.classes import Classes
from worker.trainer.tools.classes import told as told_classes
from worker.trainer.tools.row_times import RowTimes
from worker.trainer.tools.rows.form import add_form, form_of
from worker.trainer.tools.tables import Table, column_of, open_table, usable_rows, with_label

PIECE_STEPS = 2**18


@dataclass(frozen=True)
class SampleCut:
    """Steps of a window, of what follows it, and from one sample to the next."""

    window: int
    horizon: int
    every: int = 1

    def __str__(self) -> str:
        rows = self.window + self.horizon
        return f"{rows:,}: {self.window:,} and the {self.horizon:,} that follow"

    def starts(self, lengths: list[int]) -> Rows:
        """Where the samples of stretches of so many steps begin, which lie one behind another."""
        begins = np.cumsum([0, *lengths[:-1]])
        last = [length - self.window - self.horizon for length in lengths]
        each = [np.arange(b, b + n + 1, self.every) for b, n in zip(begins, last, strict=True)]
        return np.concatenate(each).astype(np.int64)


def cut(
    table: Table,
    out: Path,
    how: SampleCut,
    target: str,
    bad: Bad,
    max_gap: int | None = None,
    *,
    classes: bool = False,
    force: bool = True,
) -> dict[str, Any]:
    """Write `out`; says what it holds. `max_gap`: seconds from one row to the next that are no gap;
    `classes`: the target's values are classes; `force`: whether `out` may be replaced. DataError
    when there is not one sample, or a row cannot be used.
    """
    if classes:
        table = with_label(table, target)
    column, names = _required(table, target, how), table.columns
    require_new(out, force=force)
    with (
        whole_file(out) as partial,
        tempfile.TemporaryFile(dir=out.parent) as steps,
        h5py.File(partial, "w") as file,
    ):
        found = Classes(target)
        labels: list[Rows] = []
        lengths, clock = _copied(
            table, steps, bad, max_gap, lambda texts: labels.append(found.add(texts))
        )
        starts = how.starts(lengths)
        if not len(starts):
            raise DataError(
                f"The longest stretch of {table.path} has {max(lengths):,} rows{bad.left_out()},"
                f" and one sample takes {how}. Ask for less."
            )
        require_new(out, force=force)
        step = Field((len(names),), np.dtype(np.float32))
        write_windows(file, "features", steps, step, starts, how.window)
        class_names = None
        if column is None:
            numbered, class_names = found.numbered(np.concatenate(labels))
            file["targets"] = numbered[starts + how.window + how.horizon - 1]
            file["targets"].attrs[HORIZONS] = [how.horizon]
            write_class_names(file["targets"], class_names)
        else:
            _write_target(file, column, starts + how.window, how.horizon)
        clocks = " ".join(table.time) if clock.period else ""
        told = {"feature_names": list(names), "target_name": target, TIME_COLUMN: clocks}
        file.attrs.update(told)
        if clock.period:
            file.attrs[STEP_SECONDS] = clock.period / MICROSECONDS
        write_roles(file, ["features"], ["targets"])
    return {
        "path": str(out),
        "bytes": out.stat().st_size,
        "samples": len(starts),
        "steps": sum(lengths),
        "stretches": len(lengths),
        "features": list(names),
        "class_names": class_names,
        "classes": None if class_names is None else told_classes(class_names),
        "left_out": [n for n in table.left_out if n not in table.time or not clock.period],
        "time": clocks or None,
        "separated_by": table.separated_by,
        "times_read_as": clock.read_as,
        "bad": dict(bad.counts),
        "told": [*bad.told, *(_coarse(table) if clock.period else [])],
    }


def _coarse(table: Table) -> list[str]:
    """Of a time in numbers, which is a feature as any other: it always was."""
    if len(table.time) != 1 or table.time[0] not in table.columns or table.form.time_format:
        return []
    return [
        f"The column {table.time[0]} is the time and a feature too, and 32 bits hold such numbers"
        " coarsely: seconds since 1970 in steps of 128. Write it as text, such as"
        " 2024-01-31T12:00:00, to leave it out."
    ]


def _required(table: Table, target: str, how: SampleCut) -> int | None:
    """The place of the target; None where it is the table's label. DataError with all that is wrong
    before anything is copied.
    """
    wrong, column = [], None
    try:
        column = column_of(table, target) if table.label is None else None
    except DataError as error:
        wrong.append(error.message)
    if not table.has_rows(how.window + how.horizon):
        rows = [sum(len(piece.numbers) for piece in table.pieces(file)) for file in table.files]
        wrong.append(
            f"The longest stretch of {table.path} has {max(rows):,} rows, and one sample takes"
            f" {how}. Ask for less."
        )
    if wrong:
        raise DataError(" ".join(wrong))
    return column


def _copied(
    table: Table,
    steps: IO[bytes],
    bad: Bad,
    max_gap: int | None,
    add_labels: Callable[[NDArray[np.object_]], None],
) -> tuple[list[int], RowTimes]:
    """Write the rows of all files; how many there were in each stretch, and the last file's times.
    DataError where --max-gap has nothing to look at.
    """
    lengths, clock = [], RowTimes(table.path, " and ".join(table.time), bad, table.form, max_gap)
    for path in table.files:
        clock = RowTimes(path, clock.column, bad, table.form, max_gap, clock.period, clock.read_as)
        lengths += _copy(table, path, steps, clock, add_labels)
    bad.require_order(table.path, sum(lengths))
    if table.time and clock.period is None and max_gap is not None:
        raise DataError(
            f"The column {clock.column!r} of {table.path} holds no times (ISO 8601, or a number"
            " since 1970), so --max-gap has nothing to look at. Leave it out."
        )
    return lengths, clock


def _copy(
    table: Table,
    path: Path,
    steps: IO[bytes],
    clock: RowTimes,
    add_labels: Callable[[NDArray[np.object_]], None],
) -> list[int]:
    """Append the rows of a file; how many there were in each stretch without a gap."""
    count, begins = 0, [0]
    for piece in table.pieces(path):
        usable = usable_rows(table, path, piece, clock.row, clock.bad)
        kept, new = clock.take(piece.times, usable)
        rows = piece.numbers[kept]
        if piece.labels is not None:
            add_labels(piece.labels[kept])
        begins += [count + place for place in new]
        steps.write(rows.tobytes())
        count += len(rows)
    return [int(length) for length in np.diff([*begins, count])]


def _write_target(file: h5py.File, column: int, starts: Rows, horizon: int) -> None:
    """One column of the features as a series of its own."""
    series = file["features"][SERIES]
    with tempfile.TemporaryFile(dir=Path(file.filename).parent) as steps:
        for start in range(0, len(series), PIECE_STEPS):
            piece = series[start : start + PIECE_STEPS, column]
            steps.write(np.ascontiguousarray(piece).tobytes())
        write_windows(file, "targets", steps, Field((), series.dtype), starts, horizon)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="cut", description="A table to samples.")
    parser.add_argument("path", type=Path, metavar="IN")
    parser.add_argument("out", type=Path, metavar="OUT.h5")
    for name in ("window", "horizon", "every"):
        parser.add_argument(f"--{name}", type=int, required=name != "every", default=1)
    parser.add_argument("--target", required=True)
    parser.add_argument("--classes", action="store_true")
    parser.add_argument("--array", help="of an HDF5 file")
    parser.add_argument("--on-bad", choices=("stop", "skip"), default="stop")
    parser.add_argument("--max-gap")
    parser.add_argument(
        "--new", dest="force", action="store_false", help="refuse an OUT that is there"
    )
    add_form(parser)
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        how = SampleCut(options.window, options.horizon, options.every)
        gap = gap_of(options.max_gap) if options.max_gap is not None else None
        bad = Bad(skips=options.on_bad == "skip")
        table = open_table(options.path, options.array, form_of(options))
        if not table.time and gap is not None:
            raise DataError(
                f"{options.path} has no column of times, so --max-gap has nothing to look at. Name"
                " one by --time, or leave it out."
            )
        return cut(
            table, options.out, how, options.target, bad, gap,
            classes=options.classes, force=options.force,
        )  # fmt: skip

    return answer(work, f"{options.path} could not be written as {options.out}")


if __name__ == "__main__":
    sys.exit(main())
