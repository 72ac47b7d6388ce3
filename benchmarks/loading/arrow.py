"""Arrow folders: Stoker beside pyarrow's own tables, a DataLoader and the same in HDF5."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray
from pyarrow import feather
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.effort import Effort
from benchmarks.figures import Figure
from benchmarks.loading.arms import BATCH, CORES, Arm, Batch
from benchmarks.loading.files import NAMES, DataFile, write
from benchmarks.loading.rounds import ROUNDS, in_turn, rates, ratio
from benchmarks.loading.stoker import by_torch, stoker

# 100 files of 256 samples of 5.8 KiB: 145 MiB.
FILES, SAMPLES, FEATURES = 100, 25_600, 4
PACKINGS = ("lz4", "uncompressed")
WORKERS = (0, CORES)
COMMAND = "python -m benchmarks arrow"

Arrays = dict[str, NDArray[Any]]


def measure(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        hdf5 = write(Path(folder), "contiguous", effort.samples(SAMPLES), FEATURES)
        figures = []
        for packing in PACKINGS:
            folders = write_folder(hdf5, Path(folder) / packing, packing)
            figures += _compared(hdf5, folders, packing, effort, shuffled=False)
            figures += _compared(hdf5, folders, packing, effort, shuffled=True)
        return figures


def write_folder(file: DataFile, folder: Path, packing: str) -> DataFile:
    """The samples of an HDF5 file, spread over FILES files, each of one record batch."""
    folder.mkdir()
    with h5py.File(file.path) as source:
        for number, rows in enumerate(np.array_split(np.arange(file.samples), FILES)):
            columns = {name: _column(source[name][rows[0] : rows[-1] + 1]) for name in NAMES}
            path = folder / f"part-{number:03}.feather"
            feather.write_feather(pyarrow.table(columns), path, compression=packing)
    return replace(file, path=folder)


def _column(array: NDArray[Any]) -> Any:
    made = pyarrow.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        made = pyarrow.FixedSizeListArray.from_arrays(made, size)
    return made


def _compared(
    hdf5: DataFile, file: DataFile, packing: str, effort: Effort, *, shuffled: bool
) -> list[Figure]:
    title = f"Arrow {packing} {'shuffled' if shuffled else 'in order'}"
    shuffle = "full" if shuffled else "none"
    ours = stoker(file, "stream", shuffle)
    theirs = tables(file, shuffled=shuffled)
    same = replace(stoker(hdf5, "stream", shuffle), name="stoker, stream of HDF5")
    peers = [theirs]
    if packing == "uncompressed" or not shuffled:  # else each item would unpack a file
        peers += [items(file, n, packing, shuffled=shuffled) for n in WORKERS]
    arms = [ours, stoker(file, "resident", shuffle), *peers, same]
    if packing == "uncompressed" or not shuffled:
        arms.append(by_torch(file, 0, shuffle))
    rounds = in_turn(file, arms, effort.rounds(ROUNDS))
    figures = rates(title, file, rounds, COMMAND)
    figures.append(ratio(title, rounds, ours, [theirs], 1.0, COMMAND))
    if len(peers) > 1:
        figures.append(ratio(title, rounds, ours, peers[1:], 2.0, COMMAND))
    figures.append(ratio(title, rounds, ours, [same], None, COMMAND))
    return figures


def tables(file: DataFile, *, shuffled: bool) -> Arm:
    """A file after the other as a table, which is cut; where shuffled, the files in another order
    and the rows within each.
    """

    def epoch(number: int) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(number)
        paths = sorted(file.path.iterdir())
        order = torch.randperm(len(paths), generator=random) if shuffled else range(len(paths))
        for place in order:
            table = {n: torch.tensor(a) for n, a in _read(paths[int(place)], mapped=False).items()}
            count = len(table["targets"])
            if shuffled:
                rows = torch.randperm(count, generator=random)
                table = {name: array[rows] for name, array in table.items()}
            for at in range(0, count, BATCH):
                yield {name: array[at : at + BATCH] for name, array in table.items()}

    return Arm("pyarrow tables", epoch)


def _read(path: Path, *, mapped: bool) -> Arrays:
    """Views of a table: without a row of Python."""
    table = feather.read_table(path, memory_map=mapped)
    arrays = {}
    for name in NAMES:
        column = table[name].combine_chunks()
        shape = [len(column)]
        while pyarrow.types.is_fixed_size_list(column.type):
            shape.append(column.type.list_size)
            column = column.flatten()
        arrays[name] = column.to_numpy().reshape(shape)
    return arrays


class Rows(Dataset[Any]):
    """A row at a time: of mapped files, all of which stay; of packed ones the last stays."""

    def __init__(self, file: DataFile, packing: str) -> None:
        self.samples = file.samples
        self._paths = sorted(file.path.iterdir())
        self._keeps = len(self._paths) if packing == "uncompressed" else 1
        self._tables: dict[int, Arrays] = {}

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        number, place = divmod(row, self.samples // len(self._paths))
        if number not in self._tables:
            if len(self._tables) == self._keeps:
                self._tables.clear()
            self._tables[number] = _read(self._paths[number], mapped=True)
        return {name: torch.tensor(array[place]) for name, array in self._tables[number].items()}


def items(file: DataFile, workers: int, packing: str, *, shuffled: bool) -> Arm:
    """Workers stay between epochs."""
    loader = DataLoader(
        Rows(file, packing), BATCH, shuffle=shuffled,
        num_workers=workers, persistent_workers=workers > 0,
    )  # fmt: skip
    return Arm(f"DataLoader, items, {workers} workers", lambda number: iter(loader))
