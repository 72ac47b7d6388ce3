"""Options of the contract whose machinery comes later: they are refused, never ignored."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.spec.issue import Issue, PatchOp
from app.spec.recipe import RECIPES_TO_COME


@dataclass(frozen=True)
class Unavailable:
    """A value that is refused: where it stands, when it is met, and what to use meanwhile."""

    pointer: str
    refuses: Callable[[Any], bool]
    instead: str
    has_fix: bool = True


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _given(value: Any) -> bool:
    return value is not None and value is not False


UNAVAILABLE: tuple[Unavailable, ...] = (
    Unavailable("/mode", _is("probe"), "train with mode: train"),
    Unavailable(
        "/recipe/kind", _is(*RECIPES_TO_COME), "the recipe here is sequence", has_fix=False
    ),
    Unavailable("/recipe/carry_hidden", _given, "each window starts from a zero state"),
    Unavailable(
        "/data/inputs", lambda v: _longer_than_one(v), "give one input array", has_fix=False
    ),
    Unavailable(
        "/data/targets", lambda v: _longer_than_one(v), "give one target array", has_fix=False
    ),
    Unavailable("/data/split/method", _is("field"), "use chronological, random or datasets"),
    Unavailable("/optimizer/backbone_lr", _given, "one learning rate holds for all weights"),
    Unavailable("/schedule/kind", _is("plateau"), "use one of the other schedules"),
    Unavailable("/averaging/kind", _is("swa", "ema"), "the trained weights are delivered"),
    Unavailable("/runtime/gpus", lambda v: isinstance(v, int) and v > 1, "a run uses one GPU"),
    Unavailable("/runtime/activation_checkpointing", _given, "lower the batch size to save memory"),
    Unavailable("/policy/on_nonfinite", _is("rollback"), "the run fails and keeps its checkpoint"),
    Unavailable("/policy/preemptible", _given, "runs are claimed by priority, none is preempted"),
    Unavailable("/init_from", _given, "restart a run to carry its weights on"),
)


def _longer_than_one(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 1


def unavailable_issues(document: dict[str, Any]) -> list[Issue]:
    """An error for each value in the joined layers that needs machinery which is not built yet."""
    issues = []
    for entry in UNAVAILABLE:
        found, value = _lookup(document, entry.pointer)
        if not found or not entry.refuses(value):
            continue
        loc = entry.pointer.strip("/").split("/")
        # A block of another kind goes as a whole: its fields mean nothing under the default kind.
        path = entry.pointer.removesuffix("/kind").removesuffix("/method")
        issues.append(
            Issue(
                code="not_available_yet",
                severity="error",
                loc=list(loc),
                message=f"{'.'.join(loc)} = {value!r} is not available yet.",
                why=f"In this version {entry.instead}; an option is refused rather than ignored.",
                fix=[PatchOp(op="remove", path=path)] if entry.has_fix else [],
            )
        )
    return issues


def _lookup(document: Any, pointer: str) -> tuple[bool, Any]:
    for part in pointer.strip("/").split("/"):
        if not isinstance(document, dict) or part not in document:
            return False, None
        document = document[part]
    return True, document
