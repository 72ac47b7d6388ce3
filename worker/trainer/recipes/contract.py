"""What the loop takes of a task, and a sentence where a task gives something else.

Each check is cheap enough to run on every batch: what is wrong may come with a later one.
"""

import inspect
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from torch import Size, Tensor, nn

from app.lifecycle import Reason
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.base import Statistics, Tables, Task, WeightedLoss

NO_SHAPES: Mapping[str, Size] = MappingProxyType({})


def require_terms(task: Task, loss: object, names: Collection[str]) -> None:
    """TrainerError unless `loss` gave each term, and its weight, as a tensor of one number."""
    most_axes = 1 if len(names) == 1 else 0  # several are stacked
    terms: object = loss
    if isinstance(loss, WeightedLoss):
        terms = loss.sums
        if not isinstance(loss.weight, Tensor) or loss.weight.ndim:
            raise _broken(task, "loss", f"the weight {_described(loss.weight)}",
                          "it has to be a tensor of one number (.sum())")  # fmt: skip
    if not isinstance(terms, Mapping):
        raise _broken(task, "loss", _described(terms), _wanted_terms(names))
    for name in names:
        if name not in terms:
            given = f"a dict of {', '.join(map(repr, terms)) or 'nothing'} without {name!r}"
            raise _broken(task, "loss", given, _wanted_terms(names))
        one = terms[name]
        if not isinstance(one, Tensor) or one.numel() != 1 or one.ndim > most_axes:
            given = f"for {name!r} {_described(one)}"
            raise _broken(task, "loss", given, "it has to be a tensor of one number, such as the "
                          ".mean() over the batch's samples")  # fmt: skip


def require_gradient(task: Task, loss: Tensor) -> None:
    """TrainerError unless something can be learnt from the loss."""
    if not loss.requires_grad:
        raise _broken(
            task, "loss", "a loss that does not depend on the model's parameters",
            "it has to be computed from what the model gives, with nothing in between that cuts "
            "the gradient off: no .detach(), .item(), .argmax(), torch.tensor(…) or no_grad",
        )  # fmt: skip


def require_sums(task: Task, sums: object, before: Mapping[str, Size] = NO_SHAPES) -> None:
    """TrainerError unless `measure` gave tensors, of the names and shapes of `before` if it has
    some.
    """
    wanted = "it has to give a dict of sums over the batch's samples, a tensor each"
    if not isinstance(sums, Mapping) or not sums:
        raise _broken(task, "measure", _described(sums), wanted)
    for name, one in sums.items():
        if not isinstance(one, Tensor):
            raise _broken(task, "measure", f"for {name!r} {_described(one)}", f"{wanted} (.sum())")
        if before and one.shape != before.get(name, one.shape):
            given = f"for {name!r} {_described(one)}, and one of {tuple(before[name])} before"
            raise _broken(task, "measure", given, "a sum over samples (.sum(), .sum(0)) has the "
                          "same shape for every batch")  # fmt: skip
    if before and list(before) != list(sums):
        given = f"{', '.join(sums)} of one batch, and {', '.join(before)} of another"
        raise _broken(task, "measure", given, "it has to give the same names each time")


def scores_of(task: Task, sums: Mapping[str, float | Tensor], samples: int) -> dict[str, float]:
    """Those of `Task.scores`. TrainerError unless it gave the loss and each metric as a number."""
    scores: object = task.scores(sums, samples)
    names = ("loss", *task.spec.evaluation.metrics)
    wanted = f"it has to give a dict with a number for each of {', '.join(names)}"
    if not isinstance(scores, Mapping):
        raise _broken(task, "scores", _described(scores), wanted)
    if lacking := [name for name in names if name not in scores]:
        given = f"{', '.join(map(repr, scores)) or 'nothing'} without {', '.join(lacking)}"
        advice = f"{wanted}: the loss, and what evaluation.metrics asks for of Recipe.metric_modes"
        raise _broken(task, "scores", given, advice)
    numbers = {}
    for name, score in scores.items():
        if isinstance(score, Tensor) and score.numel() != 1:
            advice = f"{wanted}. If measure forgot the .sum() over its samples, add it there"
            raise _broken(task, "scores", f"for {name!r} {_described(score)}", advice)
        try:
            numbers[name] = float(score)
        except (TypeError, ValueError):
            raise _broken(task, "scores", f"for {name!r} {_described(score)}", wanted) from None
    return numbers


def model_of(task: Task, statistics: Statistics, tables: Tables) -> nn.Module:
    """That of `Task.build_model`. TrainerError where it is none, or where what checkpoints are to
    say of it is no JSON.
    """
    model: object = task.build_model(statistics, tables)
    if not isinstance(model, nn.Module):
        raise _broken(task, "build_model", _described(model), "it has to give a torch.nn.Module")
    parameters: object = task.parameters_json()
    try:
        json.dumps(parameters)
    except (TypeError, ValueError) as error:
        given, wanted = f"what is no JSON ({error})", "it has to give numbers, texts, lists, dicts"
        raise _broken(task, "parameters_json", given, wanted) from None
    return model


def tables_of(task: Task, tables: object) -> dict[str, Tensor]:
    """What `prepare` gave. TrainerError where it is no dict of tensors."""
    wanted = "it has to give a dict of tensors; {} where it only looks at the data"
    if not isinstance(tables, Mapping):
        raise _broken(task, "prepare", _described(tables), wanted)
    for name, table in tables.items():
        if not isinstance(table, Tensor):
            raise _broken(task, "prepare", f"for {name!r} {_described(table)}", wanted)
    return dict(tables)


def left_unstandardized(task: Task) -> Iterator[tuple[str, str]]:
    """Code and sentence of a warning for inputs, and for targets, that the spec wants standardized
    and nothing does.
    """
    if any(_is_its_own(task, method) for method in ("prepare", "dataset")):
        return  # which may do it
    data = task.spec.data
    for part in task.recipe.has_scale:
        names: tuple[str, ...] = getattr(data, part)
        if getattr(data.standardize, part) and not set(names) & set(task.standardized):
            yield (
                "not_standardized",
                f"data.standardize.{part} is true, and {type(task).__name__}.standardized names "
                f"none of {', '.join(names)}: they reach the model as they are in the file. Set it "
                "to false; or let the recipe's package standardize them, or take them out of "
                "has_scale if they are no quantities (docs/recipes.md).",
            )


def _is_its_own(task: Task, method: str) -> bool:
    return inspect.getattr_static(type(task), method) is not inspect.getattr_static(Task, method)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping | list | tuple) and not value:
        return f"an empty {type(value).__name__}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"


def _wanted_terms(names: Iterable[str]) -> str:
    each = ", ".join(f'"{name}": …' for name in names)
    return f"it has to give a dict with the mean over the batch of each loss term: {{{each}}}"


def _broken(task: Task, method: str, given: str, wanted: str) -> TrainerError:
    return TrainerError(
        Reason.trainer_error,
        f"{type(task).__name__}.{method} of the recipe {task.recipe.kind} gave {given}: {wanted}. "
        f"Mend it ({_place_of(type(task), method)}) and install the package again.",
    )


def _place_of(task: type[Task], method: str) -> str:
    """Its file and line; of what has no code in Python, such as a partial, the module's file."""
    code = getattr(inspect.unwrap(getattr(task, method)), "__code__", None)
    if code is not None:
        return f"{code.co_filename}, line {code.co_firstlineno}"
    return str(getattr(sys.modules.get(task.__module__), "__file__", task.__module__))
