"""The command that installs a package where Stoker runs."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from app import installing
from app.installing import pip_install


def test_it_names_the_python_that_stoker_runs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/a b/python")
    monkeypatch.setattr(installing, "distribution", lambda _: object())
    assert pip_install("stoker[panels]") == "'/a b/python' -m pip install 'stoker[panels]'"
    monkeypatch.setattr(installing, "distribution", distribution_of_none)
    assert pip_install("h5py") == "uv pip install h5py --python '/a b/python'"


def distribution_of_none(name: str) -> None:
    raise PackageNotFoundError(name)


def test_setuptools_can_be_imported_after_it() -> None:
    """As torch.compile does; not once somebody has looked for the module pip."""
    code = "from app.installing import pip_install; pip_install('x'); import setuptools"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_it_says_can_be_typed() -> None:
    command = f"{pip_install('stoker')} --dry-run --no-deps --no-index"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # uv is there
    environment = os.environ | {"PATH": path}
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
