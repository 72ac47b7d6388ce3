"""Which group each sample is of, as a text or a number says it, and so which part it is in."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from app.planning.arithmetic import GROUP_BUCKETS
from worker.trainer.data.formats.arrow_index import OpenFile, arrow, explained, is_arrow, listed
from worker.trainer.data.formats.hdf5_file import HDF5_ERRORS, find_array, open_file, walk_links
from worker.trainer.data.formats.packed_files import is_packed
from worker.trainer.data.formats.ragged_files import is_ragged
from worker.trainer.data.formats.window_files import is_windows
from worker.trainer.errors import DataError

ROWS_AT_ONCE = 2**16
Buckets = NDArray[np.uint8]


def bucket_of(group: Any) -> int:
    """Of a group's name, in UTF-8 as text: the same on every machine, by whatever file it comes."""
    name = group if isinstance(group, bytes) else str(group).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") % GROUP_BUCKETS


def group_buckets(path: Path, field: str) -> Iterator[Buckets]:
    """The bucket of each sample's group, in the order of the dataset, in pieces. DataError where
    the field has no text and no whole numbers, or not of every sample.
    """
    yield from _of_arrow(path, field) if is_arrow(path) else _of_hdf5(path, field)


def could_be_groups(array: h5py.Dataset) -> bool:
    """Whether it has a text or a whole number for each sample, and no more."""
    return array.ndim == 1 and (
        array.dtype.kind in "biuS" or h5py.check_string_dtype(array.dtype) is not None
    )


def fields_of_groups(path: Path) -> list[str]:
    """Fields that have a text or a whole number a sample, as far as their types say it."""
    if is_arrow(path):
        return [name for name, kind in _names_in(listed(path)[0]).items() if _is_group(kind)]
    with open_file(path) as file:
        return [
            name
            for name, array in walk_links(file)
            if not isinstance(array, str)
            and array.external is None
            and not array.is_virtual
            and could_be_groups(array)
            and not _is_part_of_an_array(file, name)
        ]


def _is_part_of_an_array(file: h5py.File, name: str) -> bool:
    """Such as where windows begin."""
    group = name.rpartition("/")[0]
    return bool(group) and any(
        is_kept_so(file[group]) for is_kept_so in (is_windows, is_ragged, is_packed)
    )


def _names_in(path: Path) -> dict[str, Any]:
    """Columns of an Arrow file, and the type of each."""
    file = OpenFile(path)
    file.close()
    return {one.name: one.type for one in file.schema}


def _is_group(kind: Any) -> bool:
    types = arrow().types
    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner) or types.is_integer(inner))


def _of_hdf5(path: Path, field: str) -> Iterator[Buckets]:
    with open_file(path) as file:
        array = find_array(file, field)
        if array is None or array.external or array.is_virtual or not could_be_groups(array):
            raise _no_groups(path, field)
        for begin in range(0, len(array), ROWS_AT_ONCE):
            try:
                names, places = np.unique(array[begin : begin + ROWS_AT_ONCE], return_inverse=True)
            except HDF5_ERRORS as error:
                raise DataError(f"{field!r} of {path} cannot be read ({error}).") from error
            yield _buckets(names.tolist())[places]


def _of_arrow(path: Path, field: str) -> Iterator[Buckets]:
    for each in listed(path):
        with explained(each):
            names = list(_names_in(each))
            if field not in names:
                raise _no_groups(path, field)
            file = OpenFile(each, (names.index(field),))
            try:
                for number in range(file.num_batches):
                    column = file.batch(number).column(0)
                    if column.null_count or not _is_group(column.type):
                        raise _no_groups(path, field)
                    if not arrow().types.is_dictionary(column.type):
                        column = column.dictionary_encode()
                    if len(column):
                        places = column.indices.to_numpy(zero_copy_only=False)
                        yield _buckets(column.dictionary.to_pylist())[places]
            finally:
                file.close()


def _buckets(names: list[Any]) -> Buckets:
    return np.array([bucket_of(name) for name in names], np.uint8)


def _no_groups(path: Path, field: str) -> DataError:
    return DataError(
        f"{field!r} of {path} does not say which group each sample is of: it needs a text or one "
        "whole number for every sample. Write the file again with such a column, and register it."
    )
