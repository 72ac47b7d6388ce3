"""Tells whether a dataset's files are still those that were registered."""

import hashlib
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from worker.trainer.data.formats.arrow_index import arrow_paths, is_arrow, listed
from worker.trainer.data.formats.hdf5_file import (
    HDF5_ERRORS,
    open_file,
    unusable_because,
    walk_links,
)
from worker.trainer.errors import DataError, DatasetChanged

SAMPLED_ROWS = 16
MAX_ROW_BYTES = 2**20
# Of each Arrow file, packed or not, without a look at what they hold.
SAMPLED_PIECES, PIECE_BYTES = 16, 2**12
MOST_NAMED = 3
WORDS = {
    "size": "size", "mtime_ns": "modification time", "files": "number of files",
    "sha256": "content",
}  # fmt: skip


def fingerprint(path: Path) -> dict[str, Any]:
    """{size, mtime_ns, sha256}, and of Arrow files how many `files` there are; then the size is
    that of all, and the time that of the newest. DataError when it is unreadable.
    """
    if is_arrow(path):
        return _looks(path) | {"sha256": _hash_of_arrow(path)}
    return _looks(path) | {"sha256": _hash_of_hdf5(path)}


def check_fingerprint(name: str, path: Path, expected: Mapping[str, Any]) -> None:
    """Raises DatasetChanged, saying what differs, when the file is not as it was registered."""
    # Size and time go first: a file that was cut short or replaced may not even open any more.
    if path.exists():
        _compare(name, path, expected, _looks(path))
    _compare(name, path, expected, fingerprint(path))


def _compare(name: str, path: Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    differing = [WORDS[key] for key in found if found[key] != expected.get(key)]
    if differing:
        raise DatasetChanged(
            f"The {'folder' if path.is_dir() else 'file'} of dataset {name!r}, {path}, is not the"
            f" one that was registered: its {', '.join(differing)} changed"
            f"{_newer(path, expected)}. Results on other data could not be compared, so the run"
            " ends. Restore it, or register it again and restart the run."
        )


def _newer(path: Path, expected: Mapping[str, Any]) -> str:
    """The files of a folder that were written since it was registered."""
    written = [each.name for each in listed(path) if each.stat().st_mtime_ns > expected["mtime_ns"]]
    if not path.is_dir() or not written:
        return ""
    more = f" and {len(written) - MOST_NAMED} more" if len(written) > MOST_NAMED else ""
    return f" (written since: {', '.join(written[:MOST_NAMED])}{more})"


def _looks(path: Path) -> dict[str, int]:
    """What is seen from outside. DataError where there is nothing."""
    try:
        stats = [each.stat() for each in (arrow_paths(path) if is_arrow(path) else [path])]
    except FileNotFoundError as error:
        raise DataError(
            f"There is no file {error.filename}; put it back or register another dataset."
        ) from None
    newest = max(stat.st_mtime_ns for stat in stats)
    found = {"size": sum(stat.st_size for stat in stats), "mtime_ns": newest}
    return found | {"files": len(stats)} if is_arrow(path) else found


def _hash_of_arrow(path: Path) -> str:
    """Of SAMPLED_PIECES evenly spaced pieces of each file in turn, first and last among them: in
    the last is the footer, which says where all the rest lies.
    """
    digest = hashlib.sha256()
    for each in arrow_paths(path):
        with each.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            last = max(0, size - PIECE_BYTES)
            for start in np.linspace(0, last, SAMPLED_PIECES).astype(int).tolist():
                digest.update(os.pread(file.fileno(), PIECE_BYTES, start))
    return digest.hexdigest()


def _hash_of_hdf5(path: Path) -> str:
    """Of every usable array's name, shape, dtype and of SAMPLED_ROWS evenly spaced rows, first and
    last among them.
    """
    digest = hashlib.sha256()
    with open_file(path) as file:
        try:
            arrays = {n: a for n, a in walk_links(file) if isinstance(a, h5py.Dataset)}
            for name, array in sorted(arrays.items()):
                if unusable_because(array) is None:
                    digest.update(f"{name} {array.shape} {array.dtype.str}\n".encode())
                    _add_rows(digest, array)
        except HDF5_ERRORS as error:
            raise DataError(
                f"{path} cannot be read ({error}): it is damaged. Write it again, or restore it"
                " from a copy."
            ) from error
    return digest.hexdigest()


def _add_rows(digest: "hashlib._Hash", array: h5py.Dataset) -> None:
    count, numbers = int(array.shape[0]), MAX_ROW_BYTES // array.dtype.itemsize
    corner = tuple(  # of a row with more numbers than that
        slice(0, max(1, numbers // prod(array.shape[axis + 1 :]))) for axis in range(1, array.ndim)
    )
    for row in np.linspace(0, count - 1, min(SAMPLED_ROWS, count)).astype(int).tolist():
        digest.update(np.ascontiguousarray(array[(row, *corner)]).tobytes())
