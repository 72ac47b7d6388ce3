"""What the OpenAPI document says of an operation: FastAPI's word for what an endpoint takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request

Document = dict[str, Any]
NOTHING: Document = {}


@dataclass(frozen=True)
class Operation:
    """One call of the API, as the document describes it."""

    path: str
    """With the names of its parts in place of them: /runs/{run_id}."""
    parameters: Mapping[str, bool]
    """Names in the query, and whether each may come several times."""
    media_types: frozenset[str]
    """Of its body; empty: it takes none."""
    body: Document
    """The JSON schema of its body."""
    components: Document
    """The schemas that it refers to, by name."""

    def fields_at(self, place: Iterable[str | int]) -> set[str]:
        """Names that the object at this place of the body may have; empty: there is none."""
        nodes = self._options(self.body)
        for part in place:
            inner = [
                node.get("items", NOTHING)
                if isinstance(part, int)
                else node.get("properties", NOTHING).get(part, NOTHING)
                for node in nodes
            ]
            nodes = [option for node in inner for option in self._options(node)]
        return {name for node in nodes for name in node.get("properties", ())}

    def _options(self, node: Document) -> list[Document]:
        """The node itself, or the members of its union, with references followed."""
        if "$ref" in node:
            return self._options(self.components[node["$ref"].rsplit("/", 1)[1]])
        if "anyOf" in node:
            return [option for member in node["anyOf"] for option in self._options(member)]
        return [node]


def note_operation(request: Request, operation_id: str | None) -> None:
    """Keep which call it is with the request, for all who see it until it is answered."""
    app: FastAPI = request.app
    known: dict[str, Operation] | None = getattr(app.state, "operations", None)
    if known is None:
        known = app.state.operations = _operations(app.openapi())
    request.state.operation = known.get(operation_id or "")


def operation_of(request: Request) -> Operation | None:
    """What its route has noted; None: it has no route, or the document leaves that out."""
    return getattr(request.state, "operation", None)


def _operations(document: Document) -> dict[str, Operation]:
    components = document.get("components", NOTHING).get("schemas", NOTHING)
    return {
        operation["operationId"]: _operation(path, operation, components)
        for path, methods in document["paths"].items()
        for operation in methods.values()
    }


def _operation(path: str, operation: Document, components: Document) -> Operation:
    content = operation.get("requestBody", NOTHING).get("content", NOTHING)
    return Operation(
        path=path,
        parameters={
            parameter["name"]: _is_list(parameter["schema"])
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query"
        },
        media_types=frozenset(content),
        body=content.get("application/json", NOTHING).get("schema", NOTHING),
        components=components,
    )


def _is_list(schema: Document) -> bool:
    return any(one.get("type") == "array" for one in (schema, *schema.get("anyOf", ())))


def names_beside(document: Document, method: str, path: str) -> list[str]:
    """The words that may end a path in place of its last one, for this method. Empty: it
    has one word alone, or no call begins so.
    """
    *before, _ = path.split("/")
    if before == [""]:
        return []
    names = set()
    for template, methods in document["paths"].items():
        operation = methods.get("get" if method == "HEAD" else method.lower())
        *places, last = template.split("/")
        if operation is None or len(places) != len(before):
            continue
        schemas = {one["name"]: one["schema"] for one in operation.get("parameters", ())}
        if all(_may_be(*pair, schemas) for pair in zip(places, before, strict=True)):
            names.update(_words_of(last, schemas))
    return sorted(names)


def _may_be(place: str, part: str, schemas: Mapping[str, Document]) -> bool:
    """True if a part of a path fits that place of a template."""
    schema = schemas.get(place.strip("{}"), NOTHING) if place.startswith("{") else None
    if schema is None:
        return place == part
    return schema.get("type") != "integer" or part.isdecimal()


def _words_of(last: str, schemas: Mapping[str, Document]) -> list[str]:
    """The words that the last place of a template can be; none where it takes any."""
    if not last.startswith("{"):
        return [last] if last else []
    words: list[str] = schemas.get(last.strip("{}"), NOTHING).get("enum", [])
    return words
