"""Reading scattered rows as few contiguous reads, each row to the place where it is wanted."""

from collections.abc import Iterator

import numpy as np

from worker.trainer.data.source import Arrays, Extents, Rows, Source

# Of rows of a few bytes, scattered, the places alone would take more memory than the rows.
EXTENTS_AT_ONCE = 4096


def in_file_order(rows: Rows) -> tuple[Rows, Rows]:
    """(the rows ascending, which is `rows` itself if they do, the position of each in `rows`)."""
    if (np.diff(rows) > 0).all():
        return rows, np.arange(len(rows))
    positions = np.argsort(rows, kind="stable")
    return rows[positions], positions


def inverse(positions: Rows) -> Rows:
    """Of a permutation: at which place each position stands."""
    places = np.empty_like(positions)
    places[positions] = np.arange(len(positions))
    return places


def extents(ascending: Rows, places: Rows | None = None) -> Iterator[Extents]:
    """The runs that make up these rows, which ascend without repeats: neighbours in the file that
    are neighbours in their places too, which are 0, 1, 2, … if none are given.
    """
    if not len(ascending):
        return
    if places is None:
        places = np.arange(len(ascending))
    breaks = np.flatnonzero((np.diff(ascending) != 1) | (np.diff(places) != 1))
    starts = np.concatenate(([0], breaks + 1))
    lasts = np.concatenate((breaks, [len(ascending) - 1]))
    yield from some_at_once(Extents(ascending[starts], ascending[lasts] + 1, places[starts]))


def some_at_once(runs: Extents) -> Iterator[Extents]:
    """The same in groups of EXTENTS_AT_ONCE."""
    for begin in range(0, len(runs), EXTENTS_AT_ONCE):
        some = slice(begin, begin + EXTENTS_AT_ONCE)
        yield Extents(runs.starts[some], runs.stops[some], runs.places[some])


def each_row(runs: Extents) -> tuple[Rows, Rows]:
    """(the rows of all runs, the place of each)."""
    counts = runs.stops - runs.starts
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(runs.starts, counts) + within, np.repeat(runs.places, counts) + within


def read_rows(source: Source, ascending: Rows, out: Arrays, places: Rows | None = None) -> None:
    """Read these rows, which ascend without repeats, to their places in `out`: the first ones, if
    none are given.
    """
    for runs in extents(ascending, places):
        source.read(runs, out)
