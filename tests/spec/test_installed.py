"""Which recipes are found: plugins beside Stoker's own, and what a bad one does to the others."""

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli.host.recipe_checks import check_recipes
from app.spec import installed
from app.spec.installed import Installed, find_installed
from app.spec.plugins import FIRST_HALVES

GOOD = """
    from typing import ClassVar, Literal
    from app.spec.recipe import Recipe

    class Toy(Recipe):
        \"\"\"A toy.\"\"\"

        kind: Literal["toy"]
        size: int = 3
        metric_modes: ClassVar = {"accuracy": "max"}
"""


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is found beside Stoker's own when a module of this content is another entry point."""

    def find(content: str, kind: str = "toy", value: str = "toy_module:Toy") -> Installed:
        sys.modules.pop("toy_module", None)
        (tmp_path / "toy_module.py").write_text(dedent(content))
        other: Any = EntryPoint(kind, value, FIRST_HALVES)
        other = other._for(SimpleNamespace(name="toy-package", version="0.2"))
        every = [other, *entry_points(group=FIRST_HALVES)]
        monkeypatch.setattr("app.spec.installed.entry_points", lambda group: every)
        return find_installed()

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return find


def test_a_recipe_is_found_by_its_entry_point(found):
    toy = found(GOOD)
    assert {"sequence", "toy"} <= toy.models.keys()
    assert toy.broken == {}
    assert (toy.versions["toy"], toy.packages["toy"]) == ("0.2", "toy-package")
    default = toy.with_defaults("toy")
    assert default is not None
    assert default.metric_modes == {"accuracy": "max"}
    assert found(GOOD.replace("size: int = 3", "size: int")).with_defaults("toy") is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("raise RuntimeError('no such library')", "RuntimeError: no such library"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit", "SystemExit"),
        ("Toy = 3", "it is no subclass of app.spec.recipe.Recipe"),
        (GOOD.replace('"toy"', '"doll"'), "its field kind has to be Literal['toy']"),
        ("Toys = 1", "AttributeError"),
    ],
)
def test_one_that_cannot_be_used_is_named_and_harms_no_other(found, monkeypatch, content, told):
    toy = found(content)
    assert told in toy.broken["toy"]
    assert "toy_module:Toy" in toy.broken["toy"]
    assert "sequence" in toy.models
    monkeypatch.setattr(installed, "INSTALLED", toy)
    problem, fine = check_recipes()
    assert (problem.status, fine.status) == ("problem", "ok")
    assert "the recipe toy cannot be used" in problem.found
    assert told in problem.found


def test_none_takes_the_place_of_one_of_stokers(found):
    taken = found(GOOD.replace('"toy"', '"sequence"'), kind="sequence")
    assert "is already that of" in taken.broken["sequence"]
    assert taken.packages["sequence"] == "stoker"
