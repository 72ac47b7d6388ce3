"""Patches of a request: RFC 7396 merge patches and RFC 6902 operations."""

import re
from copy import deepcopy
from typing import Any

import jsonpatch
import jsonpointer

from app.errors import InvalidRequest
from app.spec.layers import Document, leaves, merge_patch

# A spec has about a hundred values; operations that copy could double a document without end.
MAX_VALUES = 10_000


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
        if len(leaves(patched)) > MAX_VALUES:
            raise InvalidRequest(
                f"Operation {position} of the patch makes a request of over {MAX_VALUES:,} values."
            )
    if not isinstance(patched, dict):
        raise InvalidRequest("The patch would leave something that is not a run spec.")
    return patched


def _said(error: Exception) -> str:
    """The library's sentence without the names of Python's types."""
    return re.sub(r" \(<class '\w+'>\)", "", str(error))[:200]
