"""Reads a panel out of the windows that slide over it: each date once, looked at as it comes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from app.spec.data import Data
from worker.trainer.data.source import Arrays, Rows
from worker.trainer.data.training_data import TrainingData
from worker.trainer.errors import DataError

# Dates that are counted, for each that a sample has: with more it is no count of dates.
MOST_COUNTED = 20
Truth = NDArray[np.bool_]


@dataclass(frozen=True)
class FeatureSeries:
    """One feature of all entities, date by date, and which of them are there."""

    values: Tensor
    """float64 (dates, entities)"""
    present: Tensor
    """bool (dates, entities)"""
    first: int
    """Number of the first date."""
    begin: int
    """Number of the first date that is a sample, the last of its window."""

    @property
    def last(self) -> int:
        return self.first + len(self.values) - 1


@dataclass(frozen=True)
class PanelReader:
    """The arrays of a panel by their roles: see `app.recipes.panel_graph`."""

    data: TrainingData
    names: Data

    def series(self, feature: int) -> FeatureSeries:
        """Of the whole dataset. DataError where dates do not ascend, a mask is none, or what is
        there, on whatever date of a window, is no finite number; StopRequested.
        """
        panel, mask, date = self.names.inputs
        numbers, values, present = list[Rows](), list[NDArray[Any]](), list[Truth]()
        begin, last = 0, None
        for piece in self.data.whole(panel, mask, date):
            dates, there = piece[date].astype(np.int64), self._truth(piece, mask, begin)
            self._require_ascending(dates, last, begin)
            self._require_finite(panel, piece[panel], there, begin)
            added = _added(dates, last, there.shape[1])
            numbers.append(_numbers(dates, added))
            values.append(_ends(piece[panel][..., feature], added).astype(np.float64))
            present.append(_ends(there, added))
            begin, last = begin + len(dates), int(dates[-1])
        target, known = self.names.targets
        begin = 0
        for piece in self.data.whole(target, known):
            self._require_finite(target, piece[target], self._truth(piece, known, begin), begin)
            begin += len(piece[target])
        return self._in_order(np.concatenate(numbers), values, present)

    def _in_order(
        self, numbers: Rows, values: list[NDArray[Any]], present: list[Truth]
    ) -> FeatureSeries:
        """With nobody there on dates that no window has."""
        window = self.data.fields[self.names.inputs[0]].shape[0]
        first, count = int(numbers[0]), int(numbers[-1] - numbers[0]) + 1
        if count > MOST_COUNTED * len(numbers):
            raise DataError(
                f"{self.names.inputs[2]!r} goes from {numbers[0]} to {numbers[-1]}, and the windows"
                f" have {len(numbers):,} dates: it has to count dates, 0, 1, 2 and so on, not"
                " seconds. Write that, register the file again and restart the run."
            )
        entities = values[0].shape[1]
        series = torch.zeros(count, entities, dtype=torch.float64)
        there = torch.zeros(count, entities, dtype=torch.bool)
        places = torch.from_numpy(numbers - first)
        series[places] = torch.from_numpy(np.concatenate(values))
        there[places] = torch.from_numpy(np.concatenate(present))
        return FeatureSeries(series, there, first, first + window - 1)

    def cells(self, name: str, mask: str) -> Iterator[NDArray[Any]]:
        """Of the training part what the mask says is there, (cells, …); a date of windows once.
        DataError where there is nothing.
        """
        panel, _, date = self.names.inputs
        last, count = None, 0
        for piece in self.data.pieces(name, mask, date):
            values, there = piece[name], piece[mask].astype(bool)
            if name == panel:
                dates = piece[date].astype(np.int64)
                added = _added(dates, last, there.shape[1])
                values, there, last = _ends(values, added), _ends(there, added), int(dates[-1])
            count += int(there.sum())
            yield values[there]
        if not count:
            raise DataError(
                f"By {mask!r} nothing of {name!r} is there in the training part, so there is "
                "nothing to learn from. Write 1 for what is there, and register the file again."
            )

    def _truth(self, piece: Arrays, name: str, begin: int) -> Truth:
        mask = piece[name]
        if mask.dtype != np.bool_:
            wrong = np.flatnonzero((mask > 1).reshape(len(mask), -1).any(1))
            if len(wrong):
                raise DataError(
                    f"{name!r} has {mask[wrong[0]].max()} in "
                    f"{self.data.place_of(begin + int(wrong[0]))}; a mask is 1 for what is there "
                    "and 0 for what is not. Write it so, register the file again and restart the "
                    "run."
                )
        return mask.astype(np.bool_)

    def _require_ascending(self, dates: Rows, last: int | None, begin: int) -> None:
        before = np.concatenate(([dates[0] - 1 if last is None else last], dates[:-1]))
        wrong = np.flatnonzero(dates <= before)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{self.names.inputs[2]!r} is {dates[row]} in {self.data.place_of(begin + row)}, "
                f"and {before[row]} in the row before: dates have to ascend, or a graph would know "
                "what is to come. Sort the rows, register the file again and restart the run."
            )

    def _require_finite(self, name: str, values: NDArray[Any], there: Truth, begin: int) -> None:
        """`there`: as `values`, but for the features behind."""
        bad = ~np.isfinite(values)
        if not bad.any():
            return
        bad &= there.reshape(*there.shape, *[1] * (values.ndim - there.ndim))
        wrong = np.argwhere(bad)
        if len(wrong):
            row, *where = wrong[0].tolist()
            raise DataError(
                f"{name!r} is {values[row, *where]} in {self.data.place_of(begin + row)}, at "
                f"{where} of its sample, where its mask says that there is something. Fill it or "
                "mask it, register the file again and restart the run."
            )


def _added(dates: Rows, last: int | None, window: int) -> Rows:
    """How many dates each window has that the one before it has not: all, of the first."""
    before = np.concatenate(([dates[0] - window if last is None else last], dates[:-1]))
    return np.minimum(dates - before, window)


def _numbers(dates: Rows, added: Rows) -> Rows:
    """Of the last so many dates of each window, one behind another."""
    each = [
        np.arange(d - n + 1, d + 1) for d, n in zip(dates.tolist(), added.tolist(), strict=True)
    ]
    return np.concatenate(each)


def _ends(windows: NDArray[Any], added: Rows) -> NDArray[Any]:
    """The last so many dates of each window (samples, dates, …), one behind another."""
    length = windows.shape[1]
    return np.concatenate(
        [one[length - n :] for one, n in zip(windows, added.tolist(), strict=True)]
    )
