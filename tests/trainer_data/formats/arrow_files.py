"""Arrow files for the data plane's tests, and the same arrays in an HDF5 file."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
from numpy.typing import NDArray

Array = NDArray[Any]
PACKINGS = ("lz4", "zstd", None)
# Of the record batches; the last is smaller.
BATCH_ROWS = 30


def column(array: Array) -> pyarrow.Array:
    """(N,) as plain numbers, (N, …) as lists of a fixed size, nested."""
    made = pyarrow.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        made = pyarrow.FixedSizeListArray.from_arrays(made, size)
    return made


def table(**columns: Any) -> pyarrow.Table:
    """NumPy arrays as columns, and what is one already."""
    made = {n: column(c) if isinstance(c, np.ndarray) else c for n, c in columns.items()}
    return pyarrow.table(made)


def write(path: Path, of: pyarrow.Table, packing: str | None = "lz4", rows: int = BATCH_ROWS,
          **options: Any) -> Path:  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    how = pyarrow.ipc.IpcWriteOptions(compression=packing, **options)
    with pyarrow.ipc.new_file(path, of.schema, options=how) as writer:
        writer.write_table(of, max_chunksize=rows)
    return path


def write_folder(
    folder: Path, columns: Mapping[str, Any], packing: str | None = "lz4", files: int = 4
) -> Path:
    """The rows spread over files, of which no two have as many."""
    whole = table(**columns)
    ends = [whole.num_rows * n * n // files**2 for n in range(files + 1)]
    for number, (start, stop) in enumerate(pairwise(ends)):
        write(folder / f"part-{number:02}.feather", whole.slice(start, stop - start), packing)
    return folder


def write_hdf5(path: Path, **arrays: Array) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path
