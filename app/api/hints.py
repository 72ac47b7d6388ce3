"""What is wrong with parameters and bodies, place by place, and what was probably meant."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.api.operations import Operation
from app.spec.issue import Issue, at_most
from app.suggest import closest, did_you_mean

# Parts that pydantic puts into a location to say which member of a union it tried.
UNION_TAG = re.compile(r"literal\['.*|constrained-int")
MOST_SHOWN = 60  # characters of a value
NONE_TAKEN = {
    "parameter": "This call takes no parameters.",
    "field": "No field can be given here.",
}


def complaints(errors: Sequence[Mapping[str, Any]], operation: Operation | None) -> list[Issue]:
    """An issue for each place, of pydantic's errors; `operation`: what the call takes, if known."""
    by_place: dict[tuple[str | int, ...], list[Mapping[str, Any]]] = {}
    for error in errors:
        *place, last = error["loc"]
        if error["type"] == "extra_forbidden" or not UNION_TAG.fullmatch(str(last)):
            place.append(last)
        by_place.setdefault(tuple(place), []).append(error)
    return at_most(
        list(by_place.items()), lambda place: _complaint(list(place[0]), place[1], operation)
    )


def _complaint(
    loc: list[str | int], same: list[Mapping[str, Any]], operation: Operation | None
) -> Issue:
    """The issue of one place, where each member of a union may have its own error."""
    if same[0]["type"] == "extra_forbidden":
        known = set() if operation is None else operation.fields_at(loc[1:-1])
        return unknown_name("field", loc, known)
    where = ".".join(str(part) for part in loc)
    if same[0]["type"] == "missing":
        message = f"{where} is missing."
        return Issue(code="missing_field", severity="error", loc=loc, message=message)
    value = same[0]["input"]
    choices = [choice for error in same for choice in _choices(error)]
    meant = closest(str(value), choices)
    return Issue(
        code="wrong_value",
        severity="error",
        loc=loc,
        message=f"{where} = {_shown(value)}: {' or '.join(map(_said, same))}."
        + (_one_each(loc, value, choices) or did_you_mean(meant)),
    )


def _one_each(loc: list[str | int], value: Any, choices: Sequence[str]) -> str:
    """How several values of a parameter are given that came with commas; empty if none did."""
    values = list(dict.fromkeys(value.split(","))) if isinstance(value, str) else []
    if len(values) < 2 or loc[0] != "query" or not isinstance(loc[-1], int):
        return ""
    if not all(one in choices for one in values):
        return ""
    query = "&".join(f"{loc[1]}={one}" for one in values)
    return f" For several, repeat the parameter: {query}."


def _said(error: Mapping[str, Any]) -> str:
    choices = _choices(error)
    if choices:
        return f"it must be one of {', '.join(choices)}"
    if error["type"] in ("bool_parsing", "bool_type"):
        return "it must be true or false"
    said = str(error["msg"]).removeprefix("Value error, ").rstrip(".")
    return re.sub(r"^(\w+) should", "it must", said)


def _choices(error: Mapping[str, Any]) -> list[str]:
    """The values of a Literal, which pydantic has as text only."""
    if error["type"] != "literal_error":
        return []
    return re.findall(r"'([^']*)'", error["ctx"]["expected"])


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def unknown_name(kind: str, loc: list[str | int], known: Iterable[str]) -> Issue:
    """The issue of a name that nothing would heed; `kind` is the word for it: parameter, field."""
    name = str(loc[-1])
    names = sorted(known)
    hint = did_you_mean(closest(name, names))
    if not hint:
        hint = f" There are {', '.join(names)}." if names else f" {NONE_TAKEN[kind]}"
    return Issue(
        code="unknown_field",
        severity="error",
        loc=loc,
        message=f"There is no {kind} {name[:80]}.{hint}",
        why="It would be ignored, and the request would not do what it says.",
    )
