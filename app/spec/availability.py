"""Options of the contract whose machinery comes later: they are refused, never ignored."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.spec.issue import Issue, PatchOp


@dataclass(frozen=True)
class UnavailableOption:
    """A value that is refused, when it is met, and what to use meanwhile."""

    option: str
    """Place in the spec with the values: `policy.on_nonfinite: rollback`."""
    refuses: Callable[[Any], bool]
    instead: str

    @property
    def pointer(self) -> str:
        """JSON Pointer of the option."""
        return "/" + self.option.split(":")[0].replace(".", "/")


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


UNAVAILABLE: tuple[UnavailableOption, ...] = (
    UnavailableOption("mode: probe", _is("probe"), "train with mode: train"),
    UnavailableOption(
        "runtime.gpus: 2 or more for a recipe",
        lambda v: isinstance(v, int) and v > 1,
        "a recipe trains on one GPU; a script may have several",
    ),
)


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
                fix=[PatchOp(op="remove", path=path)],
            )
        )
    return issues


def _lookup(document: Any, pointer: str) -> tuple[bool, Any]:
    for part in pointer.strip("/").split("/"):
        if not isinstance(document, dict) or part not in document:
            return False, None
        document = document[part]
    return True, document
