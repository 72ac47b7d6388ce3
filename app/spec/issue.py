"""One finding of the guard or of validation: what, where, why, and the patch that mends it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

T = TypeVar("T")
MOST_ISSUES = 20


class PatchOp(BaseModel):
    """One JSON Patch operation (RFC 6902) on the request."""

    model_config = ConfigDict(frozen=True)

    op: Literal["add", "remove", "replace"] = Field(description="What the operation does.")
    path: str = Field(description="JSON Pointer into the request.", examples=["/training/epochs"])
    value: Any = Field(default=None, description="The new value; remove has none.")

    @model_serializer(mode="wrap")
    def _without_unused_value(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = serialize(self)
        if self.op == "remove":
            del document["value"]
        return document


class Issue(BaseModel):
    """A reason to refuse or to question a spec."""

    model_config = ConfigDict(frozen=True)

    code: str = Field(description="Stable code of the rule.", examples=["unknown_field"])
    severity: Literal["error", "warning"] = Field(description="Errors refuse the spec.")
    loc: list[str | int] = Field(
        description="Where in the spec.", examples=[["training", "epochs"]]
    )
    message: str = Field(description="What is wrong, in one sentence.")
    why: str = Field(default="", description="Why it matters, with the number behind it.")
    fix: list[PatchOp] = Field(default_factory=list, description="JSON Patch on the request.")
    overridable: bool = Field(default=False, description="Whether accept_risks may override it.")
    accepted: bool = Field(default=False, description="Whether accept_risks overrides it here.")
    waived_by: Literal["site", "parent"] | None = Field(
        default=None,
        description="Why it is only a warning: STOKER_GUARD=warn at this site, or the parent of a "
        "restart, which was accepted with it.",
    )


MORE = "more_issues"
"""The code of the last issue, where there are more than are told."""


def at_most(places: Sequence[T], make: Callable[[T], Issue]) -> list[Issue]:
    """The issue of each place; of very many places, of the first ones, and how many more there are.

    To make one may mean to look for what was probably meant, and nobody reads thousands.
    """
    issues = [make(place) for place in places[:MOST_ISSUES]]
    left_out = len(places) - len(issues)
    if left_out:
        issues.append(
            Issue(
                code=MORE,
                severity="error",
                loc=[],
                message=f"{left_out:,} more places are wrong.",
                why="Only the first ones are shown. Correct those, and ask again.",
            )
        )
    return issues


def pointer(loc: Sequence[str | int]) -> str:
    """The JSON Pointer (RFC 6901) of a location."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in loc)
