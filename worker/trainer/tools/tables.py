"""Tables of numbers, a row for each step of time: CSV, Parquet, Feather, folders of them, HDF5."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial as bound
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from app.spec.suffixes import ARROW, CSV, HDF5, NUMPY, TEXT
from app.suggest import closest, did_you_mean
from worker.trainer.data.formats.arrow_index import arrow, explained
from worker.trainer.data.formats.hdf5_file import find_array, open_file, unusable_because
from worker.trainer.errors import DataError
from worker.trainer.tools.bad_rows import LEFT_OUT, Bad
from worker.trainer.tools.classes import refuse_fractions
from worker.trainer.tools.row_times import ColumnTimes
from worker.trainer.tools.rows.form import PLAIN, Form
from worker.trainer.tools.rows.head import head_of
from worker.trainer.tools.rows.quotes import require_one_line
from worker.trainer.tools.rows.text_columns import (
    RowBatch,
    is_numeric,
    numbers_of,
    require_readable,
    text_batches,
)
from worker.trainer.tools.rows.time_columns import find_time, read_times

FORMATS = {".parquet": "parquet"} | dict.fromkeys(CSV, "csv") | dict.fromkeys(ARROW, "feather")
PIECE_ROWS = 2**16


class TablePiece(NamedTuple):
    """Some rows of a file."""

    numbers: NDArray[np.float32]
    """(rows, columns), NaN where there is none."""
    times: ColumnTimes | None
    """None: not known."""
    told: Callable[[int, int], str] | None = None
    """Of a row and a column what is wrong with the text there; empty where there is none."""
    misfits: Mapping[int, tuple[str, str]] = MappingProxyType({})
    """Rows of too few or too many fields, which have no numbers (`RowBatch`)."""
    labels: NDArray[np.object_] | None = None
    """The texts of the table's `label`, trimmed; None where a row has none."""


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
    time: tuple[str, ...] = ()
    """The columns that together say when each row was."""
    form: Form = PLAIN
    separated_by: str | None = None
    """Of a CSV file in words, unless it is commas."""
    label: str | None = None
    """The column whose values are classes: it is read as text, and is none of `columns`."""

    def pieces(self, file: Path) -> Iterator[TablePiece]:
        """The rows of a file. DataError when they cannot be read."""
        yield from self._of_array(file) if self.array is not None else self._of_table(file)

    def has_rows(self, count: int) -> bool:
        """Whether a file has so many. Reads no more than that."""
        for file in self.files:
            rows = 0
            for piece in self.pieces(file):
                rows += len(piece.numbers)
                if rows >= count:
                    return True
        return False

    def _of_array(self, path: Path) -> Iterator[TablePiece]:
        with open_file(path) as file:
            array = _array(file, path, self.array)
            for start in range(0, len(array), PIECE_ROWS):
                rows = array[start : start + PIECE_ROWS]
                numbers = np.ascontiguousarray(rows.reshape(len(rows), -1), np.float32)
                yield TablePiece(numbers, None)

    def _of_table(self, path: Path) -> Iterator[TablePiece]:
        label = () if self.label is None else (self.label,)
        read, count = list(dict.fromkeys((*self.columns, *self.time, *label))), 0
        with explained(path):
            for batch, misfits in _batches(path, self.form, read):
                if missing := sorted(set(read) - set(batch.schema.names), key=read.index):
                    raise DataError(
                        f"{path} has no column {missing[0]!r}, which {self.files[0].name} has; all"
                        " the files of a folder need the same columns."
                    )
                times = read_times(batch, self.time, self.form) if self.time else None
                by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
                columns = [by_name[name] for name in self.columns]
                numbers = np.column_stack([_numbers(one, self.form) for one in columns])
                told = bound(_told_of_text, f"{path}, row", count, columns, self.form)
                numbers = np.ascontiguousarray(numbers, np.float32)
                labels = None if self.label is None else _texts(by_name[self.label])
                yield TablePiece(numbers, times, told if _is_csv(path) else None, misfits, labels)
                count += len(numbers)


def _told_of_text(
    where: str, before: int, columns: Sequence[Any], form: Form, row: int, column: int
) -> str:
    """`before`: how many rows came before these."""
    text = columns[column][row].as_py()
    require_one_line(f"{where} {before + row + 1:,}", text or "")
    return "" if text is None else f"{text!r} is no number.{form.advice(text)}"


