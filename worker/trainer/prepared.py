"""The tables that a recipe prepares of its data: made once, and kept on disk."""

import time
from typing import Any

from worker.trainer.attempt import TrainerAttempt
from worker.trainer.data.dataset import DataSet
from worker.trainer.data_cache import CacheEntry, Tables, facts_of
from worker.trainer.recipes.base import Task
from worker.trainer.recipes.contract import tables_of
from worker.trainer.report.preparing import Preparing

# 2: every dataset of a run was looked at, not that alone which is trained on.
# 3: tables of molecules have the mean and deviation of their targets.
FORMAT = 3
WAIT_SECONDS = 0.1


def prepared_tables(
    task: Task, attempt: TrainerAttempt, data: DataSet, preparing: Preparing
) -> Tables:
    """On the host; none of a recipe that prepares nothing.

    Another trainer that makes the same tables is waited for. Raises TrainerError when the recipe
    gives something else than tensors, and what its `prepare` raises; StopRequested.
    """
    cache = attempt.data_cache
    if type(task).prepare is Task.prepare:
        return {}
    if cache is None:
        return _made(task, data, preparing)
    with CacheEntry(cache, _facts(task, attempt, data), preparing.warn) as entry:
        while not entry.take():
            preparing.piece_done()
            time.sleep(WAIT_SECONDS)
        tables = entry.read()
        if tables is None:
            tables = _made(task, data, preparing)
            entry.write(tables)
    return tables


def _facts(task: Task, attempt: TrainerAttempt, data: DataSet) -> dict[str, Any]:
    """All that the tables follow from."""
    given = task.recipe.model_dump(mode="json")
    return {
        **facts_of(task, attempt, data),
        "format": FORMAT,
        "parameters": {name: given[name] for name in task.prepared_by},
    }


def _made(task: Task, data: DataSet, preparing: Preparing) -> Tables:
    """Called afresh; in a phase of its own, which may last."""
    preparing.enter("preparing")
    tables = tables_of(task, task.prepare(data.for_recipe(preparing)))
    preparing.enter("building")
    # Copies, so that no two share memory, which a file of them would not allow.
    return {name: table.detach().cpu().contiguous().clone() for name, table in tables.items()}
