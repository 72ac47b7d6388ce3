"""In which order an epoch visits samples: a pure function of (seed, epoch, position)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from app.planning.shuffle import ShuffleKind
from worker.trainer.data.source import Rows

# Part of a checkpoint's manifest: another version may give another order for the same seed.
ORDER_VERSION = 1


class Purpose(IntEnum):
    """Keeps the random streams of different uses of one seed apart."""

    samples = 0
    blocks = 1
    groups = 2
    split = 3


# The longest that is sorted in one go: some hundredths of a second.
SORTED_AT_ONCE = 2**16
LEADING_BITS = 8


def go_on() -> None:
    """Nobody wants an end to it."""


def permutation(
    seed: int,
    purpose: Purpose,
    epoch: int,
    index: int,
    count: int,
    piece_done: Callable[[], None] = go_on,
) -> Rows:
    """A permutation of 0 … count-1, the same on every machine and with every numpy.

    It sorts raw Philox output: numpy promises that a bit generator's raw stream never changes,
    while its `permutation` and `shuffle` may.
    """
    bits = np.random.Philox(
        key=np.array([seed, ORDER_VERSION], dtype=np.uint64),
        counter=np.array([0, index, epoch, purpose], dtype=np.uint64),
    )
    return _sorted_places(bits.random_raw(count), piece_done)


def _sorted_places(numbers: NDArray[np.uint64], piece_done: Callable[[], None]) -> Rows:
    """As a stable argsort; many of them by their leading bits first, and then each of these parts,
    which takes less time in all. `piece_done`, called after each, may raise to end it.
    """
    if len(numbers) <= SORTED_AT_ONCE:
        return np.argsort(numbers, kind="stable").astype(np.int64, copy=False)
    leading = (numbers >> np.uint64(64 - LEADING_BITS)).astype(np.uint8)
    places = np.argsort(leading, kind="stable").astype(np.int64, copy=False)
    ends = np.cumsum(np.bincount(leading, minlength=2**LEADING_BITS))
    for part in np.split(places, ends[:-1]):
        part[:] = part[np.argsort(numbers[part], kind="stable")]
        piece_done()
    return places


@dataclass(frozen=True)
class _BlockEpoch:
    """One epoch of block order: which block comes when, and where each group of blocks starts."""

    blocks: Rows
    starts: Rows  # position of each group's first sample, then the number of samples


class Order:
    """The order of `num_samples` samples; the same rows follow however they are asked for.

    full: one permutation of everything. block: blocks of `block` neighbours are permuted over
    everything, then the samples of every `group` // `block` blocks that follow one another are
    permuted together, so that a group can be read as a few contiguous pieces. none: 0, 1, 2, …
    lanes: `lanes` stretches of neighbours, as many as a batch has places, side by side: each place
    of the batch goes through its stretch from its beginning; what is left over comes at the end.
    """

    def __init__(
        self,
        num_samples: int,
        seed: int,
        shuffle: ShuffleKind,
        group: int = 1,
        block: int = 1,
        lanes: int = 1,
    ) -> None:
        self.num_samples = num_samples
        self.seed = seed
        self.shuffle = shuffle
        self.block = block
        self._blocks_per_group = max(1, group // block)
        self._lanes = lanes
        self.piece_done = go_on
        """Called while a large epoch is sorted; it may raise to end that."""
        self._full: tuple[int, Rows] | None = None
        self._blocks: tuple[int, _BlockEpoch] | None = None
        self._group: tuple[int, int, Rows] | None = None

    def rows(self, epoch: int, start: int, stop: int) -> Rows:
        """The samples at positions [start, stop) of the epoch, int64 (stop - start,)."""
        if self.shuffle == "none":
            return np.arange(start, stop, dtype=np.int64)
        if self.shuffle == "full":
            return self._full_epoch(epoch)[start:stop]
        if self.shuffle == "lanes":
            return self._in_lanes(np.arange(start, stop, dtype=np.int64))
        starts = self._block_epoch(epoch).starts
        first, last = np.searchsorted(starts, [start, stop - 1], side="right") - 1
        groups = [self._group_rows(epoch, g) for g in range(int(first), int(last) + 1)]
        begin = start - int(starts[first])
        return np.concatenate(groups)[begin : begin + stop - start]

    def chunk_stop(self, epoch: int, start: int, most: int) -> int:
        """Where a chunk of at most `most` samples from `start` should end: on a group's border if
        one is within reach, so that the chunk is made of whole blocks.
        """
        stop = min(start + most, self.num_samples)
        if self.shuffle != "block":
            return stop
        starts = self._block_epoch(epoch).starts
        border = int(starts[np.searchsorted(starts, stop, side="right") - 1])
        return border if border > start else stop

    def _in_lanes(self, positions: Rows) -> Rows:
        length = self.num_samples // self._lanes
        rows = positions % self._lanes * length + positions // self._lanes
        return np.where(positions < self._lanes * length, rows, positions)

    def _full_epoch(self, epoch: int) -> Rows:
        if self._full is None or self._full[0] != epoch:
            self._full = None
            rows = permutation(
                self.seed, Purpose.samples, epoch, 0, self.num_samples, self.piece_done
            )
            self._full = (epoch, rows)
        return self._full[1]

    def _block_epoch(self, epoch: int) -> _BlockEpoch:
        if self._blocks is None or self._blocks[0] != epoch:
            count = -(-self.num_samples // self.block)
            blocks = permutation(self.seed, Purpose.blocks, epoch, 0, count, self.piece_done)
            borders = np.arange(0, count + self._blocks_per_group, self._blocks_per_group)
            borders = np.minimum(borders, count)
            # The file's last block may be short; every border after it moves up by what it lacks.
            lacking = count * self.block - self.num_samples
            short_place = int(np.flatnonzero(blocks == count - 1)[0])
            starts = borders * self.block - np.where(borders > short_place, lacking, 0)
            self._blocks = (epoch, _BlockEpoch(blocks, starts.astype(np.int64)))
        return self._blocks[1]

    def _group_rows(self, epoch: int, group: int) -> Rows:
        if self._group is None or self._group[:2] != (epoch, group):
            first = group * self._blocks_per_group
            blocks = self._block_epoch(epoch).blocks[first : first + self._blocks_per_group]
            rows = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
            rows = rows[rows < self.num_samples]
            places = permutation(
                self.seed, Purpose.groups, epoch, group, len(rows), self.piece_done
            )
            self._group = (epoch, group, rows[places])
        return self._group[2]
