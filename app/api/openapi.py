"""The OpenAPI document: FastAPI's own, completed with every problem that can be answered."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from app.api.problems import (
    MEDIA_TYPE,
    MethodNotAllowed,
    Problem,
    RangeNotSatisfiable,
    UnsupportedMediaType,
)
from app.errors import (
    ActionNotAllowed,
    Conflict,
    DatasetNotReady,
    Forbidden,
    InvalidRequest,
    NotAvailableYet,
    NotFound,
    PayloadTooLarge,
    PreconditionFailed,
    SpecRejected,
    StokerError,
    Unauthorized,
    Unavailable,
)
from app.spec.run import RunSpec
from app.spec.script import ScriptSpec

Responses = dict[int | str, dict[str, Any]]

# Of POST /runs, whose body is read by hand.
EXAMPLE_SPEC: dict[str, Any] = {
    "name": "weather-lstm",
    "recipe": {"kind": "sequence", "encoder": "lstm", "hidden_size": 64, "patch": 6},
    "data": {"dataset": "weather"},
    "training": {"epochs": 5, "batch_size": 128},
    "optimizer": {"kind": "adamw", "lr": 0.003},
}

EXAMPLE_YAML = """\
name: weather-lstm
recipe: {kind: sequence, encoder: lstm, hidden_size: 64, patch: 6}
data: {dataset: weather}
training: {epochs: 5, batch_size: 128}
optimizer: {kind: adamw, lr: 3e-3}
"""

_SPEC = {
    "anyOf": [
        {"$ref": "#/components/schemas/RunSpec"},
        {"$ref": "#/components/schemas/ScriptSpec"},
    ]
}

RUN_BODY: dict[str, Any] = {
    "required": True,
    "description": "A run spec; what is left out comes from the preset, then from the defaults.",
    "content": {
        "application/json": {"schema": _SPEC, "example": EXAMPLE_SPEC},
        "application/yaml": {"schema": _SPEC, "example": EXAMPLE_YAML},
    },
}


DESCRIPTION = """A training service for GPU boxes: `POST /runs` takes a validated run spec, a worker
trains it, and stop, pause, resume and restart are one call each.

Every error is a problem document (RFC 9457). Times are RFC 3339 in UTC, sizes bytes, durations
seconds, ratios 0 to 1."""

EXAMPLES: dict[type[StokerError], str] = {
    InvalidRequest: "The request is not valid: query.limit: Input should be greater than 0.",
    SpecRejected: "There is no field training.max_epochs. Did you mean training.epochs?",
    Unauthorized: "Send the header `Authorization: Bearer TOKEN`.",
    Forbidden: "The service does not answer to the Host 'example.org'.",
    NotAvailableYet: "A diagnosis is not made by this version; leave patch_from out.",
    NotFound: "There is no run 7.",
    Conflict: "Run 7 is needed by run 8, which restarts from its checkpoint.",
    ActionNotAllowed: "Run 7 has succeeded and cannot be stopped; restart it instead.",
    DatasetNotReady: "The dataset 'weather' is still being inspected.",
    PreconditionFailed: "Run 7 is at version 4, not 3: it changed meanwhile.",
    PayloadTooLarge: "The body is larger than 1 MiB; no request needs that much.",
    UnsupportedMediaType: "The body's Content-Type is text/plain; send application/json.",
    RangeNotSatisfiable: "The file has 7000 bytes and no such range; ask for one within them.",
    MethodNotAllowed: "/runs does not take PUT; see the Allow header.",
    Unavailable: "The database does not answer; try again in a moment.",
    StokerError: "The service made a mistake while answering.",
}

COMMON = (InvalidRequest, Forbidden, PayloadTooLarge, StokerError, Unavailable)
"""What any call can answer."""
BODY = (UnsupportedMediaType,)
"""What a call that reads a body can answer as well."""

RUN_REFERENCE = {"$ref": "#/components/schemas/Run"}
ETAG = {
    "description": "The run's version, for If-Match.",
    "schema": {"type": "string"},
    "example": '"3"',
}


def problems(*kinds: type[StokerError]) -> Responses:
    """The `responses` of an endpoint that can answer these problems."""
    by_status: dict[int, list[type[StokerError]]] = {}
    for kind in kinds:
        by_status.setdefault(kind.status, []).append(kind)
    return {status: _response(same) for status, same in by_status.items()}


def _response(kinds: list[type[StokerError]]) -> dict[str, Any]:
    return {
        "description": "; or: ".join(kind.title for kind in kinds),
        "content": {
            MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {kind.code: {"value": _example(kind)} for kind in kinds},
            }
        },
    }


def _example(kind: type[StokerError]) -> dict[str, Any]:
    example: dict[str, Any] = {
        "type": f"urn:stoker:problem:{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": EXAMPLES[kind],
        "code": kind.code,
    }
    if kind is ActionNotAllowed:
        example["allowed_actions"] = ["restart", "delete"]
    if kind is SpecRejected:
        issue = {"code": "unknown_field", "severity": "error", "loc": ["training", "max_epochs"]}
        example["issues"] = [{**issue, "message": EXAMPLES[kind]}]
    return example


def described(app: FastAPI) -> dict[str, Any]:
    """The app's document, with the schemas that it only refers to and the ETag of each run.

    As FastAPI's "Extending OpenAPI" has it: made once, and kept on the app.
    """
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = document["components"]["schemas"]
        schemas.update(_schemas_of(Problem))
        specs = _schemas_of(RunSpec) | _schemas_of(ScriptSpec)
        for schema in specs.values():
            _move_defaults(schema)
        schemas.update(specs)
        for path in document["paths"].values():
            for operation in path.values():
                _tell_etag(operation["responses"])
        app.openapi_schema = document
    return app.openapi_schema


def _schemas_of(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a model and those that it refers to, by name."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), model.__name__: schema}


def _move_defaults(schema: dict[str, Any]) -> None:
    """Make the defaults of a spec's fields examples, except for a field with one value.

    A generated client would send each default, and so override the preset. Where it is an object,
    generators leave out the model and every call that uses it.
    """
    for inner in schema.get("properties", {}).values():
        if "default" in inner and "const" not in inner:
            inner["examples"] = [inner.pop("default")]


def _tell_etag(responses: dict[str, Any]) -> None:
    for response in responses.values():
        shown = response.get("content", {}).get("application/json", {}).get("schema")
        if shown == RUN_REFERENCE:
            response["headers"] = {"ETag": ETAG}
