"""Arrow files that are one dataset: which columns are named arrays, and where the samples lie.

A dataset is a single Arrow IPC file (Feather 2 is the same), or those of a folder in the order of
their names. pyarrow reads them, without a memory map: a file that is cut short under one ends the
process, where a read says so.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.spec.suffixes import ARROW
from worker.trainer.data.formats.hdf5_file import USABLE_DTYPES
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError, SpecMismatch

MAGIC, OLD_MAGIC = b"ARROW1", b"FEA1"
# ZSTD makes a block of 128 KiB that is all alike 4 bytes, LZ4 less.
MOST_PACKED = 2**16


def arrow() -> Any:
    """The module. DataError where it is not installed."""
    try:
        import pyarrow  # a tenth of a second that HDF5 does not need
    except ImportError:
        raise DataError(
            "CSV, Feather and Arrow files are read by pyarrow, which is not installed here: on"
            " each worker, pip install 'stoker[worker]'."
        ) from None
    return pyarrow


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What pyarrow says of a file as a DataError."""
    library = arrow()
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"There is no file {path}; put it back, or register again.") from None
    except PermissionError:
        raise DataError(f"{path} may not be read by this user; change its permissions.") from None
    except (library.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as a table ({_first_line(error)}): it is damaged, cut short or"
            " of another kind. Write it again, or restore it from a copy."
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class MissingValues(DataError):
    """A column has nulls where it was read."""


class FileStamp(NamedTuple):
    """A file as it was when it was looked into."""

    path: Path
    size: int
    mtime_ns: int
    names: tuple[str, ...]
    """Of its columns, in its own order."""

    def places_of(self, names: Iterable[str]) -> list[int]:
        """Which columns these are."""
        return [self.names.index(name) for name in names]


@dataclass(frozen=True)
class Column:
    """A column that is a named array."""

    field: Field

    def values(self, array: Any) -> NDArray[Any]:
        """The samples of a whole pyarrow array, as they lie: (rows, *shape). Bits of booleans
        become a byte each; bytes of fixed-size binary stay. It has no nulls.
        """
        rows, numbers = len(array), len(array) * prod(self.field.shape)
        stored = array.buffers()[-1]  # of lists within lists that of the numbers
        if self.field.dtype == np.bool_:
            packed = np.frombuffer(stored, np.uint8, -(-numbers // 8))
            bits = np.unpackbits(packed, count=numbers, bitorder="little")
            return bits.view(np.bool_).reshape(rows, *self.field.shape)
        return np.frombuffer(stored, self.field.dtype, numbers).reshape(rows, *self.field.shape)


def nulls_in(array: Any) -> int:
    """Missing samples, and missing numbers within samples."""
    library, count = arrow(), int(array.null_count)
    if isinstance(array, library.ExtensionArray):
        return nulls_in(array.storage)
    is_list = library.types.is_fixed_size_list(array.type)
    return count + (nulls_in(array.values) if is_list else 0)


@dataclass(frozen=True, eq=False)
class ArrowIndex:
    """What is known of the files before their samples are read. It may be sent to another process.
    Record batches without rows do not count.
    """

    path: Path
    files: tuple[FileStamp, ...]
    columns: Mapping[str, Column]
    left_out: Mapping[str, str]
    """Columns that cannot be named arrays, and why, as the end of "it …"."""
    starts: Rows
    """(record batches + 1,): the number of the first sample of each, and that of all."""
    file_of: Rows
    """Of each record batch."""
    batch_of: Rows
    """Of each record batch: its number in its file."""

    @property
    def num_samples(self) -> int:
        return int(self.starts[-1])

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def newest_ns(self) -> int:
        """When the last of the files was written."""
        return max(file.mtime_ns for file in self.files)

    @property
    def largest_batch(self) -> int:
        """Samples of it."""
        return int(np.diff(self.starts).max(initial=0))

    @property
    def fields(self) -> Mapping[str, Field]:
        return {name: column.field for name, column in self.columns.items()}

    def place_of(self, sample: int) -> str:
        """The row of its file, counted from 0, and the file's name."""
        file = self.file_of[np.searchsorted(self.starts, sample, side="right") - 1]
        row = sample - int(self.starts[np.searchsorted(self.file_of, file)])
        return f"row {row:,} of {self.files[int(file)].path.name}"

    def of(self, names: Iterable[str]) -> "ArrowIndex":
        """With these columns alone. SpecMismatch, DataError."""
        return replace(self, columns={name: self._column(name) for name in names})

    def _column(self, name: str) -> Column:
        if name in self.columns:
            return self.columns[name]
        if name in self.left_out:
            raise DataError(f"The column {name!r} of {self.path} {self.left_out[name]}.")
        raise SpecMismatch(
            f"{self.path.name} has no column {name!r} (it has"
            f" {', '.join(sorted(self.columns))}); correct its name in the spec's data."
        )


def is_arrow(path: Path) -> bool:
    """Whether a dataset at this path is read as Arrow files: a folder, or a file named as one."""
    return path.is_dir() or path.suffix.lower() in ARROW


def listed(path: Path) -> list[Path]:
    """The files of a dataset, in the order of their names; others beside them do not count."""
    if not path.is_dir():
        return [path]
    found = [each for each in path.iterdir() if each.suffix.lower() in ARROW]
    return sorted(each for each in found if not each.name.startswith("."))


def arrow_paths(path: Path) -> list[Path]:
    """The files of a dataset. DataError where there is none, or one in a folder is a link."""
    found = listed(path)
    if not found:
        raise DataError(
            f"The folder {path} has no Arrow files ({', '.join(ARROW)}); put them there, each"
            " with the same columns."
        )
    for each in found:
        if each != path and each.is_symlink():
            raise DataError(
                f"{each} is a link, which is not followed for safety; put the file itself there."
            )
    return found


class OpenFile:
    """An Arrow file of which some columns are read. Of one thread."""

    def __init__(self, path: Path, places: Iterable[int] = ()) -> None:
        """`places`: which columns; none: all. OSError, or what pyarrow raises."""
        library = arrow()
        self._file = library.OSFile(str(path))
        try:
            # One thread: several record batches are read at once by threads of ours.
            options = library.ipc.IpcReadOptions(included_fields=list(places), use_threads=False)
            # The heap of a trainer keeps its memory, in huge pages: what pyarrow's own pool takes
            # anew for each record batch is paged in each time.
            pool = library.system_memory_pool()
            self._reader = library.ipc.open_file(self._file, options=options, memory_pool=pool)
        except BaseException:
            self._file.close()
            raise
        self.num_batches: int = self._reader.num_record_batches
        self.schema = self._reader.schema

    def batch(self, number: int) -> Any:
        """A record batch of those columns, whose buffers are as long as it says."""
        batch = self._reader.get_batch(number)
        batch.validate()
        return batch

    def close(self) -> None:
        self._file.close()


def read_index(path: Path) -> ArrowIndex:
    """Look into all files. DataError where they are damaged or differ.

    pyarrow tells how many rows a record batch has when it reads it, so the narrowest column of each
    is read.
    """
    paths = arrow_paths(path)
    first = _schema(paths[0])
    with explained(paths[0]):
        columns, left_out = _columns_of(first)
    narrowest = sorted(columns, key=lambda name: columns[name].field.sample_bytes)[:1]
    stamps, rows = list[FileStamp](), list[list[int]]()
    for each in paths:
        with explained(each):
            stat = each.stat()
            schema = _schema(each)
            _require_same_columns((paths[0], first), (each, schema))
            names = tuple(schema.names)
            stamps.append(FileStamp(each, stat.st_size, stat.st_mtime_ns, names))
            rows.append(_batch_rows(stamps[-1], narrowest))
        _require_bytes(stamps[-1], sum(rows[-1]), columns.values())
    counts = np.array([count for each in rows for count in each], np.int64)
    file_of = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    batch_of = np.concatenate([np.arange(len(each)) for each in rows])
    some = counts > 0
    starts = np.concatenate(([0], np.cumsum(counts[some])))
    return ArrowIndex(path, tuple(stamps), columns, left_out, starts, file_of[some], batch_of[some])


def _schema(path: Path) -> Any:
    with explained(path):
        _require_arrow(path)
        file = OpenFile(path)
        file.close()
        return file.schema


def _require_arrow(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(len(MAGIC))
    if head.startswith(OLD_MAGIC):
        raise DataError(f"{path} is Feather of version 1; write it again as version 2.")
    if head != MAGIC:
        raise DataError(
            f"{path} is no Arrow IPC file (Feather 2): it does not begin as one. A stream is"
            " written as a file by pyarrow.ipc.new_file."
        )


def _batch_rows(stamp: FileStamp, names: list[str]) -> list[int]:
    """Rows of each record batch, by one column; none where there is none to be read."""
    file = OpenFile(stamp.path, stamp.places_of(names))
    try:
        numbers = range(file.num_batches if names else 0)
        return [file.batch(number).num_rows for number in numbers]
    finally:
        file.close()


def _require_bytes(file: FileStamp, rows: int, columns: Iterable[Column]) -> None:
    """A damaged schema may say that samples are of any size."""
    if rows * sum(column.field.sample_bytes for column in columns) > MOST_PACKED * file.size:
        raise DataError(
            f"{file.path} cannot be read as a table: its columns say that {rows:,} rows take more"
            " than could be packed into it. Write it again, or restore it from a copy."
        )


def _require_same_columns(first: tuple[Path, Any], other: tuple[Path, Any]) -> None:
    (first_path, expected), (path, found) = first, other
    types = [{entry.name: str(entry.type) for entry in schema} for schema in (expected, found)]
    for name in {**types[0], **types[1]}:
        known, told = (each.get(name, "not there") for each in types)
        if known != told:
            raise DataError(
                f"The column {name!r} is {told} in {path} and {known} in {first_path.name}; all"
                " files of a folder need the same columns of the same types. Write that file"
                " again, or take it out."
            )


def _columns_of(schema: Any) -> tuple[dict[str, Column], dict[str, str]]:
    """(those that are named arrays, why each other is none)."""
    usable: dict[str, Column] = {}
    left_out: dict[str, str] = {}
    for entry in schema:
        found = _field_of(entry.type)
        if schema.names.count(entry.name) > 1:
            left_out[entry.name] = "is the name of several columns; give each a name of its own"
        elif isinstance(found, str):
            left_out[entry.name] = found
        else:
            usable[entry.name] = Column(found)
    return usable, left_out


def _field_of(kind: Any) -> Field | str:
    """A sample's shape and type, or why there is none."""
    library = arrow()
    shape: tuple[int, ...] = ()
    whole = kind
    if isinstance(kind, library.FixedShapeTensorType):
        if list(kind.permutation or ()) != sorted(kind.permutation or ()):
            return "is a tensor whose axes are stored in another order; write it in its own"
        shape, kind = tuple(kind.shape), kind.value_type
    elif isinstance(kind, library.BaseExtensionType):
        kind = kind.storage_type
    while library.types.is_fixed_size_list(kind):
        shape, kind = (*shape, kind.list_size), kind.value_type
    if library.types.is_fixed_size_binary(kind):
        shape, kind = (*shape, kind.byte_width), library.uint8()
    if (reason := _unusable_because(kind, whole)) is not None:
        return reason
    if 0 in shape:
        return f"is {whole}, so its samples are empty"
    return Field(shape, np.dtype(kind.to_pandas_dtype()))


def _unusable_because(kind: Any, whole: Any) -> str | None:
    types = arrow().types
    if types.is_dictionary(kind):
        return f"is a dictionary ({whole}); write its codes as integers"
    if types.is_list(kind) or types.is_large_list(kind):
        return (
            f"has lists of any length ({whole}); where all have one length, cast them to a list"
            " of a fixed size; else write them as a ragged array of an HDF5 file"
        )
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not is_number or np.dtype(kind.to_pandas_dtype()).name not in USABLE_DTYPES:
        return (
            f"is {whole}, not a boolean, an integer, a float or bytes of a fixed size; convert it"
            " to one of these"
        )
    return None