def _texts(column: Any) -> NDArray[np.object_]:
    """Values of an Arrow column as text, trimmed; None where nothing stands, or NaN."""
    texts = column.cast(arrow().string()).to_pylist()
    if arrow().types.is_floating(column.type):
        texts = [None if text == "nan" else text for text in texts]
    trimmed = [(text.strip() or None) if text is not None else None for text in texts]
    return np.array(trimmed, object)


def usable_rows(
    table: Table, path: Path, piece: TablePiece, before: int, bad: Bad
) -> NDArray[np.bool_]:
    """Which rows have finite numbers alone, and a label if the table has one. `before`: how many
    rows of the file came before. Raises DataError for others, unless such are skipped, and for a
    label that is a fraction.
    """
    where = f"{path}, row"
    usable = bad.finite(where, before, table.columns, piece.numbers, piece.told, piece.misfits)
    if piece.labels is not None:
        lacks = np.array([label is None for label in piece.labels], bool)
        for place in np.flatnonzero(usable & lacks).tolist():
            sentence = f"{where} {before + place + 1:,}, column {table.label}: it has no class."
            bad.add("no_class", sentence, LEFT_OUT)
        usable &= ~lacks
        used = np.where(usable, piece.labels, np.array(None, object))
        refuse_fractions(used.tolist(), str(path), before, str(table.label))
    return usable


def with_label(table: Table, name: str) -> Table:
    """The table with this column as its label. DataError if there is none, or no other column."""
    if table.array is not None:
        raise DataError(
            f"{table.path} has numbers alone, and no column that could name classes. Name its "
            "labels in data.targets, with recipe.task classification."
        )
    if name not in (*table.columns, *table.left_out):
        names = (*table.columns, *table.left_out)
        meant = did_you_mean(closest(name, names))
        raise DataError(f"There is no column {name!r}; there are {_told(names)}.{meant}")
    others = tuple(one for one in table.columns if one != name)
    if not others:
        raise DataError(
            f"Beside {name!r} {table.path} has no column of numbers, so there is nothing to tell "
            "its classes by."
        )
    left_out = tuple(one for one in table.left_out if one != name)
    return replace(table, columns=others, left_out=left_out, label=name)


