"""The trainer's halves of the recipes, found by entry point: model, loss and metrics of each."""

from collections.abc import Iterator
from importlib.metadata import entry_points

from app.lifecycle import Reason
from app.spec.installed import INSTALLED
from app.spec.plugins import TASKS
from app.spec.recipe import Recipe
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.base import Task


def task_of(kind: str) -> type[Task]:
    """The task of a recipe. Raises TrainerError when it is not installed, or raises at import."""
    for point in entry_points(group=TASKS, name=kind):
        try:
            task = point.load()
        except (Exception, SystemExit) as error:
            raise _unusable(f"{point.value} raised {type(error).__name__}: {error}") from error
        if not (isinstance(task, type) and issubclass(task, Task)):
            raise _unusable(f"{point.value} is no subclass of worker.trainer.recipes.base.Task")
        if lacking := sorted(task.__abstractmethods__):
            raise _unusable(f"{point.value} lacks {', '.join(lacking)}, which every task has")
        return task
    raise _unusable(f"no installed package has an entry point {kind!r} in {TASKS}")


def trained_as_another(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Code and sentence of a warning where a plugin's package is of another version than the run's:
    it was installed while the service was running, which goes on to name the one that it knows.
    """
    for point in entry_points(group=TASKS, name=recipe.kind):
        if point.dist is None or not recipe.version or not INSTALLED.is_plugin(recipe.kind):
            continue
        if (installed := point.dist.version) != recipe.version:
            yield (
                "recipe_version",
                f"{point.dist.name} {installed} is installed, and the worker still knows "
                f"{recipe.version}: this run trains the code of {installed} under the name of "
                f"{recipe.version}. Restart the service (`stoker down`, `stoker up --detach`).",
            )


def _unusable(why: str) -> TrainerError:
    return TrainerError(
        Reason.trainer_error,
        f"The recipe's task cannot be used: {why}. Install or mend the package on this worker.",
    )
