"""Rows that are wanted of Arrow files, as pieces of their record batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.source import Extents, Rows


@dataclass(frozen=True)
class Pieces:
    """Rows that ascend: each piece is [start, stop) of one record batch, and goes to the output
    from `place` on.
    """

    batches: Rows
    starts: Rows
    stops: Rows
    places: Rows

    def __len__(self) -> int:
        return len(self.batches)

    def of(self, some: slice | NDArray[np.bool_]) -> "Pieces":
        return Pieces(self.batches[some], self.starts[some], self.stops[some], self.places[some])

    def cut(self, keys: Rows) -> "Iterator[Pieces]":
        """Into those of each key, which do not fall."""
        if len(self):
            borders = np.flatnonzero(np.diff(keys)) + 1
            for first, end in pairwise([0, *borders.tolist(), len(keys)]):
                yield self.of(slice(first, end))


def pieces_of(extents: Extents, borders: Rows) -> Pieces:
    """Extents, which ascend, cut where record batches end. `borders`: the first row of each record
    batch, and the number of all rows.
    """
    starts, stops, places = extents.starts, extents.stops, extents.places
    first = np.searchsorted(borders, starts, side="right") - 1
    counts = np.searchsorted(borders, stops - 1, side="right") - first
    of = np.repeat(np.arange(len(extents)), counts)
    batches = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.maximum(starts[of], borders[batches])
    ends = np.minimum(stops[of], borders[batches + 1])
    inner = borders[batches]
    return Pieces(batches, begins - inner, ends - inner, places[of] + begins - starts[of])
