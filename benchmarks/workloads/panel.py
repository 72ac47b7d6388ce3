"""The panel workload: evaluations of 256 entities with graphs that are kept, made anew, and none.

The report: the GPU at 0 %, and 2.1 s an iteration of the validation, which built its graph anew for
every batch, pair by pair in Python. Here the prices are made by a factor model, and a batch is 16
dates of 256 entities, 4,096 windows of 60 days. All arms evaluate the same dates by the same model,
as a run does: batches in order, loss and scores summed on the device. What an arm takes to know who
looks at whom is timed by itself, too. The training is measured beside batches in memory, with fewer
entities: loading and model both grow with them.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from app.spec.run import RunSpec
from benchmarks.effort import Effort
from benchmarks.figures import Figure, figure_of
from benchmarks.steps import spec_of, unstopped
from benchmarks.workloads import efficiency
from benchmarks.workloads.panel_rows import CASES, Rows, as_reported
from worker.trainer.build import build_step
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.recipes.base import Batch, Tables
from worker.trainer.recipes.graphs import nearest
from worker.trainer.recipes.panel_graph import PanelGraphTask
from worker.trainer.report.preparing import Preparing
from worker.trainer.step import Precision, TrainingStep
from worker.trainer.tools.panel.sample_panel import MadeSize, make

COMMAND = "python -m benchmarks workloads"
ENTITIES, DATES, WINDOW, NEIGHBORS = 256, 480, 60, 10
TRAINED_ENTITIES = 32
BATCH, ROUNDS = 16, 7
MOST_OF_AN_EVALUATION = 0.02
CPU = torch.device("cpu")

KEPT: dict[str, Any] = {"neighbors": NEIGHBORS}
RESIDENT = {"kind": "chunked"}
STREAMED = {"kind": "chunked", "residency": "stream", "chunk_size": "4MiB"}
EACH_BATCH = KEPT | {"rebuild_every": "batch", "lookback": WINDOW}


class PairByPair(PanelGraphTask):
    """The report's graph: of a batch's last date, pair by pair in Python."""

    def looks_at(self, batch: Batch) -> Tensor:
        values = batch.arrays["features"][-1, :, :, 0].numpy().astype(np.float64)
        rows = (values - values.mean(0)).T / (values.std(0)[:, None] + 1e-12)
        count = len(rows)
        correlation = np.ones((count, count))
        for one in range(count):
            for other in range(one):
                found = (rows[one] * rows[other]).mean()
                correlation[one, other] = correlation[other, one] = found
        return nearest(torch.from_numpy(correlation), NEIGHBORS).expand(batch.size, -1, -1)


@dataclass(frozen=True)
class Arm:
    """An evaluation of the validation part."""

    name: str
    step: TrainingStep
    data: DataSet

    def evaluation(self) -> float:
        """Seconds."""
        return self._seconds(self.step.measure)

    def graphs(self) -> float:
        """Seconds that it takes to know who looks at whom, for the batches of an evaluation."""
        return self._seconds(self.looks_at)

    def looks_at(self, batch: Batch) -> Tensor | None:
        task = self.step.task
        assert isinstance(task, PanelGraphTask)  # noqa: S101 - what arm_of made
        return task.looks_at(Batch(batch.arrays, batch.size, self.step.tables))

    def _seconds(self, work: Callable[[Batch], Any]) -> float:
        """Of `work` with each batch, without the time that these take to come."""
        assert self.data.validation is not None  # noqa: S101 - a fifth is held out
        took = 0.0
        with self.step.evaluating(), torch.no_grad():
            for batch in self.data.validation.iterate(0):
                began = time.perf_counter()
                work(batch)
                took += time.perf_counter() - began
        return took


def measure(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder, ExitStack() as held:
        path = Path(folder, "panel.h5")
        make(path, MadeSize(ENTITIES, DATES))
        kept, made = arm_of("kept", path, held, KEPT)
        others = [
            arm_of("made for each date of a batch", path, held, EACH_BATCH)[0],
            arm_of("made pair by pair for a batch", path, held, KEPT, PairByPair)[0],
            arm_of("no graph", path, held, None)[0],
        ]
        figures = [*_figures([kept, *others], effort.rounds(ROUNDS)), _made_once(made)]
        figures += _as_reported(effort, kept, others[1])
        trained = Path(folder, "trained.h5")
        make(trained, MadeSize(TRAINED_ENTITIES, DATES))
        return figures + _efficiency(trained, effort.rounds(efficiency.ROUNDS), held)


def _efficiency(path: Path, rounds: int, held: ExitStack) -> list[Figure]:
    """Beside batches in memory, with graphs that are kept. On one thread: two wait for each other
    in so small a model, and beside other work took 20 times as long.
    """
    held.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    (resident, preparing), (streamed, _) = (
        _opened(_spec(KEPT, loader), path, held) for loader in (RESIDENT, STREAMED)
    )
    loaders = {"Stoker, resident": resident, "Stoker, a stream": streamed}
    spec = _spec(KEPT)
    task = PanelGraphTask.for_run(spec, resident.fields)
    tables = task.prepare(resident.for_recipe(preparing))
    return efficiency.beside_memory("panel", spec, loaders, rounds, COMMAND, tables)


def _as_reported(effort: Effort, kept: Arm, pair_by_pair: Arm) -> list[Figure]:
    """The report's iterations of the validation."""
    assert kept.data.validation is not None  # noqa: S101 - a fifth is held out
    rows = Rows(kept.data.validation.iterate(0))
    graph, model = pair_by_pair.looks_at, kept.step.measure
    with kept.step.evaluating(), torch.no_grad():
        cases = effort.variants(CASES)
        return [as_reported(rows, case, graph, model, COMMAND) for case in cases]


