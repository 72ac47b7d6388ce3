"""Patches of a request (RFC 7396 merge patches, RFC 6902 operations), and of a spec."""

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import jsonpatch
import jsonpointer

from app.errors import InvalidRequest
from app.spec.data import ChunkedLoader
from app.spec.layers import Document, merge_patch
from app.spec.run import RunSpec

# A spec has about a hundred values, six blocks deep; operations that copy could double a document
# and its depth without end.
MAX_VALUES, MAX_DEPTH = 10_000, 32


def apply_merge_patch(request: Document, patch: Document) -> Document:
    """The request with the patch on top; null takes a value back to its default."""
    return merge_patch(request, patch)


def apply_json_patch(request: Document, operations: list[dict[str, Any]]) -> Document:
    """The request after the operations; InvalidRequest names the one that does not apply."""
    patched: Any = deepcopy(request)
    for position, operation in enumerate(deepcopy(operations)):
        try:
            patched = jsonpatch.apply_patch(patched, [operation], in_place=True)
        except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError) as error:
            raise InvalidRequest(
                f"Operation {position} of the patch does not apply: {_said(error)}. "
                "Paths are JSON Pointers into the run's request, see GET /runs/{id}/spec."
            ) from None
        if not _is_bounded(patched):
            raise InvalidRequest(
                f"Operation {position} of the patch makes a request of over {MAX_VALUES:,} values, "
                f"or nested deeper than {MAX_DEPTH} levels. Copy smaller parts of it."
            )
    if not isinstance(patched, dict):
        raise InvalidRequest(
            "The patch would leave something that is no run spec. What replaces the whole request, "
            'at the path "", has to be an object with at least recipe and data.'
        )
    return patched


def _is_bounded(document: Any) -> bool:
    """Whether no copy has made it too large or too deep; looks at no more than it may hold."""
    left, stack = MAX_VALUES, [(document, 0)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, dict | list) and value:
            left -= len(value)
            if left < 0 or depth >= MAX_DEPTH:
                return False
            inner = value.values() if isinstance(value, dict) else value
            stack += [(member, depth + 1) for member in inner]
    return True


def _said(error: Exception) -> str:
    """The library's sentence without the names of Python's types."""
    return re.sub(r" \(<class '\w+'>\)", "", str(error))[:200]


def with_values(spec: RunSpec, values: Mapping[str, Any]) -> RunSpec:
    """The spec with other values, by JSON Pointer of two or three names; they are not checked. One
    that is an object is the chunked loader.
    """
    changed = spec
    for pointer, value in values.items():
        if isinstance(value, dict):
            value = ChunkedLoader(**value)
        block, *rest = pointer.strip("/").split("/")
        part = getattr(changed, block)
        if len(rest) == 2:
            inner = getattr(part, rest[0]).model_copy(update={rest[1]: value})
            part = part.model_copy(update={rest[0]: inner})
        else:
            part = part.model_copy(update={rest[0]: value})
        changed = changed.model_copy(update={block: part})
    return changed
