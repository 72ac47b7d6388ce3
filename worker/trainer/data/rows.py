"""Reading scattered rows as few contiguous reads."""

from collections.abc import Iterator
from itertools import islice

import numpy as np

from worker.trainer.data.source import Arrays, Extent, Rows, Source

# Of rows of a few bytes, scattered, the places alone would take more memory than the rows.
EXTENTS_AT_ONCE = 4096


def in_file_order(rows: Rows) -> tuple[Rows, Rows]:
    """(the rows ascending, for each of `rows` its place among them)."""
    sorter = np.argsort(rows, kind="stable")
    places = np.empty_like(sorter)
    places[sorter] = np.arange(len(rows))
    return rows[sorter], places


def extents(ascending: Rows) -> Iterator[Extent]:
    """The contiguous runs [start, stop) that make up these rows, which ascend without repeats."""
    if not len(ascending):
        return
    breaks = np.flatnonzero(np.diff(ascending) != 1)
    starts = ascending[np.concatenate(([0], breaks + 1))]
    lasts = ascending[np.concatenate((breaks, [-1]))]
    for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
        yield start, last + 1


def read_rows(source: Source, ascending: Rows, out: Arrays) -> None:
    """Read these rows, which ascend without repeats, into the first places of `out`."""
    each, place = extents(ascending), 0
    while group := list(islice(each, EXTENTS_AT_ONCE)):
        end = place + sum(stop - start for start, stop in group)
        source.read(group, {name: array[place:end] for name, array in out.items()})
        place = end
