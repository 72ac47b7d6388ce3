"""Stored specs: this version of Stoker reads what any earlier version wrote, with its meaning."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from app.spec.installed import RECIPES
from app.spec.layers import Document
from app.spec.run import RunSpec
from app.spec.script import ScriptSpec

AnySpec = RunSpec | ScriptSpec


def completed(document: Mapping[str, Any]) -> Document:
    """Returns the stored spec with every field that its version did not have yet.

    A stored spec is complete, so an absent field was written by an earlier version. The field gets
    the value that names what that version did, which may differ from today's default.
    """
    spec = deepcopy(dict(document))
    for pointer, value in _earlier_values(document):
        *blocks, name = pointer.strip("/").split("/")
        block: Any = spec
        for part in blocks:
            block = block.get(part)
            if not isinstance(block, dict):
                break
        else:
            block.setdefault(name, value)
    return spec


def _earlier_values(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields pointer and value of each field whose absence has a meaning in this spec."""
    split = spec.get("data", {}).get("split", {}).get("method")
    if split == "chronological":
        yield "/data/split/gap", 0
    if split == "random":
        yield "/data/split/seed", spec.get("training", {}).get("seed", 0)
    if spec.get("data", {}).get("loader", {}).get("kind") == "chunked":
        yield "/data/loader/shuffle_block", "auto"  # see app.planning.shuffle.stored_shuffle
    yield "/optimizer/decay", "all"
    if spec.get("averaging", {}).get("kind") == "ema":
        yield "/averaging/ramp", False
    recipe = RECIPES.get(spec.get("recipe", {}).get("kind", ""))
    if recipe is not None:
        for name, value in recipe.earlier.items():
            yield f"/recipe/{name}", value


def read_stored(document: Mapping[str, Any]) -> RunSpec:
    """Returns the spec of an accepted run, completed; ValueError when it is none.

    Ignores unknown fields: a newer Stoker of the same spec version wrote them, and they do not
    change what is trained. In a request they are errors.
    """
    return RunSpec.model_validate_json(json.dumps(completed(document)), extra="ignore")


def read_stored_script(document: Mapping[str, Any]) -> ScriptSpec:
    """Returns the spec of an accepted script; ignores unknown fields as `read_stored` does."""
    return ScriptSpec.model_validate_json(json.dumps(document), extra="ignore")
