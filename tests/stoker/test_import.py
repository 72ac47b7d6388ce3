"""What `import stoker` brings along, also beside a user's own modules of the same names."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import get_args

import pytest
from pydantic import BaseModel

import stoker
from app.lifecycle import derive_status
from stoker import Intent, RunState, models

LOADED_NOW = """
import sys
before = set(sys.modules)
import stoker
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names)))
"""
WORKS = """
from stoker import Client, Problem, models
with Client("http://127.0.0.1:9") as client:
    assert not client.alive()
issue = models.Issue.model_validate({"code": "c", "severity": "error", "loc": [], "message": "m"})
print(issue.code)
"""


@pytest.fixture
def python(tmp_path: Path):
    """Run a program in a folder of modules named as ours are, none of which can be imported."""
    names = ("app.py", "worker/__init__.py", "tests/__init__.py", "migrations/__init__.py")
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"raise SystemExit('{name} of the user was imported')\n")

    def run(program: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(program)
        done = subprocess.run(
            [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def test_it_alone_loads_nothing_but_the_standard_library(python):
    assert python(LOADED_NOW) == "stoker"


def test_client_and_models_work_beside_modules_of_our_names(python):
    assert python(WORKS) == "c"


def names_for_type_checkers(package: ModuleType) -> set[str]:
    tree = ast.parse(inspect.getsource(package))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports for alias in node.names}


@pytest.mark.parametrize("package", [stoker, models])
def test_every_name_that_is_promised_is_there_and_no_other(package):
    assert {getattr(package, name) is not None for name in package.__all__} == {True}
    assert set(package.__all__) <= set(dir(package))
    assert set(package.__all__) <= names_for_type_checkers(package)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = package.Nonsense


def test_every_model_can_be_imported_from_the_package():
    defined = {
        name
        for module in iter_modules(models.__path__)
        for name, value in vars(import_module(f"stoker.models.{module.name}")).items()
        if inspect.isclass(value)
        and issubclass(value, BaseModel)
        and value.__module__.startswith("stoker.models.")
        and "[" not in name
    }
    assert defined == {name for name in models.__all__ if inspect.isclass(getattr(models, name))}


def test_states_and_status_that_can_be_asked_for_are_those_that_there_are():
    assert set(get_args(models.StateName)) == set(RunState)
    assert set(get_args(models.Status)) == {
        derive_status(
            state,
            intent,
            phase=phase,
            waits_for_parent=parent,
            waits_for_memory=memory,
            retrying=retrying,
        )
        for state, intent, phase in product(RunState, Intent, (None, "training"))
        for parent, memory, retrying in product((True, False), repeat=3)
    }
