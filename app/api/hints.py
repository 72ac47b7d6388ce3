"""What was probably meant: names that are not known, beside those that are."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from app.spec.issue import Issue


def unknown_name(kind: str, loc: list[str | int], known: Iterable[str]) -> Issue:
    """The issue of a name that nothing would heed; `kind` is the word for it: parameter, field."""
    name = str(loc[-1])
    names = sorted(known)
    plain = name.lower().replace("-", "_")
    close = get_close_matches(plain, names, n=1, cutoff=0.7)
    if close:
        hint = f"Did you mean {close[0]}?"
    elif names:
        hint = f"There are {', '.join(names)}."
    else:
        hint = "There is none here."
    return Issue(
        code="unknown_field",
        severity="error",
        loc=loc,
        message=f"There is no {kind} {name[:80]}. {hint}",
        why="It would be ignored, and the request would not do what it says.",
    )


def fields_at(model: Any, place: Iterable[str | int]) -> set[str]:
    """Names that the object at this place of a body may have; empty when there is no such place."""
    schema = _schema(model)
    nodes = _options(schema, schema)
    for part in place:
        nodes = [
            option
            for node in nodes
            for option in _options(
                node.get("items", {})
                if isinstance(part, int)
                else node.get("properties", {}).get(part, {}),
                schema,
            )
        ]
    return {name for node in nodes for name in node.get("properties", {})}


def _options(node: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The node itself, or the members of its union, with references followed."""
    if "$ref" in node:
        return _options(schema["$defs"][node["$ref"].rsplit("/", 1)[1]], schema)
    if "anyOf" in node:
        return [option for member in node["anyOf"] for option in _options(member, schema)]
    return [node]


@cache
def _schema(model: Any) -> dict[str, Any]:
    return TypeAdapter(model).json_schema()
