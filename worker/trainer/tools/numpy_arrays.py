"""Writes NumPy's files as HDF5: the arrays of a `.npz` by their names, the one of a `.npy`.

`python -m worker.trainer.tools.numpy_arrays IN OUT.h5` prints one JSON document. Nothing is
unpickled. With --labels the values of one array, texts or numbers, are classes: the file has their
numbers and names, and says that these are to be learned from the other arrays.
"""

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from app.suggest import closest, did_you_mean
from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import write_class_names, write_roles
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import converting_command, require_new
from worker.trainer.tools.bad_rows import NotFinite
from worker.trainer.tools.classes import Classes, refuse_fractions, told

PIECE_BYTES = 2**26


def write(
    path: Path, out: Path, *, labels: str | None = None, force: bool = True
) -> dict[str, Any]:
    """Write `out`; says what it holds. DataError when there is no array of numbers, or `out` is
    there and must not be replaced (`force`). `labels`: the array whose values are classes.
    """
    arrays, class_names = _open(path), None
    if labels is not None:
        arrays[labels], class_names = _numbered(path, arrays, labels)
    numbers = {name: one for name, one in arrays.items() if one.dtype.kind in "biuf" and one.ndim}
    if not numbers:
        raise DataError(f"{path} has no array of numbers: {', '.join(arrays) or 'nothing at all'}.")
    require_new(out, force=force)
    seen = NotFinite()
    with whole_file(out) as partial, h5py.File(partial, "w") as file:
        for name, array in numbers.items():
            _copy(file, name, array, seen)
        if labels is not None and class_names is not None:
            write_class_names(file[labels], class_names)
            write_roles(file, [name for name in numbers if name != labels], [labels])
    return {
        "path": str(out),
        "bytes": out.stat().st_size,
        "arrays": {name: list(one.shape) for name, one in numbers.items()},
        "class_names": class_names,
        "classes": None if class_names is None else told(class_names),
        "left_out": sorted(arrays.keys() - numbers.keys()),
        "told": seen.sentences(),
    }


def _numbered(
    path: Path, arrays: Mapping[str, NDArray[Any]], name: str
) -> tuple[NDArray[np.int64], list[str]]:
    """The labels as numbers from 0, and the names of the classes. DataError."""
    if name not in arrays:
        meant = did_you_mean(closest(name, list(arrays)))
        raise DataError(f"{path} has no array {name!r}; it has {', '.join(arrays)}.{meant}")
    labels = arrays[name]
    if labels.dtype.kind not in "biufU" or labels.ndim == 0 or labels.size != len(labels):
        raise DataError(
            f"{name!r} holds {labels.dtype} {labels.shape}, and classes are one text or number a"
            " sample."
        )
    if labels.dtype.kind == "f" and len(missing := np.flatnonzero(~np.isfinite(labels))):
        raise DataError(f"{name}[{missing[0]}] is {labels[missing[0]]}, which is no class.")
    values = [str(label) for label in labels.reshape(-1).tolist()]
    refuse_fractions(values, str(path), 0, name)
    classes = Classes(name)
    return classes.numbered(classes.add(values))


def _open(path: Path) -> dict[str, NDArray[Any]]:
    """Those that can be read without unpickling; others as an array of no axes."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(
            f"{path} cannot be read as NumPy's ({error}): it is damaged, cut short, or holds Python"
            " objects, which are not unpickled. Write it again, of numbers alone."
        ) from None
    if not isinstance(loaded, Mapping):
        return {path.stem: loaded}
    return {name: _member(loaded, name) for name in loaded}


def _member(loaded: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    try:
        return loaded[name]
    except ValueError:  # of Python objects
        return np.empty((), object)


def _copy(file: h5py.File, name: str, array: NDArray[Any], seen: NotFinite) -> None:
    """In pieces, for a `.npy` is mapped and may be larger than the memory."""
    written = file.create_dataset(name, array.shape, array.dtype)
    rows = max(1, PIECE_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        piece = array[start : start + rows]
        seen.look(name, start, piece)
        written[start : start + rows] = piece


def main(arguments: list[str] | None = None) -> int:
    return converting_command("numpy_arrays", "NumPy's files to HDF5.", write, arguments, "labels")


if __name__ == "__main__":
    sys.exit(main())
