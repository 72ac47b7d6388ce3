"""Values that a restart takes over from its parent besides the request."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from jsonpointer import JsonPointer

from app.guard.presets.catalog import Catalog, PresetLayer
from app.spec.installed import RECIPES
from app.spec.layers import DEFAULT_KINDS, RECIPE, Document, leaves, overlay, with_default_kinds
from app.spec.parse import value_at
from app.spec.stored import completed

# The source, in a spec's provenance, of a value that a restart kept from its parent.
PARENT = "parent"
# Fields that the guard settles by the dataset. A restart keeps all of them while that is the same
# and its patch names none of them: a group without its shuffle would be refused.
SETTLED = (
    "/data/loader/shuffle",
    "/data/loader/shuffle_group",
    "/data/loader/shuffle_block",
)
ROLES = ("/data/inputs", "/data/targets")
# Fields whose default the recipe gives; in earlier versions all monitors watched val_loss.
OF_RECIPE = (
    "/data/standardize/inputs",
    "/data/standardize/targets",
    "/evaluation/metrics",
    "/checkpoint/monitor",
    "/early_stopping/monitor",
    "/schedule/monitor",
)
# Blocks that a run may do without: a kept field of one is no wish for it.
OPTIONAL = ("/early_stopping", "/init_from")
# Fields that mean the same in every kind of their block, so that another kind keeps them.
OF_EVERY_KIND = ("/optimizer/decay",)
# A word on the preset that no request has, so the restart picks another one.
ANOTHER = object()


@dataclass(frozen=True)
class Inherited:
    """The preset that a restart lies on; None: none, as its parent."""

    preset: PresetLayer | None
    wish: object
    """The request's word on the preset; another word picks another."""
    kept: Mapping[str, object] = field(default_factory=dict)
    """Values of the parent by JSON Pointer, for fields that the request does not name."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The parent's kind of each block whose fields depend on it, by JSON Pointer."""

    def holds_for(self, request: Document) -> bool:
        """Returns whether the request leaves the choice of the preset to the parent."""
        return request.get("preset") == self.wish

    def complete(self, joined: Document) -> tuple[Document, Document]:
        """Fills in the kept values where `joined` names none and its block is of the same kind.

        Returns the document, and the entries of its provenance by pointer.
        """
        sources: Document = {}
        for pointer, value in self.kept.items():
            parts = JsonPointer(pointer).parts
            filled = self._with(joined, parts, value)
            if filled is not joined:
                joined, sources[pointer] = filled, {"value": value, "source": PARENT}
        return joined, sources

    def _with(
        self, block: Document, parts: list[str], value: object, pointer: str = ""
    ) -> Document:
        """Returns `block`, which lies at `pointer`, with the value in it; as it is if none fits."""
        name, *inner = parts
        if not inner:
            return block if name in block else {**block, name: value}
        here = f"{pointer}/{name}"
        below = block.get(name, None if here in OPTIONAL else {})
        if not isinstance(below, dict):
            return block  # null, or a mistake that the schema tells
        key, kind = DEFAULT_KINDS.get(here, ("kind", ""))
        if here in self.kinds:
            own = below.get(key, kind or self.kinds[here])
            if not self._fits(here, own, inner[0]):
                return block
            below_with_kind = {key: own, **below}
        else:
            below_with_kind = below
        filled = self._with(below_with_kind, inner, value, here)
        return block if filled is below_with_kind else {**block, name: filled}

    def _fits(self, here: str, kind: str, field: str) -> bool:
        """True if a block of this kind may have the parent's value of the field."""
        return kind == self.kinds[here] or f"{here}/{field}" in OF_EVERY_KIND


