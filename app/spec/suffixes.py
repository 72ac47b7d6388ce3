"""What a file's name says: its kind by the suffix, and what its dataset may be called."""

import re
from pathlib import PurePath

HDF5 = (".h5", ".hdf5", ".hdf")
ARROW = (".feather", ".arrow", ".ipc")
CSV = (".csv", ".tsv")
TABLES, NUMPY = (*CSV, ".parquet"), (".npz", ".npy")
# A table too, where it is named; in a folder it may be a note.
TEXT = ".txt"
# These become datasets by `stoker data convert`.
CONVERTED = (*TABLES, TEXT, *NUMPY)


def dataset_name_of(file: PurePath) -> str:
    """A name that the service takes for the dataset of a file."""
    return re.sub(r"[^a-z0-9._-]+", "-", file.stem.lower()).strip("._-")[:64] or "data"
