"""Arrow files that are one dataset: a single one, or those of a folder in the order of their names.

Samples are numbered through them; what is asked of a column is asked of all files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.arrow_columns import Column
from worker.trainer.data.arrow_file import CODECS, PLAIN, ArrowFile, read_arrow_file
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError, SpecMismatch

SUFFIXES = (".feather", ".arrow", ".ipc")


class FileStamp(NamedTuple):
    """A file as it was when it was looked into."""

    path: Path
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Place:
    """Where a column lies: its buffer of each record batch."""

    column: Column
    offsets: Rows
    """In the file of the record batch."""
    sizes: Rows


@dataclass(frozen=True, eq=False)
class ArrowIndex:
    """What is known of the files before any data is read. It may be sent to another process."""

    path: Path
    files: tuple[FileStamp, ...]
    places: Mapping[str, Place]
    left_out: Mapping[str, str]
    """Columns that cannot be named arrays, and why, as the end of "it …"."""
    starts: Rows
    """(record batches + 1,): the number of the first sample of each, and that of all."""
    file_of: Rows
    """Of each record batch."""
    codecs: NDArray[np.int8]
    """Of each record batch: a place in CODECS, or PLAIN."""

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
    def packing(self) -> str | None:
        """What the record batches are packed by, the first that are; None: none is."""
        packed = self.codecs[self.codecs != PLAIN]
        return CODECS[packed[0]] if len(packed) else None

    def path_of(self, batch: int) -> Path:
        return self.files[int(self.file_of[batch])].path

    @property
    def fields(self) -> Mapping[str, Field]:
        return {name: place.column.field for name, place in self.places.items()}

    def of(self, names: Iterable[str]) -> "ArrowIndex":
        """With these columns alone. SpecMismatch, DataError."""
        return replace(self, places={name: self._place(name) for name in names})

    def _place(self, name: str) -> Place:
        if name in self.places:
            return self.places[name]
        if name in self.left_out:
            raise DataError(f"The column {name!r} of {self.path} {self.left_out[name]}.")
        raise SpecMismatch(
            f"{self.path.name} has no column {name!r} (it has"
            f" {', '.join(sorted(self.places))}); correct data.inputs or data.targets."
        )


def is_arrow(path: Path) -> bool:
    """Whether a dataset at this path is read as Arrow files: a folder, or a file named as one."""
    return path.is_dir() or path.suffix.lower() in SUFFIXES


def listed(path: Path) -> list[Path]:
    """The files of a dataset, in the order of their names; others beside them do not count."""
    if not path.is_dir():
        return [path]
    found = [each for each in path.iterdir() if each.suffix.lower() in SUFFIXES]
    return sorted(each for each in found if not each.name.startswith("."))


def arrow_paths(path: Path) -> list[Path]:
    """The files of a dataset. DataError where there is none, or one in a folder is a link."""
    found = listed(path)
    if not found:
        raise DataError(
            f"The folder {path} has no Arrow files ({', '.join(SUFFIXES)}); put them there, each"
            " with the same columns."
        )
    for each in found:
        if each != path and each.is_symlink():
            raise DataError(
                f"{each} is a link, which is not followed for safety; put the file itself there."
            )
    return found


def read_index(path: Path) -> ArrowIndex:
    """Look into the footers of all files. DataError where they are damaged or differ."""
    files = [read_arrow_file(each) for each in arrow_paths(path)]
    for file in files[1:]:
        _require_same_columns(files[0], file)
    nulls = {name: _nulls(name, files) for name in files[0].stored}
    usable = [name for name, told in nulls.items() if told is None]
    rows = np.concatenate([file.rows for file in files])
    return ArrowIndex(
        path,
        tuple(FileStamp(file.path, file.size, file.mtime_ns) for file in files),
        {name: _place_of(name, files) for name in usable},
        {**files[0].columns.left_out, **{name: told for name, told in nulls.items() if told}},
        np.concatenate(([0], np.cumsum(rows))),
        np.repeat(np.arange(len(files)), [len(file.rows) for file in files]),
        np.concatenate([file.codecs for file in files]),
    )


def _place_of(name: str, files: Sequence[ArrowFile]) -> Place:
    stored = [file.stored[name] for file in files]
    offsets = np.concatenate([one.offsets for one in stored])
    sizes = np.concatenate([one.sizes for one in stored])
    return Place(files[0].columns.usable[name], offsets, sizes)


def _require_same_columns(first: ArrowFile, other: ArrowFile) -> None:
    expected, found = first.columns.types, other.columns.types
    for name in {**expected, **found}:
        if expected.get(name) != found.get(name):
            raise DataError(
                f"The column {name!r} is {_told(found, name)} in {other.path} and"
                f" {_told(expected, name)} in {first.path.name}; all files of a folder need the"
                " same columns of the same types. Write that file again, or take it out."
            )


def _told(types: Mapping[str, str], name: str) -> str:
    return types.get(name, "not there")


def _nulls(name: str, files: Sequence[ArrowFile]) -> str | None:
    """Why missing values make the column no array."""
    having = [file for file in files if file.stored[name].nulls]
    if not having:
        return None
    count = sum(file.stored[name].nulls for file in having)
    first = having[0].path.name
    return f"has {count:,} missing values (nulls), the first in {first}; fill or drop them"
