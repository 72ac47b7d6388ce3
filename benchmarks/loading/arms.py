"""What all arms of the comparison have in common: an epoch is a stream of batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

Batch = Mapping[str, Tensor]
BATCH = 128
CHUNK_BYTES = 256 * 2**20


def nothing() -> None:
    """An arm that holds nothing has nothing to give back."""


@dataclass(frozen=True)
class Arm:
    """`epoch(number)` brings every sample once, in batches; a probe brings chunks instead."""

    name: str
    epoch: Callable[[int], Iterator[Batch]]
    close: Callable[[], None] = nothing
