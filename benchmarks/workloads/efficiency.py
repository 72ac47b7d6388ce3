"""A workload fed by Stoker's loader beside the same steps on batches that are in memory already."""

from collections.abc import Iterator, Mapping
from functools import partial

from app.spec.run import RunSpec
from benchmarks.figures import Figure
from benchmarks.loading.arms import Arm, Batch
from benchmarks.steps import step_of
from benchmarks.training.rounds import beside, efficiency
from benchmarks.training.training import TimedTraining
from worker.trainer.data import batch as trainer_batch
from worker.trainer.data.dataset import DataSet
from worker.trainer.recipes.base import Tables
from worker.trainer.step import NO_TABLES

# Asked for of each loader.
LEAST = 0.95
ROUNDS = 8
RATE = 1e-4


class StepTraining(TimedTraining):
    """By the steps that a run of the spec makes."""

    def __init__(self, spec: RunSpec, data: DataSet, tables: Tables) -> None:
        super().__init__(data.train.plan.usable_samples)
        self._step, self._input = step_of(spec, data.fields, tables=tables), spec.data.inputs[0]

    def train(self, batch: Batch) -> int:
        # Of graphs, a batch has the nodes of all; how many samples there are, their counts say.
        size = len(batch.get(f"{self._input}/counts", batch[self._input]))
        self._step.accumulate(trainer_batch.Batch(batch, size), 1.0)
        self._step.apply(RATE)
        return size


def beside_memory(
    workload: str,
    spec: RunSpec,
    loaders: Mapping[str, DataSet],
    rounds: int,
    command: str,
    tables: Tables = NO_TABLES,
) -> list[Figure]:
    """The rate of each loader over that of the first one's batches, kept in memory; `tables`: what
    the recipe's `prepare` gave.
    """
    first = next(iter(loaders.values()))
    kept = [{name: array.clone() for name, array in batch.items()} for batch in _epoch(first, 0)]
    limit = Arm("in memory", lambda number: iter(kept))
    arms = [Arm(name, partial(_epoch, data)) for name, data in loaders.items()]
    training = partial(StepTraining, spec, first, tables)
    _, ratios = beside(limit, arms, training, rounds)
    return [efficiency(workload, arm, ratios[arm.name], LEAST, command) for arm in arms]


def _epoch(data: DataSet, number: int) -> Iterator[Batch]:
    return (batch.arrays for batch in data.train.iterate(number))
