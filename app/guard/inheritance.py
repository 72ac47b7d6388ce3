"""What a restart takes over of its parent's preset: the values that it brought, not its name."""

from dataclasses import dataclass

from jsonpointer import JsonPointer

from app.guard.presets.catalog import Catalog, PresetLayer
from app.spec.layers import Document, overlay, with_default_kinds


@dataclass(frozen=True)
class Inherited:
    """The preset that a restart lies on; None: none, as its parent."""

    preset: PresetLayer | None
    wish: object
    """What the request says of the preset; another word picks anew."""

    def holds_for(self, request: Document) -> bool:
        """Whether the request leaves the choice to the parent."""
        return request.get("preset") == self.wish


def inherited(
    request: Document, spec: Document, provenance: Document, catalog: Catalog
) -> Inherited:
    """For a restart whose patched request is `request`, of a run with this spec and provenance.

    What the preset brought is fixed, also where its file has changed since or is gone; the preset
    as it is now has a say only in what the parent's own request said.
    """
    name = spec["preset"]
    if name == "auto":
        return Inherited(None, request.get("preset"))
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
    return Inherited(now.model_copy(update={"spec": layer}), request.get("preset"))


def _put(document: Document, pointer: str, value: object) -> None:
    *parents, last = JsonPointer(pointer).parts
    for parent in parents:
        document = document.setdefault(parent, {})
    document[last] = value
