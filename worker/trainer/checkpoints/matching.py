"""Whether a checkpoint is of the training that would go on from it; each difference is a phrase."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from app.lifecycle import Reason
from app.spec.recipe import value_at
from worker.trainer.errors import TrainerError
from worker.trainer.optimizers import kept_of_each
from worker.trainer.recipes.base import Task
from worker.trainer.step import TrainingStep

logger = logging.getLogger(__name__)

# A message is read by a person; trainer.log has them all.
MOST_LISTED = 40


def require_none(differences: Iterable[str]) -> None:
    """Raises TrainerError carry_mismatch with all of them."""
    found = list(differences)
    if not found:
        return
    raise TrainerError(
        Reason.carry_mismatch,
        f"The checkpoint is of another model, so nothing was trained: {listed(found)}. Restart "
        "from scratch, or give the recipe and the data the shapes they had.",
    )


def listed(phrases: Sequence[str]) -> str:
    """As many as a message takes."""
    if len(phrases) <= MOST_LISTED:
        return "; ".join(phrases)
    logger.error("Between the checkpoint and this model: %s", "; ".join(phrases))
    shown = "; ".join(phrases[:MOST_LISTED])
    return f"{shown}; and {len(phrases) - MOST_LISTED} more, which trainer.log lists"


def of_the_recipe(task: Task, manifest: Mapping[str, Any]) -> Iterator[str]:
    """What weights of equal names and shapes may still mean differently."""
    here, there = task.parameters_json(), manifest.get("recipe", {})
    if there:
        there = {**task.recipe.earlier, **there}
    for name in dict.fromkeys(("kind", *task.recipe.shape_fields, *task.shape_parameters)):
        if not _is_named(there, name):
            continue  # an earlier version had no word for it
        was, now = value_at(there, name), value_at(here, name)
        if was != now:
            yield f"{name} is {was} there and {now} in this run"


def _is_named(parameters: Mapping[str, Any], name: str) -> bool:
    """True for a field, or `block/field`, that is there. Null for a block names all of it."""
    block, _, field = name.partition("/")
    inner = parameters.get(block)
    return block in parameters and (not field or not isinstance(inner, Mapping) or field in inner)


def of_the_weights(model: nn.Module, there: Mapping[str, Tensor]) -> Iterator[str]:
    """Parameters and buffers."""
    yield from between(model.state_dict(), there)


def of_the_optimizer(step: TrainingStep, there: Mapping[str, Tensor]) -> Iterator[str]:
    """A parameter that never had a gradient has nothing there."""
    kept, begun = kept_of_each(step.optimizer), {name.rpartition(".")[0] for name in there}
    here = {
        f"{name}.{key}": parameter.new_empty(()) if key == "step" else parameter
        for name, parameter in step.model.named_parameters()
        for key in kept
        if name in begun
    }
    for told in between(here, there):
        yield f"of the optimizer {told}"


def of_the_carried(step: TrainingStep, there: Mapping[str, Tensor]) -> Iterator[str]:
    """What the recipe carries from batch to batch."""
    for told in between(step.task.carried(step.model), there):
        yield f"of what is carried {told}"


def of_the_average(
    step: TrainingStep, there: Mapping[str, Tensor], place: Mapping[str, Any] | None
) -> Iterator[str]:
    """The trained weights beside averaged ones; `place` is that of the average."""
    here = step.average.live if step.average and place and place["count"] else {}
    for told in between(here, there):
        yield f"of the weights that are averaged {told}"


def between(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> Iterator[str]:
    """Names that only one has, and shapes that are not the same."""
    for name in dict.fromkeys([*here, *there]):
        if name not in there:
            yield f"{name} is missing there"
        elif name not in here:
            yield f"{name} is there and unknown to this run"
        elif here[name].shape != there[name].shape:
            shapes = tuple(there[name].shape), tuple(here[name].shape)
            yield f"{name} is {shapes[0]} there and {shapes[1]} in this run"
