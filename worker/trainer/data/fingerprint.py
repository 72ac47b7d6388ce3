"""Tells whether a dataset's file is still the one that was registered."""

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from worker.trainer.data.hdf5_file import HDF5_ERRORS, open_file, unusable_because, walk_links
from worker.trainer.errors import DataError, DatasetChanged

SAMPLED_ROWS = 16
MAX_ROW_BYTES = 2**20


def fingerprint(path: Path) -> dict[str, Any]:
    """{size, mtime_ns, sha256}: the hash is of every usable array's name, shape, dtype and of
    SAMPLED_ROWS evenly spaced rows, first and last among them. DataError when it is unreadable.
    """
    digest = hashlib.sha256()
    with open_file(path) as file:
        stat = path.stat()
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
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": digest.hexdigest()}


def check_fingerprint(name: str, path: Path, expected: Mapping[str, Any]) -> None:
    """Raises DatasetChanged, saying what differs, when the file is not as it was registered."""
    # Size and time go first: a file that was cut short or replaced may not even open any more.
    if path.is_file():
        stat = path.stat()
        _compare(name, path, expected, {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns})
    _compare(name, path, expected, fingerprint(path))


def _compare(name: str, path: Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    words = {"size": "size", "mtime_ns": "modification time", "sha256": "content"}
    differing = [words[key] for key in found if found[key] != expected[key]]
    if differing:
        raise DatasetChanged(
            f"The file of dataset {name!r}, {path}, is not the one that was registered: its"
            f" {', '.join(differing)} changed. Results on other data could not be compared, so the"
            " run ends. Restore the file, or register it again and restart the run."
        )


def _add_rows(digest: "hashlib._Hash", array: h5py.Dataset) -> None:
    count, numbers = int(array.shape[0]), MAX_ROW_BYTES // array.dtype.itemsize
    corner = tuple(  # of a row with more numbers than that
        slice(0, max(1, numbers // prod(array.shape[axis + 1 :]))) for axis in range(1, array.ndim)
    )
    for row in np.linspace(0, count - 1, min(SAMPLED_ROWS, count)).astype(int).tolist():
        digest.update(np.ascontiguousarray(array[(row, *corner)]).tobytes())
