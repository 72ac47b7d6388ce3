"""What the machine can do: bytes read, copied and gathered, with no Python in between."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import h5py
import numpy as np
import torch
from torch import Tensor

from benchmarks.loading.arms import BATCH, CHUNK_BYTES, Arm, Batch
from benchmarks.loading.files import NAMES, DataFile
from worker.trainer.data.feed.read_threads import READ_THREADS

THREADS = READ_THREADS
"""As many as Stoker reads with."""


def load(file: DataFile, device: str = "cpu") -> dict[str, Tensor]:
    with h5py.File(file.path) as source:
        return {name: torch.from_numpy(source[name][:]).to(device) for name in NAMES}


def in_memory(data: dict[str, Tensor], *, shuffled: bool) -> Arm:
    """Batches of data that is in memory already, gathered into one whose memory is used again: the
    limit of any loader.
    """
    reused = {name: torch.empty_like(array[:BATCH]) for name, array in data.items()}

    def epoch(number: int) -> Iterator[Batch]:
        samples = len(data["targets"])
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(number))
        order = order.to(data["targets"].device)
        for start in range(0, samples, BATCH):
            if shuffled:
                rows = order[start : start + BATCH]
                yield {
                    name: torch.index_select(array, 0, rows, out=reused[name][: len(rows)])
                    for name, array in data.items()
                }
            else:
                yield {name: array[start : start + BATCH] for name, array in data.items()}

    return Arm("in memory", epoch)


def memory_copy(data: dict[str, Tensor]) -> Arm:
    """The same bytes from memory to memory, a chunk at a time."""
    size = CHUNK_BYTES // data["features"][0].nbytes
    reused = torch.empty(size, *data["features"].shape[1:])

    def epoch(number: int) -> Iterator[Batch]:
        for start in range(0, len(data["targets"]), size):
            features = data["features"][start : start + size]
            targets = data["targets"][start : start + size]
            yield {"features": reused[: len(features)].copy_(features), "targets": targets}

    return Arm("probe: memory copy", epoch)


def raw_read(file: DataFile, targets: Tensor) -> Arm:
    """Chunks of the file into one reused buffer by parallel `preadv`."""
    descriptor = os.open(file.path, os.O_RDONLY)
    begin, most = _offset(file), CHUNK_BYTES // file.sample_bytes
    reused = torch.empty(most, file.row_bytes // 4)
    memory = reused.numpy().reshape(-1).view(np.uint8).data
    pool = ThreadPoolExecutor(THREADS)

    def epoch(number: int) -> Iterator[Batch]:
        for start in range(0, file.samples, most):
            rows = min(most, file.samples - start)
            size, at = rows * file.row_bytes, begin + start * file.row_bytes
            shares = np.linspace(0, size, THREADS + 1).astype(int).tolist()
            parts = pairwise(shares)
            read = partial(_read, descriptor, memory, at)
            list(pool.map(read, parts))
            yield {"features": reused[:rows], "targets": targets[start : start + rows]}

    return Arm("probe: raw read", epoch, _closer(descriptor, pool))


def mapped_gather(file: DataFile, targets: Tensor, *, anew: bool = False) -> Arm:
    """Rows in random order straight from the system's page cache to one reused buffer: each byte is
    copied once, as any loader has to. `anew`: mapped for each epoch, so that pages can leave the
    cache between two; those that are mapped stay.
    """
    shape, begin = (file.samples, file.row_bytes // 4), _offset(file)
    most = CHUNK_BYTES // file.sample_bytes
    reused = torch.empty(most, shape[1])

    def mapped() -> Tensor:  # "c": never written back
        return torch.from_numpy(np.memmap(file.path, np.float32, "c", begin, shape))

    kept = None if anew else mapped()

    def epoch(number: int) -> Iterator[Batch]:
        features = mapped() if kept is None else kept
        order = torch.randperm(file.samples, generator=torch.Generator().manual_seed(number))
        for rows in torch.split(order, most):
            gathered = torch.index_select(features, 0, rows, out=reused[: len(rows)])
            yield {"features": gathered, "targets": targets[rows]}

    return Arm(f"probe: gather{', mapped anew' * anew}", epoch)


def _closer(descriptor: int, pool: ThreadPoolExecutor) -> Callable[[], None]:
    def close() -> None:
        pool.shutdown()
        os.close(descriptor)

    return close


def _read(descriptor: int, memory: memoryview, offset: int, part: tuple[int, int]) -> None:
    start, stop = part
    while start < stop:
        start += os.preadv(descriptor, [memory[start:stop]], offset + start)


def _offset(file: DataFile) -> int:
    with h5py.File(file.path) as source:
        offset: int = source["features"].id.get_offset()
        return offset
