"""Runs that hold weights from elsewhere: nothing was trained, others begin with what they have."""

from typing import Any, Final

IMPORTED: Final = "imported"


def imported_spec(file: str, name: str) -> dict[str, Any]:
    """What stands in place of a spec. `file`: relative to DATA_ROOT."""
    return {"name": name, "recipe": {"kind": IMPORTED, "file": file}}


def is_imported(document: Any) -> bool:
    """Whether a stored spec is of such a run."""
    recipe = document.get("recipe") if isinstance(document, dict) else None
    return isinstance(recipe, dict) and recipe.get("kind") == IMPORTED
