"""The trainer's halves of the recipes, found by entry point: model, loss and metrics of each."""

from importlib.metadata import entry_points

from app.lifecycle import Reason
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.base import Task

ENTRY_POINTS = "stoker.tasks"


def task_of(kind: str) -> type[Task]:
    """The task of a recipe. Raises TrainerError when it is not installed, or raises at import."""
    for point in entry_points(group=ENTRY_POINTS, name=kind):
        try:
            task = point.load()
        except Exception as error:
            raise _unusable(f"{point.value} raised {type(error).__name__}: {error}") from error
        if not (isinstance(task, type) and issubclass(task, Task)):
            raise _unusable(f"{point.value} is no subclass of worker.trainer.recipes.base.Task")
        return task
    raise _unusable(f"no installed package has an entry point {kind!r} in {ENTRY_POINTS}")


def _unusable(why: str) -> TrainerError:
    return TrainerError(
        Reason.trainer_error,
        f"The recipe's task cannot be used: {why}. Install or mend the package on this worker.",
    )
