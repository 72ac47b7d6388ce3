"""Cuts a table into samples: writes the series and where the windows of each sample begin.

`python -m worker.trainer.tools.samples IN OUT.h5 --window N --horizon M --target COLUMN` prints
one JSON document. A sample is `features` (N, columns), the table's rows from one on, and `targets`
(M,), the rows of one column that follow. No sample reaches from one file of a folder into the
next. Where a column says when each row was, rows that are out of order and gaps end it, or are left
out and counted (`--on-bad skip`), see `worker.trainer.tools.row_times`.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.window_files import SERIES, write_windows
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer
from worker.trainer.tools.bad_rows import Bad, gap_of
from worker.trainer.tools.row_times import RowTimes
from worker.trainer.tools.tables import Table, column_of, open_table

PIECE_STEPS = 2**18


@dataclass(frozen=True)
class SampleCut:
    """Steps of a window, of what follows it, and from one sample to the next."""

    window: int
    horizon: int
    every: int = 1

    def starts(self, lengths: list[int]) -> Rows:
        """Where the samples of stretches of so many steps begin, which lie one behind another."""
        begins = np.cumsum([0, *lengths[:-1]])
        last = [length - self.window - self.horizon for length in lengths]
        each = [np.arange(b, b + n + 1, self.every) for b, n in zip(begins, last, strict=True)]
        return np.concatenate(each).astype(np.int64)


def cut(
    table: Table, out: Path, how: SampleCut, target: str, bad: Bad, max_gap: int | None = None
) -> dict[str, Any]:
    """Write `out`; says what it holds. `max_gap`: seconds from one row to the next that are no gap.
    DataError when there is not one sample, or a row cannot be used.
    """
    column, names = column_of(table, target), table.columns
    with (
        whole_file(out) as partial,
        tempfile.TemporaryFile(dir=out.parent) as steps,
        h5py.File(partial, "w") as file,
    ):
        period: int | None = None
        lengths = []
        for path in table.files:
            times = RowTimes(path, table.time or "", bad, max_gap, period)
            lengths += _copy(table, path, steps, times)
            period = times.period
        if table.time is not None and period is None and (bad.skips or max_gap is not None):
            raise DataError(
                f"The column {table.time!r} of {table.path} holds no times (ISO 8601, or seconds"
                " since 1970), so --on-bad and --max-gap have nothing to look at. Leave them out."
            )
        starts = how.starts(lengths)
        if not len(starts):
            raise DataError(
                f"The longest stretch of {table.path} has {max(lengths):,} rows, and one sample"
                f" takes {how.window + how.horizon:,}: {how.window:,} and the {how.horizon:,} that"
                " follow. Ask for less."
            )
        step = Field((len(names),), np.dtype(np.float32))
        write_windows(file, "features", steps, step, starts, how.window)
        _write_target(file, column, starts + how.window, how.horizon)
        file.attrs.update({"feature_names": list(names), "target_name": target})
    return {
        "path": str(out),
        "bytes": out.stat().st_size,
        "samples": len(starts),
        "steps": sum(lengths),
        "stretches": len(lengths),
        "features": list(names),
        "left_out": [name for name in table.left_out if name != table.time or period is None],
        "time": table.time,
        "bad": dict(bad.counts),
        "told": bad.told,
    }


def _copy(table: Table, path: Path, steps: IO[bytes], clock: RowTimes) -> list[int]:
    """Append the rows of a file; how many there were in each stretch without a gap."""
    count, begins = 0, [0]
    for piece, times in table.pieces(path):
        kept, new = clock.take(times, len(piece))
        rows = piece[kept]
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
    parser.add_argument("--array", help="of an HDF5 file")
    parser.add_argument("--on-bad", choices=("stop", "skip"), default="stop")
    parser.add_argument("--max-gap")
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        how = SampleCut(options.window, options.horizon, options.every)
        gap = gap_of(options.max_gap) if options.max_gap is not None else None
        table, bad = open_table(options.path, options.array), Bad(skips=options.on_bad == "skip")
        if table.time is None and (gap is not None or bad.skips):
            raise DataError(
                f"{options.path} has no column of times, so --on-bad and --max-gap have nothing to"
                " look at. Call the column `time`, or leave them out."
            )
        return cut(table, options.out, how, options.target, bad, gap)

    return answer(work, f"{options.path} could not be written as {options.out}")


if __name__ == "__main__":
    sys.exit(main())
