"""The shuffling of the training part: which samples may meet in a batch, fixed at submission.

Pure arithmetic. The guard settles `data.loader.shuffle: auto` by it, and the trainer reads what a
stored spec says; chunks, memory and devices only subdivide the reading and never move a sample.
"""

from bisect import bisect_right
from dataclasses import dataclass
from math import lcm, log2
from typing import Literal

from app.planning.residency import (
    GIB,
    LEAST_BATCHES_A_CHUNK,
    DataMemory,
    Need,
    settle_residency,
)
from app.spec.data import ChunkedLoader, Loader

# A block is read at once. It is large enough that streaming is hardly slower than with large
# blocks, and small enough that a batch meets many places of the file: see
# `python -m benchmarks batches`.
BLOCK_BYTES = 64 * 2**10
# On network storage each read waits for a round trip.
NETWORK_BLOCK_BYTES = 4 * 2**20
# A group of fewer blocks would mix too few places.
LEAST_BLOCKS_PER_GROUP = 16
# A device of which nothing is known has this much for data.
ASSUMED_MEMORY = DataMemory(4 * GIB, 4 * GIB)
# Stored specs of before `shuffle_block`: blocks of 4 MiB, groups of 16,384 samples above 1 GiB.
EARLIER_BLOCK_BYTES, EARLIER_GROUP, EARLIER_FULL_BYTES = 4 * 2**20, 16_384, GIB

ShuffleKind = Literal["full", "block", "none", "lanes"]


@dataclass(frozen=True)
class Shuffle:
    """A settled shuffle. `group`: samples that are shuffled together; `block`: neighbours that go
    into one group. Both are 1 unless `kind` is block.
    """

    kind: ShuffleKind
    group: int = 1
    block: int = 1


def stored_shuffle(loader: Loader, num_samples: int, sample_bytes: int) -> Shuffle:
    """Returns the shuffle of a stored spec, for a dataset of so many samples of so many bytes.

    Values that are still `auto` were stored by an earlier version, and mean what that version did.
    """
    kind = loader.shuffle
    group = loader.shuffle_group if isinstance(loader, ChunkedLoader) else "auto"
    block = loader.shuffle_block if isinstance(loader, ChunkedLoader) else "auto"
    if kind == "auto":
        is_large = num_samples * sample_bytes > EARLIER_FULL_BYTES
        kind = "block" if is_large or group != "auto" or block != "auto" else "full"
    if kind != "block":
        return Shuffle(kind)
    samples = EARLIER_GROUP if group == "auto" else group
    if block == "auto":
        block = _block_within(samples, EARLIER_BLOCK_BYTES // sample_bytes)
    return Shuffle("block", samples, block)


def settled_shuffle(
    loader: ChunkedLoader,
    need: Need,
    memory: DataMemory | None,
    batch: int,
    stored_rows: int = 1,
    *,
    on_network: bool = False,
) -> Shuffle:
    """Returns the shuffle that `auto` becomes at submission.

    `full` where the data stays in `memory` or one chunk holds the training part; otherwise blocks
    in groups that a chunk holds. `memory`: None while no device is known; then 4 GiB are assumed.
    A group has whole batches of `batch`, because a batch with parts of two chunks is copied.
    `stored_rows`: samples in a storage chunk that is read whole. A block has whole chunks, because
    a chunk with parts of many blocks would be read for each of them.
    """
    if loader.shuffle in ("full", "none", "lanes"):
        return Shuffle(loader.shuffle)
    data = settle_residency(loader, need, memory or ASSUMED_MEMORY)
    chunk, group, block = data.chunk_samples, loader.shuffle_group, loader.shuffle_block
    is_open = loader.shuffle == "auto" and group == block == "auto"
    if is_open and (data.kind == "resident" or chunk >= need.train_samples):
        return Shuffle("full")
    samples = chunk if group == "auto" else group
    if block == "auto":
        size = NETWORK_BLOCK_BYTES if on_network else BLOCK_BYTES
        chunks = -(-max(1, size // need.sample_bytes) // stored_rows)
        block = _block_within(samples, chunks * stored_rows)
    if group == "auto":
        whole = lcm(block, batch)
        unit = whole if samples >= LEAST_BATCHES_A_CHUNK * whole else block
        samples = max(block, samples // unit * unit)
    return Shuffle("block", samples, block)


def _block_within(group: int, block: int) -> int:
    """Returns a block's samples: `block`, or fewer where a group would have too few blocks."""
    return max(1, min(block, group // LEAST_BLOCKS_PER_GROUP))


@dataclass(frozen=True)
class Neighbours:
    """The likeness of rows that lie close together in an array, as an inspection measured it."""

    distances: tuple[int, ...]
    """1, 2, 4, … rows."""
    shares: tuple[float, ...]
    """The variance of the mean of a block of so many rows, over that of one row: 1 / distance for
    independent rows, 1 for equal ones.
    """

    def share(self, rows: int) -> float:
        """Returns the share for blocks of `rows`. It is interpolated between the distances on
        logarithmic axes, and goes on beyond the last one as between the last two.
        """
        at = min(bisect_right(self.distances, rows), len(self.distances) - 1)
        if at == 0:
            return self.shares[0]
        (near, far), (more, less) = self.distances[at - 1 : at + 1], self.shares[at - 1 : at + 1]
        if less <= 0 or more <= 0:
            return less
        power = min(0.0, log2(less / more) / log2(far / near))
        return float(min(1.0, more * (rows / near) ** power))


def independent_samples(
    shuffle: Shuffle, batch: int, samples: int, neighbours: Neighbours
) -> float:
    """Returns the number of independent samples whose mean varies as much as that of a batch, at
    most `batch`. `samples`: of the training part.

    A batch is drawn without replacement from its group, and a group from the blocks of the file.
    So the variance of a batch's mean is that of the group's mean, by the law of total variance,
    and that of sampling from the group:

        V(batch) = V(group) + (1 - V(group)) / batch * (group - batch) / (group - 1)
        V(group) = share(block) / blocks * (all blocks - blocks) / (all blocks - 1)

    in units of one sample's variance, with Cochran's factor for finite populations (Sampling
    Techniques, 1977, 2.6 and 9.2). Without a shuffle a batch is a block of neighbours.
    """
    batch = min(batch, samples)
    if shuffle.kind in ("full", "lanes") or batch <= 1:
        return batch
    if shuffle.kind == "none":
        share = neighbours.share(batch)  # 0 where labels take turns, so that all blocks are alike
        return min(batch, 1 / share) if share > 0 else batch
    group = min(max(shuffle.group // shuffle.block, 1) * shuffle.block, samples)
    groups = max(1.0, batch / group)  # a batch that is larger than a group has several of them
    blocks, every = group / shuffle.block, samples / shuffle.block
    of_group = neighbours.share(shuffle.block) / blocks
    of_group *= max(0.0, every - blocks * groups) / max(1.0, every - 1)
    within = (1 - of_group) / batch * max(0.0, group * groups - batch) / max(1, group * groups - 1)
    variance = of_group / groups + within
    return min(batch, 1 / variance) if variance > 0 else batch
