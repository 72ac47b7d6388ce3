"""Bodies as documents: which media types are read, and large ones beside the event loop."""

from typing import Any

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from app.errors import InvalidRequest
from app.spec import reading

SMALL_JSON_BYTES = 8 << 10  # read in less time than it takes to hand it to a thread and back
YAML_TYPE = "application/yaml"
YAML_TYPES = (YAML_TYPE, "application/x-yaml", "text/yaml")


async def read_document(request: Request) -> Any:
    """The body as a JSON value, by its media type: JSON, which is read already, or YAML."""
    if is_yaml(media_type(request)):
        return await run_in_threadpool(reading.read_yaml, await request.body())
    if not await request.body():
        raise InvalidRequest("The body is missing: send a run spec as JSON or YAML.")
    return await request.json()


async def read_json(body: bytes) -> Any:
    """The JSON value of a body; a large one in a thread, so that it holds up nobody else."""
    if len(body) <= SMALL_JSON_BYTES:
        return reading.read_json(body)
    return await run_in_threadpool(reading.read_json, body)


def media_type(request: Request) -> str:
    """The body's media type, lower case and without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def is_yaml(kind: str) -> bool:
    return kind in YAML_TYPES
