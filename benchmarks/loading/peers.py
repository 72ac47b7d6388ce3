"""What users have now, each as well set as its manual says: a plain chunk loop, and DataLoader."""

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.loading.arms import BATCH, CHUNK_BYTES, Arm, Batch, brought_to
from benchmarks.loading.files import NAMES, DataFile


def naive_chunks(file: DataFile, *, shuffled: bool, device: str = "cpu") -> Arm:
    """The reference design: open, slice, shuffle within, cut; then the next."""

    size = CHUNK_BYTES // file.sample_bytes

    def epoch(number: int) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(number)
        for start in range(0, file.samples, size):
            with h5py.File(file.path) as source:
                rows = slice(start, start + size)
                chunk = {name: torch.from_numpy(source[name][rows]) for name in NAMES}
            count = len(chunk["targets"])
            if shuffled:
                order = torch.randperm(count, generator=random)
                chunk = {name: array[order] for name, array in chunk.items()}
            for at in range(0, count, BATCH):
                yield {name: array[at : at + BATCH] for name, array in chunk.items()}

    return brought_to(device, Arm("naive chunks", epoch))


class Windows(Dataset[Any]):
    """A row at a time, from a file that each worker opens for itself."""

    def __init__(self, file: DataFile) -> None:
        self.file = file
        self._arrays: dict[str, Any] | None = None

    def __len__(self) -> int:
        return self.file.samples

    @property
    def arrays(self) -> dict[str, Any]:
        if self._arrays is None:
            source = h5py.File(self.file.path)
            self._arrays = {name: source[name] for name in NAMES}
        return self._arrays

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: torch.from_numpy(array[row]) for name, array in self.arrays.items()}


class BatchedWindows(Windows):
    """A batch at a time, each row read to where it belongs: nothing is left to collate."""

    def __getitems__(self, rows: list[int]) -> dict[str, Tensor]:
        batch = {}
        for name, array in self.arrays.items():
            out = np.empty((len(rows), *array.shape[1:]), array.dtype)
            if rows[-1] - rows[0] == len(rows) - 1 and rows == sorted(rows):
                array.read_direct(out, np.s_[rows[0] : rows[-1] + 1])
            else:
                for place, row in enumerate(rows):  # `read_direct` of one row takes longer
                    out[place] = array[row]
            batch[name] = torch.from_numpy(out)
        return batch


def _as_it_is(batch: Any) -> Any:
    return batch


def dataloader(
    file: DataFile, workers: int, *, batched: bool, shuffled: bool, device: str = "cpu"
) -> Arm:
    """Workers stay between epochs and read two batches ahead each, which is the default; for a GPU
    batches are pinned.
    """
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    options["pin_memory"] = device != "cpu"
    if batched:
        options["collate_fn"] = _as_it_is
    dataset = BatchedWindows(file) if batched else Windows(file)
    loader = DataLoader(dataset, BATCH, shuffle=shuffled, **options)  # its workers end with it
    kind = "batches" if batched else "items"
    name = f"DataLoader, {kind}, {workers} workers"
    return brought_to(device, Arm(name, lambda number: iter(loader)))
