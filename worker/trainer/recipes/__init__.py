"""Recipes: model, loss and metrics of each workload, by the name that a spec uses."""

from worker.trainer.recipes.base import Task
from worker.trainer.recipes.sequence import SequenceTask

TASKS: dict[str, type[Task]] = {"sequence": SequenceTask}

__all__ = ["TASKS", "SequenceTask", "Task"]
