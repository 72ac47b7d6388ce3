"""Bytes of a file and where in memory they go, as few reads."""

import os
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from worker.trainer.data.source import Rows

# What a thread reads before it takes the next, for whoever shares its core with another is slower:
# one of a few, as a cold file is read ahead the further the longer a thread reads on; no less than
# is worth a thread, and no more than others may wait for at the end.
SHARES, LEAST_SHARE_BYTES, MOST_SHARE_BYTES = 4, 2**23, 2**26
# As many as one call of the system takes; half of them are for what is skipped.
MOST_PARTS = os.sysconf("SC_IOV_MAX") // 2
# To read on is as fast as to begin anew: samples of 2.8 KiB of which every fourth is read came at
# 1.3 GiB/s without, and at 1.7, 1.7, 2.0 and 2.1 with up to 2, 4, 8 and 16 KiB read through.
MOST_SKIPPED_BYTES = 2**14


@dataclass(frozen=True)
class FileParts:
    """Bytes of the file, in its order, and where in `memory` they go: three numbers each."""

    memory: memoryview
    offsets: Rows
    starts: Rows
    sizes: Rows

    def __len__(self) -> int:
        return len(self.offsets)

    def shares(self) -> "list[FileParts]":
        """Cut into shares of equal bytes, also inside a part; one where there are few."""
        total = int(self.sizes.sum())
        size = min(max(total // SHARES, LEAST_SHARE_BYTES), MOST_SHARE_BYTES)
        count = max(1, -(-total // size))
        if count == 1:
            return [self]
        cuts = total * np.arange(count + 1) // count
        begins = np.cumsum(self.sizes) - self.sizes
        points = np.sort(np.concatenate((begins, cuts[1:-1])))
        points = points[np.diff(points, prepend=-1) > 0]  # `union1d` imports 6 MiB of NumPy
        whole = np.searchsorted(begins, points, side="right") - 1
        inside = points - begins[whole]
        sizes = np.diff(points, append=total)
        cut = FileParts(
            self.memory, self.offsets[whole] + inside, self.starts[whole] + inside, sizes
        )
        places = np.searchsorted(points, cuts).tolist()
        return [cut.of(slice(*ends)) for ends in pairwise(places)]

    def of(self, some: slice) -> "FileParts":
        return FileParts(self.memory, self.offsets[some], self.starts[some], self.sizes[some])

    @property
    def gaps(self) -> Rows:
        """Bytes between each part and the next."""
        return self.offsets[1:] - self.offsets[:-1] - self.sizes[:-1]

    def runs(self) -> Rows:
        """Where each run begins: parts so close together in the file that they are read as one."""
        if len(self) == 1:
            return np.zeros(1, np.int64)
        gaps = self.gaps
        apart = np.flatnonzero((gaps < 0) | (gaps > MOST_SKIPPED_BYTES)) + 1
        begins = np.concatenate(([0], apart))
        within = np.arange(len(self)) - np.repeat(begins, np.diff(begins, append=len(self)))
        return np.flatnonzero(within % MOST_PARTS == 0)

    def read(self, file: int) -> None:
        """Read each run with a call of the system; OSError, EOFError.

        Plain lists and no objects: of scattered rows of some KiB, what Python does for each takes
        as long as to copy it, and the loop beside waits for Python meanwhile.
        """
        if not len(self):
            return
        memory, runs, preadv = self.memory, self.runs(), os.preadv
        offsets, starts = self.offsets.tolist(), self.starts.tolist()
        stops = (self.starts + self.sizes).tolist()
        if len(runs) == len(self):
            for offset, start, stop in zip(offsets, starts, stops, strict=True):
                piece = memory[start:stop]
                if (count := preadv(file, [piece], offset)) != stop - start:
                    _fill(file, offset, [piece], count)
            return
        gaps, skipped = self.gaps.tolist(), memoryview(bytearray(MOST_SKIPPED_BYTES))
        for first, end in pairwise([*runs.tolist(), len(self)]):
            memories = [memory[starts[first] : stops[first]]]
            for at in range(first + 1, end):
                if gaps[at - 1]:
                    memories.append(skipped[: gaps[at - 1]])
                memories.append(memory[starts[at] : stops[at]])
            _fill(file, offsets[first], memories, preadv(file, memories, offsets[first]))


def _fill(file: int, at: int, memories: list[memoryview], count: int) -> None:
    """Read what is left of the memories when `count` bytes from `at` on were read into them."""
    left = memories
    while left := _after(left, count):
        if not count:
            raise EOFError(f"the file ends at byte {at:,}")
        at += count
        count = os.preadv(file, left, at)


def _after(memories: list[memoryview], count: int) -> list[memoryview]:
    """What is left of them when the first `count` bytes are filled."""
    for number, memory in enumerate(memories):
        if count < memory.nbytes:
            return [memory[count:], *memories[number + 1 :]]
        count -= memory.nbytes
    return []