def arm_of(
    name: str,
    path: Path,
    held: ExitStack,
    graph: dict[str, Any] | None,
    kind: type[PanelGraphTask] = PanelGraphTask,
) -> tuple[Arm, float]:
    """And the seconds that its tables took."""
    spec = _spec(graph)
    data, preparing = _opened(spec, path, held)
    task = kind.for_run(spec, data.fields)
    began = time.perf_counter()
    tables: Tables = task.prepare(data.for_recipe(preparing))
    took = time.perf_counter() - began
    step = build_step(spec, task, {}, Precision("fp32", CPU), tables=dict(tables))
    return Arm(name, step, data), took


def _opened(spec: RunSpec, path: Path, held: ExitStack) -> tuple[DataSet, Preparing]:
    """As a run opens it."""
    datasets = {"panel": {"path": str(path), "fingerprint": fingerprint(path)}}
    preparing = held.enter_context(unstopped())
    data = open_data(spec, datasets, CPU, preparing)
    held.callback(data.close)
    return data, preparing


def _spec(graph: dict[str, Any] | None, loader: Mapping[str, str] = RESIDENT) -> RunSpec:
    recipe = {"kind": "panel-graph", "encoder": "gru", "patch": 5, "horizons": [5, 20]}
    names = {"inputs": ["features", "present", "date"], "targets": ["targets", "known"]}
    split = {"method": "chronological", "validation_fraction": 0.2}
    return spec_of(
        {
            "recipe": recipe | {"graph": graph},
            "data": {"dataset": "panel", **names, "split": split, "loader": loader},
            "training": {"batch_size": BATCH, "epochs": 10_000},
            "evaluation": {"batch_size": BATCH},
        }
    )


def _figures(arms: list[Arm], rounds: int) -> list[Figure]:
    """Of each arm an evaluation, and the share of it that goes into graphs, in turns."""
    for arm in arms:
        arm.evaluation()  # memory begins
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    shares: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(rounds):
        for arm in arms:
            took = arm.evaluation()
            seconds[arm.name].append(took)
            shares[arm.name].append(arm.graphs() / took)
    found = []
    for arm in arms:
        found.append(
            figure_of(f"panel: {arm.name}, an evaluation", "s", seconds[arm.name], COMMAND)
        )
        share = figure_of(f"panel: {arm.name}, graphs' share of it", "", shares[arm.name], COMMAND)
        found.append(share)
    kept = found[1]
    found[1] = Figure(
        kept.name, kept.value, "", MOST_OF_AN_EVALUATION, kept.n, COMMAND, kept.spread
    )
    return found


def _made_once(seconds: float) -> Figure:
    return figure_of("panel: all graphs made once, before the training", "s", [seconds], COMMAND)
