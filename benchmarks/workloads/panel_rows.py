"""The panel workload as it was reported: rows of a table, put together by date, graphs made anew.

A row is a window of one entity. As in the report, a batch is 2,048 or 4,096 rows, by a DataLoader
with up to 16 processes, and a graph is made pair by pair in Python. The report does not say whether
one was made for each date of a batch or one for all, so both are here. Of an iteration of the
validation it is told how long each part takes.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks.figures import Figure, figure_of
from worker.trainer.recipes.base import Batch

ARRAYS = ("features", "present", "targets", "known")
# In these a date has a window of all entities.
WINDOWED = ("features", "present")
Work = Callable[[Batch], object]
PARTS = ("rows", "putting together", "graphs", "model")


class Rows(Dataset[dict[str, np.ndarray]]):
    """One window of one entity on one date, of dates that are in memory."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        kept = [batch.arrays for batch in batches]
        names = (*ARRAYS, "date")
        self._arrays = {name: torch.cat([one[name] for one in kept]).numpy() for name in names}
        self._entities = self._arrays["features"].shape[2]
        self._count: int = len(self._arrays["date"]) * self._entities

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        date, entity = divmod(row, self._entities)
        found = {"date": self._arrays["date"][date]}
        for name in ARRAYS:
            one = self._arrays[name][date]
            found[name] = one[:, entity] if name in WINDOWED else one[entity]
        return found


@dataclass(frozen=True)
class Case:
    """How many rows a batch has, of how many processes, and what a graph is made for."""

    rows: int
    workers: int
    graphs: Literal["each date", "each batch", "none, they are kept"]


CASES = (
    Case(2_048, 0, "each date"),
    Case(2_048, 0, "none, they are kept"),
    Case(2_048, 0, "each batch"),
    Case(4_096, 0, "each date"),
    Case(2_048, 16, "each date"),
)


def as_reported(rows: Rows, case: Case, graph: Work, model: Work, command: str) -> Figure:
    """Seconds of an iteration, and those of its parts; `graph`: makes one, of a batch's last date;
    `model`: evaluates a batch, with graphs that are kept.
    """
    loader = DataLoader(rows, case.rows, num_workers=case.workers, drop_last=True)
    took = np.array(list(_iterations(loader, case, graph, model)))
    name = f"panel: an iteration of {case.rows:,} rows, {case.workers} workers, a graph for "
    figure = figure_of(name + case.graphs, "s", took.sum(1).tolist(), command)
    medians = zip(PARTS, np.median(took, 0).tolist(), strict=True)
    return replace(figure, also={f"s {part}": seconds for part, seconds in medians})


def _iterations(
    loader: DataLoader[dict[str, np.ndarray]], case: Case, graph: Work, model: Work
) -> Iterator[list[float]]:
    """Seconds of each part, in the order of `PARTS`."""
    batches = iter(loader)
    while True:
        at = [time.perf_counter()]
        rows = next(batches, None)
        if rows is None:
            return
        at.append(time.perf_counter())
        dates = _by_date(rows)
        at.append(time.perf_counter())
        if case.graphs == "each batch":
            graph(dates)
        elif case.graphs == "each date":
            for one in range(dates.size):
                graph(Batch({k: array[one : one + 1] for k, array in dates.arrays.items()}, 1))
        at.append(time.perf_counter())
        model(dates)
        at.append(time.perf_counter())
        yield np.diff(at).tolist()


def _by_date(rows: dict[str, Tensor]) -> Batch:
    """The entities of each date, side by side again."""
    dates = rows["date"].tolist()
    found: dict[str, list[Tensor]] = {name: [] for name in ARRAYS}
    for date in sorted(set(dates)):
        places = [place for place, one in enumerate(dates) if one == date]
        for name in ARRAYS:
            one = rows[name][places]
            found[name].append(one.transpose(0, 1) if name in WINDOWED else one)
    arrays = {name: torch.stack(each) for name, each in found.items()}
    arrays["date"] = torch.tensor(sorted(set(dates)), dtype=rows["date"].dtype)
    return Batch(arrays, len(arrays["date"]))
