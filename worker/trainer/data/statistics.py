"""Mean and deviation of fields, in one pass over pieces."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worker.trainer.data.source import Arrays, Rows
from worker.trainer.errors import DataError

Moments = tuple[torch.Tensor, torch.Tensor]

# Values in float64 at a time. Three arrays of this size are made on the way; of a whole piece they
# would be up to 800 MiB, more than most trainings take.
BLOCK_BYTES = 4 * 2**20


class _Running:
    """Count, mean and sum of squared deviations per feature (Chan, Golub and LeVeque 1983)."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: NDArray[np.float64] = np.zeros(())
        self._squares: NDArray[np.float64] = np.zeros(())
        self._first: NDArray[np.float64] | None = None
        self._constant: NDArray[np.bool_] = np.ones((), dtype=bool)

    def add(self, values: NDArray[np.float64], times: Rows | None = None) -> None:
        """`values` is (number, features) or (number,); each counts once, or so many `times`."""
        if self._first is None:
            self._first = values[0]
        count = len(values) if times is None else int(times.sum())
        mean = np.average(values, axis=0, weights=times)
        deviations = values - mean
        each = np.square(deviations, out=deviations)
        squares = each.sum(axis=0) if times is None else times @ each
        total = self._count + count
        gap = mean - self._mean
        self._squares = self._squares + squares + np.square(gap) * (self._count * count / total)
        self._mean = self._mean + gap * (count / total)
        self._constant = self._constant & (values == self._first).all(axis=0)
        self._count = total

    def moments(self, name: str) -> Moments:
        """(mean, std); std is 1 where every value is the same. DataError when not finite."""
        std = np.where(self._constant, 1.0, np.sqrt(self._squares / self._count))
        _require_finite(name, self._mean + std)
        return torch.from_numpy(np.asarray(self._mean)), torch.from_numpy(np.asarray(std))


def field_statistics(pieces: Iterable[Arrays], pooled: Collection[str]) -> dict[str, Moments]:
    """(mean, std) of each field of `pieces`, float64: per entry of the last axis; shape () for
    `pooled` fields, over all their values, and for fields of one number a sample.

    The result depends on how the pieces are cut, in the last bits: cut them the same each time.
    Raises DataError on NaN or infinity.
    """
    running: dict[str, _Running] = {}
    with np.errstate(over="ignore", invalid="ignore"):  # shows in the result
        for piece in pieces:
            for name, array in piece.items():
                kept = running.setdefault(name, _Running())
                for rows in _blocks(array):
                    kept.add(_table(array[rows], pooled=name in pooled))
        return {name: kept.moments(name) for name, kept in running.items()}


def series_statistics(
    name: str, pieces: Iterable[tuple[NDArray[Any], Rows]], *, pooled: bool
) -> Moments:
    """Those of a field of windows, by the series that they slide over: pieces of it, each with how
    many windows hold each of its steps. Equal to those of the windows but for the last bits.
    """
    running = _Running()
    with np.errstate(over="ignore", invalid="ignore"):  # shows in the result
        for piece, held in pieces:
            array, times = piece[held > 0], held[held > 0]
            for rows in _blocks(array):
                table = _table(array[rows], pooled=pooled)
                running.add(table, times[rows].repeat(len(table) // len(times[rows])))
        return running.moments(name)


def _blocks(array: NDArray[Any]) -> Iterator[slice]:
    """The rows, so many at a time as BLOCK_BYTES hold."""
    row_bytes = max(1, array[:1].size) * np.dtype(np.float64).itemsize
    rows = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, len(array), rows):
        yield slice(start, start + rows)


def _table(array: NDArray[Any], *, pooled: bool) -> NDArray[np.float64]:
    """The values as float64, one row per value of each feature."""
    flat = array.ravel() if pooled or array.ndim == 1 else array.reshape(-1, array.shape[-1])
    return flat.astype(np.float64)


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
