"""Which recipes are installed, found by entry point.

Apart from `app.spec.recipe`, which they import: the first of them may be what imports that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import get_args

from pydantic import ValidationError

from app.spec.plugins import FIRST_HALVES
from app.spec.recipe import Recipe

OWN_PACKAGE = "stoker"


@dataclass(frozen=True)
class Installed:
    """The recipes that are there, by kind, with their versions and the packages that they come
    from; and the entry points that raised, each with what was said.
    """

    models: dict[str, type[Recipe]]
    versions: dict[str, str]
    packages: dict[str, str]
    broken: dict[str, str]

    def is_plugin(self, kind: str) -> bool:
        """Whether its recipe is of another package than Stoker's own."""
        return self.packages[kind] != OWN_PACKAGE

    def with_defaults(self, kind: str) -> Recipe | None:
        """The recipe as a spec of its kind alone would have it; None where it needs more."""
        try:
            return self.models[kind].model_validate({"kind": kind})
        except ValidationError:
            return None


def find_installed() -> Installed:
    """Every recipe of the installed packages, in the order of their kinds.

    An entry point's name is the recipe's kind. One that raises at import harms nothing else.
    """
    found = Installed({}, {}, {}, {})
    for point in sorted(entry_points(group=FIRST_HALVES), key=_own_first):
        kind, package = point.name, point.dist.name if point.dist else OWN_PACKAGE
        try:
            model = _loaded(point, found.models)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is its own
            found.broken[kind] = f"{package} ({point.value}): {type(error).__name__}: {error}"
            continue
        found.models[kind], found.packages[kind] = model, package
        is_plugin = found.is_plugin(kind)
        found.versions[kind] = point.dist.version if is_plugin and point.dist else model.revision
    return found


def _own_first(point: EntryPoint) -> tuple[bool, str]:
    """So that no plugin takes the place of a recipe of Stoker's."""
    return point.dist is not None and point.dist.name != OWN_PACKAGE, point.name


def _loaded(point: EntryPoint, others: Mapping[str, type[Recipe]]) -> type[Recipe]:
    model = point.load()
    if not (isinstance(model, type) and issubclass(model, Recipe)):
        raise TypeError("it is no subclass of app.spec.recipe.Recipe")
    if get_args(model.model_fields["kind"].annotation) != (point.name,):
        raise TypeError(f"its field kind has to be Literal[{point.name!r}]")
    if point.name in others:
        raise ValueError(f"the kind {point.name} is already that of {others[point.name]}")
    return model


INSTALLED = find_installed()
RECIPES = INSTALLED.models
# One that needs nothing beside its kind: what a part of a spec is tried with that names no recipe.
ANY_RECIPE = next(
    kind
    for kind, model in RECIPES.items()
    if [name for name, field in model.model_fields.items() if field.is_required()] == ["kind"]
)
