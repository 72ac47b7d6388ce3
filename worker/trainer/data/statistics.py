"""Mean and deviation of fields, in one pass over pieces."""

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from worker.trainer.data.source import Arrays, Rows
from worker.trainer.errors import DataError

Moments = tuple[torch.Tensor, torch.Tensor]
Floats = NDArray[np.float64]

# Values that a thread takes at a time: few enough to stay near its core in float64, and so many
# that the calls for a block are soon paid for.
BLOCK_VALUES = 2**18
# Columns that are added up side by side: with few at a time, a core would wait for each sum.
SUMMED_AT_ONCE = 4096
# In the result, which is looked at.
_overflow_shows = partial(np.errstate, over="ignore", invalid="ignore")


class _Part(NamedTuple):
    """Of some values, less the first of all: how many, their mean, their squared deviations."""

    number: int
    mean: Floats
    squares: Floats


class _Running:
    """All values of a field so far, per feature (Chan, Golub and LeVeque 1983)."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._first: Floats | None = None
        self._all = _Part(0, np.zeros(()), np.zeros(()))

    def add(self, table: NDArray[Any], times: Rows | None = None) -> None:
        """`table` is (number, features) or (number,); each row counts once, or so many `times`."""
        if not len(table):
            return
        if self._first is None:
            self._first = table[0].astype(np.float64)
        rows = max(1, BLOCK_VALUES // table[:1].size)
        blocks = [slice(start, start + rows) for start in range(0, len(table), rows)]
        # In their order, so that the result does not depend on the number of threads.
        for part in self._pool.map(partial(_part_of, table, times, self._first), blocks):
            self._all = _merged(self._all, part)

    def moments(self, name: str) -> Moments:
        """(mean, std); std is 1 where every value is the same. DataError when not finite."""
        assert self._first is not None  # noqa: S101 - a part has samples
        mean, squares = self._first + self._all.mean, self._all.squares
        std = np.where(squares == 0, 1.0, np.sqrt(squares / self._all.number))
        _require_finite(name, mean + std)
        return torch.from_numpy(np.asarray(mean)), torch.from_numpy(np.asarray(std))


def _part_of(table: NDArray[Any], times: Rows | None, first: Floats, rows: slice) -> _Part:
    with _overflow_shows():  # which each thread has to be told
        # Less the first, so that what never changes is 0 and has no deviation.
        values = np.subtract(table[rows], first, dtype=np.float64)
        weights = None if times is None else times[rows]
        count = len(values) if weights is None else int(weights.sum())
        mean = _sum(values, weights) / count
        values -= mean
        np.square(values, out=values)
        return _Part(count, mean, _sum(values, weights))


def _sum(values: Floats, weights: Rows | None) -> Floats:
    """Over the rows."""
    if weights is not None:
        return np.asarray(weights @ values)
    if values.ndim == 1:
        return np.asarray(values.sum())
    features = values.shape[1]
    beside = max(1, SUMMED_AT_ONCE // features)
    even = len(values) // beside * beside
    sums = values[:even].reshape(-1, beside * features).sum(axis=0).reshape(beside, features)
    return np.asarray(sums.sum(axis=0) + values[even:].sum(axis=0))


def _merged(one: _Part, other: _Part) -> _Part:
    total = one.number + other.number
    gap = other.mean - one.mean
    squares = one.squares + other.squares + np.square(gap) * (one.number * other.number / total)
    return _Part(total, one.mean + gap * (other.number / total), squares)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="statistics")


def field_statistics(pieces: Iterable[Arrays], pooled: Collection[str]) -> dict[str, Moments]:
    """(mean, std) of each field of `pieces`, float64: per entry of the last axis; shape () for
    `pooled` fields, over all their values, and for fields of one number a sample.

    The result depends on how the pieces are cut, in the last bits: cut them the same each time.
    Raises DataError on NaN or infinity.
    """
    running: dict[str, _Running] = {}
    with _threads() as pool, _overflow_shows():
        for piece in pieces:
            for name, array in piece.items():
                kept = running.setdefault(name, _Running(pool))
                kept.add(_table(array, pooled=name in pooled))
        return {name: kept.moments(name) for name, kept in running.items()}


def array_statistics(
    name: str, pieces: Iterable[tuple[NDArray[Any], Rows | None]], *, pooled: bool
) -> Moments:
    """Those of one field, by pieces of what it is stored as, each with how many times its rows
    count: that equals what `field_statistics` gives of samples that hold them so often, but for the
    last bits.
    """
    with _threads() as pool, _overflow_shows():
        running = _Running(pool)
        for piece, times in pieces:
            if times is None:
                running.add(_table(piece, pooled=pooled))
            else:
                table, held = _table(piece[times > 0], pooled=pooled), times[times > 0]
                running.add(table, held.repeat(len(table) // max(1, len(held))))
        return running.moments(name)


def _table(array: NDArray[Any], *, pooled: bool) -> NDArray[Any]:
    """One row per value of each feature."""
    return array.ravel() if pooled or array.ndim == 1 else array.reshape(-1, array.shape[-1])


def _require_finite(name: str, values: NDArray[np.float64]) -> None:
    if np.isfinite(values).all():
        return
    features = np.flatnonzero(~np.isfinite(np.atleast_1d(values))).tolist()
    where = f" (features {features[:10]})" if values.ndim else ""
    raise DataError(
        f"The training part of {name!r} holds NaN, infinity or values too large to square{where},"
        " so it cannot be standardized and training on it would fail. Fill or remove these values"
        " and register the file again."
    )