def _numbers(column: Any, form: Form) -> NDArray[Any]:
    """Of an Arrow column, as numbers of 32 bits."""
    library = arrow()
    if library.types.is_string(column.type):
        with np.errstate(over="ignore"):  # what is too large is infinite, and told
            return numbers_of(column, form).astype(np.float32)
    # Not "safe": numbers that float32 does not hold exactly are rounded, as is meant.
    found = column.cast(library.float32(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(found)


def open_table(path: Path, array: str | None = None, form: Form = PLAIN) -> Table:
    """Look at a table. `array` names the one of an HDF5 file. DataError when there is none."""
    if path.suffix.lower() in HDF5:
        if (form.time, form.time_format) != ((), None):
            raise DataError(f"{path} has an array and no columns, so --time names nothing there.")
        _require_no_text(path, form)
        return _hdf5_table(path, array)
    if array is not None:
        raise DataError(f"{path} is no HDF5 file, so it has no array {array!r}.")
    files = _files_of(path)
    first, is_csv = files[0], _is_csv(files[0])
    if not is_csv:
        _require_no_text(first, form)
    with explained(first):
        batch = _first_batch(first, form)
        types = arrow().types
    # A column without a name is the row numbers that pandas writes.
    numbers = [
        name
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name and (is_numeric(column, form) if is_csv else _is_number(types, column.type))
    ]
    separated_by = head_of(first, form).separated_by if is_csv else None
    if not numbers:
        raise DataError(_without_numbers(first, batch))
    time = _time_of(first, batch, form, numbers if is_csv else [])
    empty = [name for name in batch.schema.names if not name and _is_empty(batch, name)]
    others = [name for name in batch.schema.names if name not in (*numbers, *empty)]
    return Table(path, tuple(numbers), tuple(others), None, files, time, form, separated_by)


def _time_of(path: Path, batch: Any, form: Form, texts: Sequence[str]) -> tuple[str, ...]:
    """The columns of the time; `texts`: those of numbers that are written as text. DataError tells
    what cannot be read of both, so that it is one try to mend it.
    """
    try:
        time = find_time(path, batch, form)
    except DataError as wrong:
        try:
            _require_readable(path, batch, form, texts)
        except DataError as also:
            told = also.message.removeprefix(f"{path}, ")
            raise DataError(f"{wrong.message} Also {told}") from None
        raise
    _require_readable(path, batch, form, [name for name in texts if name not in time])
    return time


def _require_readable(path: Path, batch: Any, form: Form, names: Sequence[str]) -> None:
    for name in names:
        require_readable(path, name, batch[name], form)


def _require_no_text(path: Path, form: Form) -> None:
    if not (form.is_plain and form.has_names):
        raise DataError(
            f"{path} is no CSV file: --decimal, --thousands and --no-header say how text is read."
            " Leave them out."
        )


def how_to_convert(path: Path) -> str:
    """The command that makes a dataset of what no run reads as it is. DataError."""
    command, then = f"stoker data convert {shlex.quote(str(path))}", "Its last line registers it."
    if path.suffix.lower() in NUMPY:
        return f"`{command}` writes the arrays of {path.name} as runs read them. {then}"
    try:
        target = open_table(path).columns[-1]
    except DataError as error:
        options = f" These are options of `{command}`." if " --" in error.message else ""
        raise DataError(f"{error.message}{options}") from error
    return (
        f"`{command} --window 48 --horizon 12 --target {shlex.quote(target)}` makes samples of"
        f" {path.name}, 48 rows to look back on and 12 to forecast; choose the numbers and the"
        " column. Rows that are samples by themselves are written by `--rows --target COLUMN`, and"
        f" with `--classes` where that column says a class. {then}"
    )


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() in (*CSV, TEXT)


def _batches(path: Path, form: Form, columns: Sequence[str] | None = None) -> Iterator[RowBatch]:
    """Of files that are not CSV these columns alone."""
    if _is_csv(path):
        return text_batches(path, form)
    dataset = _dataset(path)
    known = [name for name in columns or dataset.schema.names if name in dataset.schema.names]
    return (RowBatch(rows, {}) for rows in dataset.to_batches(columns=known) if len(rows))


def _first_batch(path: Path, form: Form) -> Any:
    """The first rows, also where there are none."""
    if _is_csv(path):
        names = head_of(path, form).kept
        empty = [arrow().array([], arrow().string())] * len(names)
        none = arrow().RecordBatch.from_arrays(empty, names=names)
        return next(text_batches(path, form), RowBatch(none, {})).rows
    rows = _dataset(path).head(PIECE_ROWS, batch_readahead=0, fragment_readahead=0)
    found = rows.combine_chunks().to_batches()
    return found[0] if found else arrow().RecordBatch.from_pylist([], schema=rows.schema)


def _is_empty(batch: Any, name: str) -> bool:
    column = batch[name]
    return bool(column.null_count == len(column))


def _without_numbers(path: Path, batch: Any) -> str:
    names = batch.schema.names
    if not len(batch):
        return f"{path} has the names of columns ({', '.join(names)}) and no rows behind them."
    if len(names) == 1:
        return (
            f"{path} has no column of numbers, only {names[0]}. Columns are separated by commas,"
            " semicolons, tabs or vertical bars."
        )
    return f"{path} has no column of numbers, only {', '.join(names)}."


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _files_of(path: Path) -> tuple[Path, ...]:
    if not path.exists():
        raise DataError(f"There is no {path}.")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    known = FORMATS if path.is_dir() else (*FORMATS, TEXT)
    tables = tuple(file for file in files if file.suffix.lower() in known and file.is_file())
    if not tables:
        packed = (
            f" Unpack it first: gunzip -k {shlex.quote(path.name)}." if path.suffix == ".gz" else ""
        )
        raise DataError(
            f"{path} is no table: CSV (.csv, .tsv, .txt), Parquet (.parquet), Feather (.feather,"
            f" .arrow, .ipc), a folder of these, and HDF5 (.h5) can be read.{packed}"
        )
    if len({FORMATS.get(file.suffix.lower()) for file in tables}) > 1:
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
    each = [one.strip() for one in name.split(",")]
    if len(each) > 1 and set(each) <= set(table.columns):
        raise DataError(
            f"One column is forecast, and {name!r} names {len(each)}. Convert once for each:"
            f" --target {shlex.quote(each[0])} first."
        )
    what = f"There is no column {name!r}"
    if name in table.time:
        what = f"The column {name!r} says when each row was, which is not forecast"
    elif name in table.left_out:
        what = f"The column {name!r} holds no numbers (if its values are classes, pass --classes)"
    meant = did_you_mean(closest(name, table.columns))
    raise DataError(f"{what}; these hold numbers: {_told(table.columns)}.{meant}")


def _told(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
