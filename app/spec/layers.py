"""Specs as dictionaries: joining layers, merge patches, and the source of every value."""

from collections.abc import Iterator, Mapping
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


def _replaces(base: Any, over: Any, pointer: str) -> bool:
    """Whether `over` names another kind of block than `base`, whose fields then mean nothing."""
    key, default = DEFAULT_KINDS.get(pointer, ("kind", None))
    return key in over and over[key] != base.get(key, default)


def overlay(base: Mapping[str, Any], over: Mapping[str, Any], pointer: str = "") -> Document:
    """`base` with the values of `over` on top; a changed kind replaces its whole block."""
    joined = dict(base)
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
    patched = dict(target)
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


def leaves(document: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """(JSON Pointer, value) of every value that is not itself a non-empty object."""
    if isinstance(document, dict) and document:
        for key, value in document.items():
            escaped = str(key).replace("~", "~0").replace("/", "~1")
            yield from leaves(value, f"{pointer}/{escaped}")
    else:
        yield pointer, document


def provenance(resolved: Document, sources: list[tuple[str, Document]]) -> Document:
    """For each leaf of `resolved`, its value and the last of `sources` that said it, or default."""
    said = [(name, dict(leaves(layer))) for name, layer in reversed(sources)]
    return {
        pointer: {
            "value": value,
            "source": next((name for name, layer in said if pointer in layer), "default"),
        }
        for pointer, value in leaves(resolved)
    }
