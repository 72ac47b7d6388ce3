"""Reading scattered rows as few contiguous reads, each row to the place where it is wanted."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.planning.residency import PIECE_BYTES
from worker.trainer.data.source import Arrays, Extents, Field, Rows, Source, bytes_per_sample

ROUND_SAMPLES = 64
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
    borders = np.flatnonzero((np.diff(ascending) != 1) | (np.diff(places) != 1))
    starts = np.concatenate(([0], borders + 1))
    lasts = np.concatenate((borders, [len(ascending) - 1]))
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


def read_stored(source: Source, name: str, runs: Extents, out: NDArray[Any]) -> None:
    """Read rows of one array of the file, each extent to its place in `out`."""
    for some in some_at_once(runs):
        source.read(some, {name: out})


def piece_bounds(
    fields: Mapping[str, Field], samples: int, piece_bytes: int | None = None
) -> Iterator[tuple[int, int]]:
    """`samples` cut into pieces of about so many bytes; None: PIECE_BYTES.

    The copy engine works first come, first served: small pieces let other copies pass in between.
    """
    size = piece_samples(fields, piece_bytes or PIECE_BYTES)
    for start in range(0, samples, size):
        yield start, min(start + size, samples)


def piece_samples(fields: Mapping[str, Field], piece_bytes: int) -> int:
    """Rounded, so that pieces end where chunks of a packed file mostly do: one that lies in two
    pieces is unpacked twice.
    """
    samples = max(1, piece_bytes // bytes_per_sample(fields))
    return samples - samples % ROUND_SAMPLES if samples > ROUND_SAMPLES else samples


def rows_in(row: Field, piece_bytes: int) -> int:
    """Rows that so many bytes have room for, one at least."""
    return max(1, piece_bytes // row.sample_bytes)
