"""From the values that mend a spec to the smallest JSON Patch on the request that brings them."""

from collections.abc import Mapping
from typing import Any

import jsonpatch
from jsonpointer import JsonPointer

from app.spec.issue import PatchOp, pointer
from app.spec.layers import Document


def patch_for(request: Document, values: Mapping[str, Any]) -> list[PatchOp]:
    """Operations after which the request has each value (by JSON Pointer into the spec).

    Blocks on the way that the request lacks are added with the value in them, and a value that
    stands there already needs no operation.
    """
    operations: list[PatchOp] = []
    patched: Any = request
    for path, value in values.items():
        operation = _operation(patched, path, value)
        if operation is not None:
            operations.append(operation)
            patched = jsonpatch.apply_patch(patched, [operation.model_dump(mode="json")])
    return operations


def _operation(request: Document, path: str, value: Any) -> PatchOp | None:
    node: Any = request
    parts = JsonPointer(path).parts
    for depth, part in enumerate(parts):
        below = _child(node, part)
        is_last = depth == len(parts) - 1
        if is_last and below is not _NOTHING:
            return None if below == value else PatchOp(op="replace", path=path, value=value)
        if below is _NOTHING or not isinstance(below, dict | list):
            for missing in reversed(parts[depth + 1 :]):
                value = {missing: value}
            op = "add" if below is _NOTHING else "replace"
            return PatchOp(op=op, path=pointer(parts[: depth + 1]), value=value)
        node = below
    raise AssertionError("a pointer has at least one part")


class _Nothing:
    """Stands for a value that is not there, where None may be one."""


_NOTHING = _Nothing()


def _child(node: Any, part: str) -> Any:
    if isinstance(node, dict):
        return node.get(part, _NOTHING)
    if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
        return node[int(part)]
    return _NOTHING
