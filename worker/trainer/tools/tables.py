"""Tables of numbers, a row for each step of time: CSV, Parquet, Feather, folders of them, HDF5."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from app.suggest import closest, did_you_mean
from worker.trainer.data.formats.arrow_index import arrow, explained
from worker.trainer.data.formats.hdf5_file import find_array, open_file, unusable_because
from worker.trainer.errors import DataError
from worker.trainer.tools.row_times import ColumnTimes, time_column, times_of

FORMATS = {".csv": "csv", ".parquet": "parquet"} | dict.fromkeys(
    (".feather", ".arrow", ".ipc"), "feather"
)
HDF5 = (".h5", ".hdf5", ".hdf")
PIECE_ROWS = 2**16


@dataclass(frozen=True)
class Table:
    """Columns of numbers, and the names of others, which are left out. One stretch of time a file,
    in the order of their names.
    """

    path: Path
    columns: tuple[str, ...]
    left_out: tuple[str, ...]
    array: str | None
    """Of an HDF5 file."""
    files: tuple[Path, ...]
    time: str | None = None
    """The column that says when each row was."""

    def pieces(self, file: Path) -> Iterator[tuple[NDArray[np.float32], ColumnTimes | None]]:
        """The rows of a file, (rows, columns) at a time, and their times; None: not known.
        DataError when they cannot be read.
        """
        pieces = self._of_array(file) if self.array is not None else self._of_table(file)
        for piece, times in pieces:
            yield np.ascontiguousarray(piece, np.float32), times

    def _of_array(self, path: Path) -> Iterator[tuple[NDArray[Any], None]]:
        with open_file(path) as file:
            array = _array(file, path, self.array)
            for start in range(0, len(array), PIECE_ROWS):
                rows = array[start : start + PIECE_ROWS]
                yield rows.reshape(len(rows), -1), None

    def _of_table(self, path: Path) -> Iterator[tuple[NDArray[Any], ColumnTimes | None]]:
        library = arrow()
        with explained(path):
            dataset = _dataset(path)
            read = dict.fromkeys((*self.columns, *([self.time] if self.time else [])))
            if missing := [name for name in read if name not in dataset.schema.names]:
                raise DataError(
                    f"{path} has no column {missing[0]!r}, which {self.files[0].name} has; all the"
                    " files of a folder need the same columns."
                )
            wanted = library.schema([(name, library.float32()) for name in self.columns])
            for batch in dataset.to_batches(columns=list(read)):
                if not len(batch):
                    continue
                times = None if self.time is None else times_of(batch[self.time], library)
                # Not "safe": numbers that float32 does not hold exactly are rounded, as is meant.
                numbers = library.Table.from_batches([batch]).select(list(self.columns))
                whole = numbers.cast(wanted, safe=False)
                yield np.column_stack([column.to_numpy() for column in whole.columns]), times


def open_table(path: Path, array: str | None = None) -> Table:
    """Look at a table. `array` names the one of an HDF5 file. DataError when there is none."""
    if path.suffix.lower() in HDF5:
        return _hdf5_table(path, array)
    if array is not None:
        raise DataError(f"{path} is no HDF5 file, so it has no array {array!r}.")
    files = _files_of(path)
    if FORMATS[files[0].suffix.lower()] == "csv":
        _require_names_first(files[0])
    with explained(files[0]):
        schema = _dataset(files[0]).schema
        types = arrow().types
    # A column without a name is the row numbers that pandas writes.
    numbers = [f.name for f in schema if f.name and _is_number(types, f.type)]
    if not numbers:
        raise DataError(f"{files[0]} has no column of numbers, only {', '.join(schema.names)}.")
    others = tuple(name for name in schema.names if name not in numbers)
    return Table(path, tuple(numbers), others, None, files, time_column(schema, types))


def _require_names_first(path: Path) -> None:
    """DataError where a CSV file begins with a line of its own, as TMY3's files do."""
    with path.open(newline="", encoding="utf-8", errors="replace") as lines:
        rows = csv.reader(lines)
        first, second = next(rows, []), next(rows, [])
    if len(first) < len(second) or (second and len(first) > len(second)):
        raise DataError(
            f"Line 1 of {path} has {len(first)} fields and line 2 has {len(second)}: the names of"
            f" the columns have to come first. Leave out what stands before them, as with `tail -n"
            f" +2 {path.name} > rows.csv`."
        )


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _files_of(path: Path) -> tuple[Path, ...]:
    if not path.exists():
        raise DataError(f"There is no {path}.")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    tables = tuple(file for file in files if file.suffix.lower() in FORMATS and file.is_file())
    if not tables:
        raise DataError(
            f"{path} is no table: CSV (.csv), Parquet (.parquet), Feather (.feather, .arrow, .ipc),"
            " a folder of these, and HDF5 (.h5) can be read."
        )
    if len({FORMATS[file.suffix.lower()] for file in tables}) > 1:
        raise DataError(f"{path} has tables of several kinds; keep those of one kind in a folder.")
    return tables


def _hdf5_table(path: Path, name: str | None) -> Table:
    with open_file(path) as file:
        array = _array(file, path, name)
        if array.ndim > 2:
            raise DataError(
                f"{array.name[1:]!r} of {path} has shape {array.shape}, not (steps, columns): it is"
                " no series."
            )
        count = array.shape[1] if array.ndim == 2 else 1
        names = array.attrs.get("feature_names", file.attrs.get("feature_names", ()))
        columns = [str(one) for one in names]
        if len(columns) != count:
            columns = [str(number) for number in range(count)]
        return Table(path, tuple(columns), (), array.name[1:], (path,))


def _array(file: h5py.File, path: Path, name: str | None) -> h5py.Dataset:
    there = sorted(file)
    if name is None and len(there) != 1:
        raise DataError(f"{path} has {', '.join(there) or 'nothing'}: name the array with --array.")
    wanted = there[0] if name is None else name
    array = find_array(file, wanted)
    if array is None:
        raise DataError(f"{path} has no array {wanted!r}; at its top are {', '.join(there)}.")
    if (reason := unusable_because(array)) is not None:
        raise DataError(f"{wanted!r} of {path} {reason}.")
    return array


def _dataset(path: Path) -> Any:
    arrow()  # says what to install
    from pyarrow import dataset  # late, as pyarrow itself

    return dataset.dataset(path, format=FORMATS[path.suffix.lower()])


def column_of(table: Table, name: str) -> int:
    """The place of a column. DataError with those there are."""
    if name in table.columns:
        return table.columns.index(name)
    what = "holds no numbers" if name in table.left_out else "is not there"
    meant = did_you_mean(closest(name, table.columns))
    raise DataError(f"The column {name!r} {what}; of numbers are {_told(table.columns)}.{meant}")


def _told(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
