"""What specs can name: recipes and presets; what calls there are, and of which version."""

import platform
from contextlib import suppress

from fastapi import APIRouter

from app import __version__
from app.api.deps import ServicesDep
from app.api.strict import StrictRoute
from app.errors import Unavailable
from app.spec.installed import INSTALLED
from app.spec.script import SCRIPT, ScriptRecipe
from stoker.models.base import Page
from stoker.models.records import BrokenPreset, Preset, PresetPage, Recipe, Version

router = APIRouter(tags=["catalogue"], route_class=StrictRoute)


@router.get("/recipes", operation_id="list_recipes", summary="Recipes and their parameters")
def list_recipes() -> Page[Recipe]:
    """The installed ones, and `script`: a command of the user's own, or a registered one."""
    return Page(data=[*(_recipe(kind) for kind in INSTALLED.models), _script()])


def _recipe(kind: str) -> Recipe:
    model, default = INSTALLED.models[kind], INSTALLED.with_defaults(kind)
    return Recipe(
        kind=kind,
        version=INSTALLED.versions[kind],
        package=INSTALLED.packages[kind],
        description=(model.__doc__ or "").strip(),
        parameters=model.model_json_schema(),
        metrics=dict(default.metric_modes) if default else None,
        loss_terms=list(default.loss_terms) if default else None,
        parameter_groups=list(default.parameter_groups) if default else None,
    )


def _script() -> Recipe:
    return Recipe(
        kind=SCRIPT,
        version=__version__,
        package="stoker",
        description=(ScriptRecipe.__doc__ or "").strip(),
        parameters=ScriptRecipe.model_json_schema(),
        metrics=None,
        loss_terms=None,
        parameter_groups=None,
    )


@router.get("/presets", operation_id="list_presets", summary="Layers of spec defaults")
def list_presets(services: ServicesDep) -> PresetPage:
    """The packaged ones and the user's own; beside them the files that could not be used."""
    catalog = services.catalog.get()
    return PresetPage(
        data=[Preset.model_validate(catalog.presets[name].model_dump()) for name in catalog.names],
        broken=[
            BrokenPreset(name=name, message=message)
            for name, message in sorted(catalog.broken.items())
        ],
    )


@router.get("/version", operation_id="get_version", summary="Version of the service")
def get_version(services: ServicesDep) -> Version:
    database_id = None
    with suppress(Unavailable):
        database_id = services.store.database.id
    return Version(version=__version__, python=platform.python_version(), database_id=database_id)
