"""From a JSON document to a spec, or to issues that say where it is wrong and what was meant."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.spec.base import DISAGREEMENT
from app.spec.issue import Issue, PatchOp, at_most, pointer
from app.spec.names import suggest_field, suggest_value
from app.spec.run import RunSpec
from app.suggest import did_you_mean

JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
GROUPED = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3}){1,5}")
PLAINLY = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
# Names that pydantic puts into a location to say which member of a union it tried. Those of blocks
# with a kind are the kind itself.
UNION_TAGS = frozenset(
    {"InitFromCheckpoint", "InitFromRun", "int", "float", "bool"}
    | {"constrained-int", "constrained-float", "constrained-str"}
)
# Fields that say which kind a block is of.
KIND_NAMES = ("kind", "method")
# Schemas that are kept: of the two kinds of specs, and of registered commands.
KEPT_SCHEMAS = 32
Schema = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)


def parse_spec(
    document: dict[str, Any], request: dict[str, Any] | None = None
) -> tuple[RunSpec | None, list[Issue]]:
    """The spec of a recipe, see `parse`."""
    return parse(RunSpec, document, request)


def parse(
    model: type[Model], document: dict[str, Any], request: dict[str, Any] | None = None
) -> tuple[Model | None, list[Issue]]:
    """The spec, or None and an error for each thing that is wrong with the document.

    Fixes are patches on `request`, the layer of the document that can be changed; default all.
    """
    request = document if request is None else request
    text = json.dumps(document)
    # Which seldom are there, and then are found faster in the text than in the document.
    if any(mark in text for mark in ("NaN", "Infinity", '"": ')):
        unreadable = [(loc, _not_finite) for loc in _non_finite_numbers(document)]
        unreadable += [(loc, _nameless) for loc in _empty_names(document)]  # pydantic drops them
        if unreadable:
            return None, at_most(unreadable, lambda found: found[1](found[0]))
    try:
        return model.model_validate_json(text), []
    except ValidationError as error:
        by_place: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
        for details in error.errors(include_url=False):
            by_place.setdefault(tuple(_location(details, document)), []).append(details)
        places, schema = list(by_place.items()), _schema(model)
        return None, at_most(
            places, lambda place: _issue(list(place[0]), place[1], document, request, schema)
        )


def _issue(
    loc: list[str | int],
    same: list[ErrorDetails],
    document: dict[str, Any],
    request: dict[str, Any],
    schema: Schema,
) -> Issue:
    """One issue for one place, where each member of a union may have its own complaint."""
    if same[0]["type"] == "extra_forbidden":
        return _unknown_field(loc, request, schema)
    if same[0]["type"] == DISAGREEMENT:
        return _disagreement(loc, same[0], request)
    if same[0]["type"] == "missing":
        return Issue(
            code="missing_field",
            severity="error",
            loc=loc,
            message=f"{_dotted(loc)} is missing.",
            why=_what_it_is(loc, document, schema) or "It has no default.",
        )
    return _wrong_value(loc, same, document, schema)


def _disagreement(block: list[str | int], details: ErrorDetails, request: dict[str, Any]) -> Issue:
    """Fields of a block that cannot hold beside each other."""
    said, fix = details["ctx"], list[PatchOp]()
    for name, value in said["fix"].items():
        path, is_given = pointer([*block, name]), name in (value_at(request, block) or {})
        fix += [] if fix else _missing_parents(path, request)
        fix.append(PatchOp(op="replace" if is_given else "add", path=path, value=value))
    return Issue(
        code="wrong_value",
        severity="error",
        loc=[*block, said["field"]],
        message=f"{_dotted(block)}: {details['msg']}.",
        why=said["why"],
        fix=fix,
    )


def _unknown_field(loc: list[str | int], request: dict[str, Any], schema: Schema) -> Issue:
    parent, name = pointer(loc[:-1]), str(loc[-1])
    meant = suggest_field(parent, name, _fields_beside(parent, schema))
    above, _, last = (meant or "").rpartition("/")
    if meant is not None and last not in _fields_beside(above, schema):
        meant = None  # the other kind of spec has it
    if meant == pointer(loc):
        return _of_another_kind(loc, schema)
    fix = []
    hint = did_you_mean(meant and meant.strip("/").replace("/", "."))
    given = value_at(request, [*meant.strip("/").split("/")]) if meant is not None else None
    if meant is not None and given is not None:
        # Of two values nobody but the author knows which one is meant.
        fix = [PatchOp(op="remove", path=pointer(loc))] if given == value_at(request, loc) else []
        hint = f" It is {meant.strip('/').replace('/', '.')}, which is given too."
    elif meant is not None:
        value = value_at(request, loc)
        known = suggest_value(meant, value, []) if not isinstance(value, dict) else None
        fix = [
            PatchOp(op="remove", path=pointer(loc)),
            *_missing_parents(meant, request),
            PatchOp(op="add", path=meant, value=known if known is not None else value),
        ]
    return Issue(
        code="unknown_field",
        severity="error",
        loc=loc,
        message=f"There is no field {_dotted(loc)}.{hint}",
        why="An unknown field would be ignored, and the run would not do what it says.",
        fix=fix,
    )


def _of_another_kind(loc: list[str | int], schema: Schema) -> Issue:
    """Says which kinds of the block have the field."""
    nodes = _nodes_at([str(part) for part in loc[:-1]], schema)
    fields = [node["properties"] for node in nodes if loc[-1] in node.get("properties", {})]
    kinds = [
        f"{n} {one[n]['const']}" for one in fields for n in KIND_NAMES if "const" in one.get(n, {})
    ]
    return Issue(
        code="unknown_field",
        severity="error",
        loc=loc,
        message=f"There is no field {_dotted(loc)} in this kind of {loc[-2]}.",
        why=f"It belongs to {' and '.join(kinds) or 'another kind'}, and would be ignored here.",
        fix=[PatchOp(op="remove", path=pointer(loc))],
    )


def _wrong_value(
    loc: list[str | int], same: list[ErrorDetails], document: Any, schema: Schema
) -> Issue:
    value, choices = value_at(document, loc), [one for each in same for one in _choices(each)]
    meant: Any = _number_in(value, {details["type"] for details in same})
    if meant is not None:
        without = "commas" if "," in value else "quotes"
        said = f"it is text, and should be a number. Write it without {without}."
    elif (meant := _block_of(value, loc, schema)) is not None:
        said = f"it should be an object. Did you mean {json.dumps(meant)}?"
    else:
        meant = suggest_value(pointer(loc), value, choices) if choices else None
        said = f"{_complaints(same)}.{did_you_mean(meant)}"
    return Issue(
        code="wrong_value",
        severity="error",
        loc=loc,
        message=f"{_dotted(loc)} = {_shown(value)}: {said}",
        why=_what_it_is(loc, document, schema, meant) or "The run could not do what it says.",
        fix=[] if meant is None else [PatchOp(op="replace", path=pointer(loc), value=meant)],
    )


def _block_of(value: Any, loc: list[str | int], schema: Schema) -> dict[str, str] | None:
    """The block whose kind's name was given in its place; None where it names none."""
    if not isinstance(value, str):
        return None
    kinds = {
        field["const"]: name
        for node in _nodes_at([str(part) for part in loc], schema)
        for name, field in node.get("properties", {}).items()
        if name in KIND_NAMES and "const" in field
    }
    name = next(iter(kinds.values()), "kind")
    kind = suggest_value(pointer([*loc, name]), value, list(kinds))
    return {name: kind} if kind is not None and kind in kinds else None