def inherited(
    request: Document,
    spec: Document,
    provenance: Document,
    catalog: Catalog,
    named: Collection[str] = (),
) -> Inherited:
    """For a restart whose patched request is `request`, of a run with this spec and provenance.
    `named`: the JSON Pointers that the patch names, also those that it sets to null.

    What the preset brought is fixed, also where its file has changed since or is gone; the preset
    as it is now has a say only in what the parent's own request said.
    """
    before = completed(spec)
    kinds = _kinds(before)
    kept = _kept(spec, before, provenance, request, named)
    name = spec["preset"]
    if any(pointer in ("", "/preset") for pointer in named):
        return Inherited(None, ANOTHER, kept, kinds)
    if name == "auto":
        return Inherited(None, request.get("preset"), kept, kinds)
    brought: Document = {}
    for pointer, entry in provenance.items():
        if entry["source"] == f"preset:{name}":
            _put(brought, pointer, entry["value"])
    now = catalog.get(name)
    if now is None:
        description = f"The preset {name} of the run that is restarted."
        now = PresetLayer(name=name, description=description, spec={}, source="user")
    now = now.as_asked(request.get("preset", "auto"))
    layer = overlay(with_default_kinds(now.spec), with_default_kinds(brought))
    return Inherited(now.model_copy(update={"spec": layer}), request.get("preset"), kept, kinds)


def _kinds(spec: Document) -> dict[str, str]:
    """The kind of each block of a complete spec whose fields depend on its kind."""
    kinds = {RECIPE: spec["recipe"]["kind"]}
    for pointer, (key, default) in DEFAULT_KINDS.items():
        block = JsonPointer(pointer).resolve(spec, {})
        kinds[pointer] = block.get(key, default)
    return kinds


def _kept(
    spec: Document,
    before: Document,
    provenance: Document,
    request: Document,
    named: Collection[str],
) -> dict[str, object]:
    """The parent's values that neither its request nor a preset named, and that today's defaults
    may not give: of fields that its version did not have, those the guard settled, and those whose
    default the recipe gives.
    """
    stored = {pointer for pointer, _ in leaves(spec)}
    same_data = value_at(request, ("data", "dataset")) == spec["data"]["dataset"]
    same_recipe = _scores_alike(request, before)
    depending = {
        **dict.fromkeys(SETTLED, same_data),
        **dict.fromkeys(ROLES, same_data and same_recipe),
        **dict.fromkeys(OF_RECIPE, same_recipe),
    }
    if _is_named("/evaluation/metrics", named):  # which a kept monitor may not be among
        depending |= {pointer: False for pointer in OF_RECIPE if pointer.endswith("/monitor")}
    changed_defaults = _changed_defaults(before["recipe"]["kind"])
    kept = {}
    if not same_data or any(_is_named(pointer, named) for pointer in SETTLED):
        named = {*named, *SETTLED}
    for pointer, value in leaves(before):
        source = provenance.get(pointer, {}).get("source")
        if pointer not in stored:
            keep = True
        elif pointer in depending:
            keep = depending[pointer] and source in _unnamed_sources(pointer)
        elif pointer in changed_defaults:
            keep = source in ("default", "guard", PARENT)
        else:  # also what the recipe settled by the arrays, such as a patch that divides windows
            keep = source == PARENT or (source == "guard" and pointer.startswith(f"{RECIPE}/"))
        if keep and not _is_named(pointer, named):
            kept[pointer] = value
    return kept


def _changed_defaults(kind: str) -> set[str]:
    """The fields of a recipe that meant something else before than today's default."""
    model = RECIPES.get(kind)
    return set() if model is None else {f"{RECIPE}/{name}" for name in model.earlier}


def _unnamed_sources(pointer: str) -> tuple[str, ...]:
    """The sources of a value that no request and no preset named."""
    return ("guard", PARENT) if pointer in SETTLED else ("default", "guard", PARENT)


def _scores_alike(request: Document, before: Document) -> bool:
    """True if the child's recipe has the metrics and the scales of the parent's, so that the
    parent's values of what a recipe gives defaults to still mean the same.
    """
    given, earlier = request.get("recipe"), before["recipe"]
    model = RECIPES.get(earlier["kind"])
    if model is None or not isinstance(given, dict):
        return False
    try:
        was, now = (
            model.model_validate_json(json.dumps(one), extra="ignore")
            for one in (earlier, {**earlier, **given})
        )
    except ValueError:
        return False  # another kind, or a mistake that the schema tells
    return (was.metric_modes, was.has_scale) == (now.metric_modes, now.has_scale)


def _is_named(pointer: str, named: Collection[str]) -> bool:
    return any(pointer == one or pointer.startswith(f"{one}/") for one in named)


def _put(document: Document, pointer: str, value: object) -> None:
    *parents, last = JsonPointer(pointer).parts
    for parent in parents:
        document = document.setdefault(parent, {})
    document[last] = value
