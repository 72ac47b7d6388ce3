"""Mean and deviation of fields, in one pass over pieces."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from worker.trainer.data.source import Arrays
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

    def add(self, values: NDArray[np.float64]) -> None:
        """`values` is (number, features) or (number,)."""
        if self._first is None:
            self._first = values[0]
        count, mean = len(values), values.mean(axis=0)
        deviations = values - mean
        squares = np.square(deviations, out=deviations).sum(axis=0)
        total = self._count + count
        gap = mean - self._mean
        self._squares = self._squares + squares + np.square(gap) * (self._count * count / total)
        self._mean = self._mean + gap * (count / total)
        self._constant = self._constant & (values == self._first).all(axis=0)
        self._count = total

    def result(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(mean, std); std is 1 where every value is the same."""
        return self._mean, np.where(self._constant, 1.0, np.sqrt(self._squares / self._count))


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
                for block in _blocks(array):
                    kept.add(_table(block, pooled=name in pooled))
    results = {name: kept.result() for name, kept in running.items()}
    for name, (mean, std) in results.items():
        _require_finite(name, mean + std)
    return {
        name: (torch.from_numpy(np.asarray(mean)), torch.from_numpy(np.asarray(std)))
        for name, (mean, std) in results.items()
    }


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The rows, so many at a time as BLOCK_BYTES hold."""
    row_bytes = array[:1].size * np.dtype(np.float64).itemsize
    rows = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


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
