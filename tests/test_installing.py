"""The command that installs a package where Stoker runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app import installing
from app.installing import pip_install


def test_it_names_the_python_that_stoker_runs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/a b/python")
    monkeypatch.setattr(installing, "find_spec", lambda _: object())
    assert pip_install("stoker[panels]") == "'/a b/python' -m pip install 'stoker[panels]'"
    monkeypatch.setattr(installing, "find_spec", lambda _: None)
    assert pip_install("h5py") == "uv pip install h5py --python '/a b/python'"


def test_what_it_says_can_be_typed() -> None:
    command = f"{pip_install('stoker')} --dry-run --no-deps --no-index"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # uv is there
    environment = os.environ | {"PATH": path}
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
