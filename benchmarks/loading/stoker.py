"""Stoker's own loader, as a run opens it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from benchmarks.loading.arms import BATCH, CHUNK_BYTES, Arm, Batch
from benchmarks.loading.files import DataFile
from benchmarks.steps import spec_of, unstopped
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.data.fingerprint import fingerprint

MIB = 2**20
# Samples of 23 KiB: a chunk of 256 MiB has room for one.
GROUP = 8_192
EPOCHS = 10_000


def stoker(
    file: DataFile,
    residency: str,
    shuffle: str,
    chunk_bytes: int = CHUNK_BYTES,
    group: int | None = None,
    block: int | None = None,
    device: str = "cpu",
    epochs: int = 1,
) -> Arm:
    """The chunked loader. The training part is the whole file, since nothing is held out. Of one
    epoch, none is read ahead: each that is timed has all of its own reads.
    """
    name = "stoker, stream of blocks" if shuffle == "block" else f"stoker, {residency}"
    data = open_file(file, residency, shuffle, chunk_bytes, group, block, device, epochs)
    return _arm(name, data)


def too_large(file: DataFile, device: str) -> Arm:
    """A stream as a run of many epochs has it, whose data the device cannot hold: a GPU holds more
    than a gigabyte, and what is more is shuffled in blocks.
    """
    if device == "cpu":
        return stoker(file, "stream", "full", epochs=EPOCHS)
    return stoker(file, "stream", "block", group=GROUP, device=device, epochs=EPOCHS)


def by_torch(file: DataFile, workers: int, shuffle: str, device: str = "cpu") -> Arm:
    """The PyTorch loader, with no more processes than cores, which stay between epochs."""
    stay = {"persistent_workers": True} if workers else {}
    loader = {"kind": "dataloader", "num_workers": workers, "shuffle": shuffle, **stay}
    loader["pin_memory"] = device != "cpu"
    return _arm(f"stoker, dataloader, {workers} workers", _open(file, loader, device))


def open_file(
    file: DataFile,
    residency: str,
    shuffle: str,
    chunk_bytes: int = CHUNK_BYTES,
    group: int | None = None,
    block: int | None = None,
    device: str = "cpu",
    epochs: int = 1,
) -> DataSet:
    """`group`: samples that are shuffled together, in blocks of `block`; None: as a stored spec
    of an earlier version has them.
    """
    loader: dict[str, Any] = {"kind": "chunked", "residency": residency, "shuffle": shuffle}
    if residency == "stream":
        loader["chunk_size"] = f"{chunk_bytes // MIB}MiB"
    if group is not None:
        loader["shuffle_group"] = group
    if block is not None:
        loader["shuffle_block"] = block
    return _open(file, loader, device, epochs)


def _arm(name: str, data: DataSet) -> Arm:
    def epoch(number: int) -> Iterator[Batch]:
        for batch in data.train.iterate(number):
            yield batch.arrays

    return Arm(name, epoch, data.close)


def _open(file: DataFile, loader: Mapping[str, Any], device: str, epochs: int = 1) -> DataSet:
    split = {"method": "chronological", "validation_fraction": 0.0}
    document = {
        "recipe": {"kind": "sequence"},
        "data": {"dataset": "windows", "loader": loader, "split": split},
        "training": {"batch_size": BATCH, "epochs": epochs},
    }
    spec = spec_of(document)
    datasets = {"windows": {"path": str(file.path), "fingerprint": fingerprint(file.path)}}
    with unstopped() as preparing:
        return open_data(spec, datasets, torch.device(device), preparing, 2**40)
