"""One finding of the guard or of validation: what, where, why, and the patch that mends it."""

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)


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
    other_fix: list[PatchOp] = Field(
        default_factory=list,
        description="Another way to mend it: a JSON Patch on the request, or, where its path is "
        "`/from`, on the body of the restart.",
    )
    overridable: bool = Field(default=False, description="Whether accept_risks may override it.")
    accepted: bool = Field(default=False, description="Whether accept_risks overrides it here.")
    waived_by: Literal["site", "parent"] | None = Field(
        default=None,
        description="Why it is only a warning: STOKER_GUARD=warn at this site, or the parent of a "
        "restart, which was accepted with it.",
    )