def _number_in(value: Any, complaints: set[str]) -> int | float | None:
    """The number that a text is, where one of its kind is asked for; None for any other value."""
    if not isinstance(value, str):
        return None
    if GROUPED.fullmatch(value) and "int_type" in complaints:
        return int(value.replace(",", ""))
    if JSON_NUMBER.fullmatch(value) is None:
        return None
    if complaints.isdisjoint(("int_type", "float_type")) or not math.isfinite(float(value)):
        return None
    number: int | float = json.loads(value)
    return number if isinstance(number, int) or "float_type" in complaints else None


def _choices(details: ErrorDetails) -> list[str]:
    context = details.get("ctx", {})
    allowed = str(context.get("expected") or context.get("expected_tags") or "")
    return [part.strip(" '") for part in allowed.replace(" or ", ",").split(",") if part.strip()]


def _complaints(same: list[ErrorDetails]) -> str:
    """What is wrong with a value, as a person would say it; each thing once."""
    first, *others = dict.fromkeys(_complaint(details) for details in same)
    return " or ".join([first, *(said.removeprefix("it should be ") for said in others)])


def _complaint(details: ErrorDetails) -> str:
    if details["type"] == "union_tag_invalid":
        return f"it should be one of {', '.join(_choices(details))}"
    said = details["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    for formal, plain in PLAINLY.items():
        said = said.replace(formal, plain)
    return said[0].lower() + said[1:]


def _location(details: ErrorDetails, document: Any) -> list[str | int]:
    """The error's place in the document, without the union tags that pydantic mixes in."""
    place: list[str | int] = []
    is_kind_left_out = False
    *path, last = details["loc"] or ("",)
    for part in path:
        if not is_kind_left_out and _is_kind(part, document):
            is_kind_left_out = True
        elif not _is_tag(part, document):
            place.append(part)
            document = _child(document, part)
            is_kind_left_out = False
    is_name = is_kind_left_out or not _is_kind(last, document)
    if last != "" and (details["type"] == "missing" or (is_name and not _is_tag(last, document))):
        place.append(last)
    if details["type"] == "union_tag_invalid":
        place.append(str(details["ctx"]["discriminator"]).strip("'"))
    return place


def _is_kind(part: str | int, block: Any) -> bool:
    """True if it is the block's kind, which comes before a field even if both have one name."""
    return any(part == _child(block, name) for name in KIND_NAMES)


def _is_tag(part: str | int, document: Any) -> bool:
    if not isinstance(part, str) or (isinstance(document, dict) and part in document):
        return False
    return part in UNION_TAGS or part.startswith(("literal[", "tagged-union", "function-"))


def _child(document: Any, part: str | int) -> Any:
    if isinstance(document, dict):
        return document.get(part)
    if isinstance(document, list) and isinstance(part, int) and part < len(document):
        return document[part]
    return None


def value_at(document: Any, loc: Sequence[str | int]) -> Any:
    """What a document holds at a place; None where there is no such place."""
    for part in loc:
        document = _child(document, part)
    return document


@lru_cache(KEPT_SCHEMAS)
def _schema(model: type[BaseModel]) -> Schema:
    return model.model_json_schema()


def _fields_beside(parent: str, schema: Schema) -> list[str]:
    """Names of the fields that the block at `parent` may have, over all its kinds."""
    nodes = _nodes_at([*filter(None, parent.split("/"))], schema)
    return sorted({name for node in nodes for name in node.get("properties", {})})


def _what_it_is(loc: list[str | int], document: Any, schema: Schema, meant: Any = None) -> str:
    """The field's own description, with its unit and default; of an item, that of its list; of a
    kind, that of the one that is meant, else of each, or of its block where all say the same.
    """
    names = [str(part) for part in loc if isinstance(part, str)]
    nodes = [
        node
        for node in (_nodes_at(names[:-1], schema, document) if names else ())
        if "description" in node.get("properties", {}).get(names[-1], {})
    ]
    if not nodes:
        return ""
    fields = [node["properties"][names[-1]] for node in nodes]
    told = [" ".join(field["description"].split()) for field in fields]
    if len(fields) > 1 and all("const" in field for field in fields):
        if len(set(told)) == 1:
            whole = (" ".join(node.get("description", "").split()) for node in nodes)
            told = [text.partition(". ")[0] for text in whole]
        each = {field["const"]: text for field, text in zip(fields, told, strict=True)}
        named = [meant] if isinstance(meant, str) and meant in each else [*each]
        told = ["; ".join(f"{kind}, {each[kind].rstrip('.')}" for kind in named) + "."]
    return f"{'.'.join(names)}: {told[0]}"


def _nodes_at(names: list[str], schema: Schema, document: Any = None) -> list[dict[str, Any]]:
    """What the schema says of the block at this place, once for each of its kinds; of the kind
    alone that the document has there, if it is one of them.
    """
    nodes = [schema]
    for part in names:
        nodes = [
            found
            for node in nodes
            for found in _members(node.get("properties", {}).get(part, {}), schema.get("$defs", {}))
        ]
        document = _child(document, part)
        nodes = [node for node in nodes if _is_kind_of(node, document)] or nodes
    return nodes


def _is_kind_of(node: dict[str, Any], block: Any) -> bool:
    kinds = {name: field.get("const") for name, field in node.get("properties", {}).items()}
    return any(kinds.get(name) == _child(block, name) is not None for name in KIND_NAMES)


def _members(node: dict[str, Any], definitions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in node:
        yield definitions[node["$ref"].rsplit("/", 1)[1]]
    for option in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from _members(option, definitions)


def _missing_parents(target: str, document: dict[str, Any]) -> list[PatchOp]:
    """Operations that create the blocks on the way to `target` that the request lacks."""
    operations, node, path = [], document, ""
    for part in target.strip("/").split("/")[:-1]:
        path = f"{path}/{part}"
        child = _child(node, part)
        if child is None:
            operations.append(PatchOp(op="add", path=path, value={}))
        node = child or {}
    return operations


def _non_finite_numbers(node: Any, loc: tuple[str | int, ...] = ()) -> Iterator[list[str | int]]:
    if isinstance(node, float) and not math.isfinite(node):
        yield list(loc)
    items = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, value in items:
        yield from _non_finite_numbers(value, (*loc, key))


def _empty_names(node: Any, loc: tuple[str | int, ...] = ()) -> Iterator[list[str | int]]:
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "":
            yield [*loc, key]
        yield from _empty_names(value, (*loc, key))


def _nameless(loc: list[str | int]) -> Issue:
    where = f"in {_dotted(loc[:-1])}" if len(loc) > 1 else "in the spec"
    return Issue(
        code="unknown_field",
        severity="error",
        loc=loc,
        message=f"There is a field without a name {where}.",
        why="An unknown field would be ignored, and the run would not do what it says.",
        fix=[PatchOp(op="remove", path=pointer(loc))],
    )


def _not_finite(loc: list[str | int]) -> Issue:
    return Issue(
        code="not_finite",
        severity="error",
        loc=loc,
        message=f"{_dotted(loc)} is not a finite number.",
        why="NaN and infinity are not JSON, and no setting has a meaning with them. Give a number, "
        "or leave it out for the default.",
    )


def _dotted(loc: list[str | int]) -> str:
    return ".".join(str(part) for part in loc) or "the spec"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
