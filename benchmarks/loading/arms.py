"""What all arms of the comparison have in common: an epoch is a stream of batches, and is timed."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from app.container import usable_cores
from benchmarks.loading.files import DataFile

Batch = Mapping[str, Tensor]
BATCH = 128
# Threads and processes of all arms follow the cores.
CORES = usable_cores()
CHUNK_BYTES = 256 * 2**20
GIB = 2**30


class Epoch(NamedTuple):
    """GiB a second, milliseconds to the first batch, and microseconds that the thread which asks
    for a batch computed for it.
    """

    rate: float
    first_batch: float
    host: float


class Runner(Protocol):
    """What takes its turn in a round."""

    @property
    def name(self) -> str: ...

    def run(self, file: DataFile, number: int) -> Epoch:
        """One epoch, of which each sample has to come once; RuntimeError if it did not."""

    def close(self) -> None: ...


def settle() -> None:
    """Until a GPU has done what it was given."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # PyTorch has no type for it
        torch.cuda.synchronize()


def nothing() -> None:
    """An arm that holds nothing has nothing to give back."""


@dataclass(frozen=True)
class Arm:
    """`epoch(number)` brings every sample once, in batches; a probe brings chunks instead."""

    name: str
    epoch: Callable[[int], Iterator[Batch]]
    close: Callable[[], None] = nothing

    def run(self, file: DataFile, number: int) -> Epoch:
        """One epoch, of which each sample has to come once; RuntimeError if it did not."""
        begin, worked = time.perf_counter(), time.thread_time()
        batches = iter(self.epoch(number))
        targets = [next(batches)["targets"][:, 0].clone()]
        settle()
        first = time.perf_counter() - begin
        targets += [batch["targets"][:, 0].clone() for batch in batches]
        settle()
        seconds, worked = time.perf_counter() - begin, time.thread_time() - worked
        found = sum(float(column.double().sum()) for column in targets)
        if sum(map(len, targets)) != file.samples or not math.isclose(found, file.checksum):
            raise RuntimeError(f"{self.name} did not bring each sample once")
        return Epoch(file.bytes / seconds / GIB, first * 1e3, worked / len(targets) * 1e6)


def brought_to(device: str, arm: Arm) -> Arm:
    """With a copy of each batch on the device, for an arm that knows only the host."""
    if device == "cpu":
        return arm

    def epoch(number: int) -> Iterator[Batch]:
        for batch in arm.epoch(number):
            yield {name: array.to(device, non_blocking=True) for name, array in batch.items()}

    return replace(arm, epoch=epoch)
