"""Specs as dictionaries: joining layers, merge patches, and the source of every value."""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]

# Blocks whose shape depends on a discriminator, and what it is when nobody says.
DEFAULT_KINDS: dict[str, tuple[str, str]] = {
    "/data/split": ("method", "chronological"),
    "/data/loader": ("kind", "chunked"),
    "/optimizer": ("kind", "adamw"),
    "/schedule": ("kind", "onecycle"),
    "/averaging": ("kind", "none"),
}
# The block whose kind every request names; a layer below may leave it open.
RECIPE = "/recipe"
# Fields of a block that say the same thing in two ways: the one that is said last counts.
RIVALS: dict[str, tuple[str, str]] = {"/schedule": ("warmup_fraction", "warmup_steps")}


def _replaces(base: Any, over: Any, pointer: str) -> bool:
    """Whether `over` names another kind of block than `base`, whose fields then mean nothing."""
    if pointer == RECIPE:
        return "kind" in base and "kind" in over and over["kind"] != base["kind"]
    if pointer not in DEFAULT_KINDS:
        return False  # a label may be called kind
    key, default = DEFAULT_KINDS[pointer]
    return key in over and over[key] != base.get(key, default)


def _without_rivals(base: Mapping[str, Any], over: Mapping[str, Any], pointer: str) -> Document:
    """`base` without the fields that `over` says in another way."""
    pair = RIVALS.get(pointer, ())
    spoken = [name for name in pair if over.get(name) is not None]
    gone = [name for name in pair if spoken and name not in spoken]
    return {name: value for name, value in base.items() if name not in gone}


def overlay(base: Mapping[str, Any], over: Mapping[str, Any], pointer: str = "") -> Document:
    """`base` with the values of `over` on top; a changed kind replaces its whole block."""
    joined = _without_rivals(base, over, pointer)
    for key, value in over.items():
        below, here = joined.get(key), f"{pointer}/{key}"
        if (
            isinstance(value, dict)
            and isinstance(below, dict)
            and not _replaces(below, value, here)
        ):
            value = overlay(below, value, here)
        joined[key] = value
    return joined


def merge_patch(target: Mapping[str, Any], patch: Mapping[str, Any], pointer: str = "") -> Document:
    """RFC 7396: null takes a value back to its default; a changed kind replaces its block."""
    patched = _without_rivals(target, patch, pointer)
    for key, value in patch.items():
        below, here = patched.get(key), f"{pointer}/{key}"
        if value is None:
            patched.pop(key, None)
        elif isinstance(value, dict):
            keep = isinstance(below, dict) and not _replaces(below, value, here)
            patched[key] = merge_patch(below if keep and below else {}, value, here)
        else:
            patched[key] = value
    return patched


def with_default_kinds(document: Mapping[str, Any]) -> Document:
    """The document with the discriminator of each given block filled in where it is missing."""
    filled = dict(document)
    for pointer, (key, default) in DEFAULT_KINDS.items():
        *parents, last = pointer.strip("/").split("/")
        if not parents:
            block = filled.get(last)
            if isinstance(block, dict) and key not in block:
                filled[last] = {key: default, **block}
            continue
        parent = filled.get(parents[0])
        if isinstance(parent, dict) and isinstance(parent.get(last), dict):
            filled[parents[0]] = {**parent, last: {key: default, **parent[last]}}
    return filled


def leaves(document: Any, pointer: str = "") -> list[tuple[str, Any]]:
    """(JSON Pointer, value) of every value that is not itself a non-empty object."""
    if not isinstance(document, dict) or not document:
        return [(pointer, document)]
    found: list[tuple[str, Any]] = []
    _collect(document, pointer, found)
    return found


def _collect(document: Document, pointer: str, found: list[tuple[str, Any]]) -> None:
    # Into one list and with no call a value: it is done several hundred times a plan.
    for key, value in document.items():
        if "~" in key or "/" in key:
            key = key.replace("~", "~0").replace("/", "~1")
        if isinstance(value, dict) and value:
            _collect(value, f"{pointer}/{key}", found)
        else:
            found.append((f"{pointer}/{key}", value))


def provenance(resolved: Document, sources: list[tuple[str, Document]]) -> Document:
    """For each leaf of `resolved`, its value and the last of `sources` that said it, or default.

    What a source said in a block that a later one has replaced is not its word any more.
    """
    joined: Document = {}
    origin: dict[str, str] = {}
    for name, layer in sources:
        before = joined
        joined = overlay(joined, with_default_kinds(layer))
        if origin:
            origin = _still_said(origin, before, joined)
        origin |= {pointer: name for pointer, value in leaves(layer) if value != {}}
    return {
        pointer: {"value": value, "source": origin.get(pointer, "default")}
        for pointer, value in leaves(resolved)
    }


def _still_said(origin: dict[str, str], before: Document, joined: Document) -> dict[str, str]:
    """Of the sources by pointer, those whose value is the same now as before."""
    was = dict(leaves(before))
    kept = {pointer for pointer, value in leaves(joined) if was.get(pointer) == value}
    return {pointer: source for pointer, source in origin.items() if pointer in kept}
