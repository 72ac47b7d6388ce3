"""Cuts a table into samples: writes the series and where the windows of each sample begin.

`python -m worker.trainer.cut IN OUT.h5 --window N --horizon M --target COLUMN` prints one JSON
document. A sample is `features` (N, columns), the table's rows from one on, and `targets` (M,), the
rows of one column that follow. No sample reaches from one file of a folder into the next.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np

from worker.trainer.answer import answer
from worker.trainer.data.source import Field, Rows
from worker.trainer.data.window_files import SERIES, write_windows
from worker.trainer.errors import DataError
from worker.trainer.tables import Table, column_of, open_table
from worker.trainer.whole_file import whole_file

PIECE_STEPS = 2**18


@dataclass(frozen=True)
class Cut:
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


def cut(table: Table, out: Path, how: Cut, target: str) -> dict[str, Any]:
    """Write `out`; says what it holds. DataError when there is not one sample."""
    column, names = column_of(table, target), table.columns
    with (
        whole_file(out) as partial,
        tempfile.TemporaryFile(dir=out.parent) as steps,
        h5py.File(partial, "w") as file,
    ):
        lengths = [_copy(table, path, steps) for path in table.files]
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
        "left_out": list(table.left_out),
    }


def _copy(table: Table, path: Path, steps: IO[bytes]) -> int:
    """Append the rows of a file; how many there were."""
    count = 0
    for piece in table.stretch(path):
        steps.write(piece.tobytes())
        count += len(piece)
    return count


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
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        how = Cut(options.window, options.horizon, options.every)
        return cut(open_table(options.path, options.array), options.out, how, options.target)

    return answer(work, f"{options.path} could not be written as {options.out}")


if __name__ == "__main__":
    sys.exit(main())
