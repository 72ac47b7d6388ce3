"""From the values that mend a spec to the smallest JSON Patch on the request that brings them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import jsonpatch
from jsonpointer import JsonPointer, resolve_pointer

from app.guard.patching import apply_json_patch
from app.spec.installed import ANY_RECIPE
from app.spec.issue import PatchOp, pointer
from app.spec.layers import DEFAULT_KINDS, RIVALS, Document, overlay, with_default_kinds
from app.spec.parse import parse_spec


def patch_for(request: Document, values: Mapping[str, Any]) -> list[PatchOp]:
    """Operations after which the request has each value (by JSON Pointer into the spec).

    Blocks on the way that the request lacks are added with the value in them, and a value that
    stands there already needs no operation.
    """
    operations: list[PatchOp] = []
    patched: Any = request
    for number, (path, value) in enumerate(values.items(), start=1):
        operation = _operation(patched, path, value)
        if operation is None:
            continue
        operations.append(operation)
        if number < len(values):  # the next may belong into a block that this one opens
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


def keeping_preset(
    fix: Sequence[PatchOp], request: Document, layer: Mapping[str, Any]
) -> list[PatchOp]:
    """The operations, with what keeps the preset's words in each block that they turn over.

    A request that opens a block without its kind, or says another, replaces what the preset
    (`layer`) says in it; a fix is to change only what it names.
    """
    kept = list(fix)
    blocks = [block for block in DEFAULT_KINDS if any(_may_turn(op, block) for op in fix)]
    if not blocks:
        return kept
    beneath = with_default_kinds(layer)
    patched = apply_json_patch(request, [op.model_dump(mode="json") for op in fix])
    before, after = (overlay(beneath, with_default_kinds(one)) for one in (request, patched))
    for block in blocks:
        key, _ = DEFAULT_KINDS[block]
        said, was, now = (resolve_pointer(one, block, None) for one in (beneath, before, after))
        if not (isinstance(said, dict) and isinstance(was, dict) and isinstance(now, dict)):
            continue
        if was[key] != said[key] or now[key] == said[key]:
            continue
        written = resolve_pointer(patched, block)
        values = {key: said[key]} if key not in written else dict(_kept(block, said, now, written))
        kept = _with_values(kept, block, values)
    return kept


def _may_turn(operation: PatchOp, block: str) -> bool:
    """Whether it writes the block, what the block is in, or the block's kind."""
    key, _ = DEFAULT_KINDS[block]
    return f"{block}/".startswith(f"{operation.path}/") or operation.path == f"{block}/{key}"


def _kept(
    block: str, said: Document, now: Document, written: Document
) -> Iterator[tuple[str, Any]]:
    """What the preset says of a block and its new kind has too."""
    key, _ = DEFAULT_KINDS[block]
    pair = RIVALS.get(block, ())
    is_settled = any(written.get(name) is not None for name in pair)
    for name, value in said.items():
        is_rival = is_settled and name in pair
        if name in _fields(block, now[key]) and name not in written and not is_rival:
            yield name, value


@cache
def _fields(block: str, kind: str) -> frozenset[str]:
    """Names that a block of this kind has; none where it needs more than its kind."""
    bare: Document = {"recipe": {"kind": ANY_RECIPE}, "data": {"dataset": "any"}}
    *parents, last = JsonPointer(block).parts
    resolve_pointer(bare, pointer(parents))[last] = {DEFAULT_KINDS[block][0]: kind}
    spec, _ = parse_spec(bare)
    return frozenset(resolve_pointer(spec.model_dump(), block)) if spec else frozenset()


def _with_values(fix: list[PatchOp], block: str, values: Document) -> list[PatchOp]:
    """The operations and these values: within the one that opens the block, where there is one."""
    opening = [op for op in fix if op.path == block and isinstance(op.value, dict)]
    if not opening:
        added = [PatchOp(op="add", path=f"{block}/{name}", value=values[name]) for name in values]
        return [*fix, *added]
    opened = opening[-1].model_copy(update={"value": {**values, **opening[-1].value}})
    return [opened if op is opening[-1] else op for op in fix]
