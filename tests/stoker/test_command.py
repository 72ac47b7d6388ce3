"""The command beside a project that has packages of the same names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The body of the console script; it is not in every environment in which tests run.
SCRIPT = "import sys; from stoker.command import main; sys.exit(main())"


def run(folder: Path, path: str, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-c", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "STOKER_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("theirs", ["app.py", "app/__init__.py", "worker/__init__.py"])
def test_a_project_with_packages_of_our_names_is_left_out(tmp_path: Path, theirs: str) -> None:
    (tmp_path / theirs).parent.mkdir(exist_ok=True)
    (tmp_path / theirs).write_text("raise SystemExit('theirs')\n")
    (tmp_path / "plain").mkdir()
    path = os.pathsep.join([".", "plain", str(tmp_path)])
    done = run(tmp_path, path, SCRIPT, "doctor", "--json")
    assert "theirs" not in done.stderr + done.stdout
    assert '"findings"' in done.stdout
    told = "import os; from stoker.command import leave_out_foreign as leave; leave(); "
    left = run(tmp_path, path, f"{told}print(os.environ['PYTHONPATH'])")
    assert left.stdout.strip() == "plain"


def test_what_hides_nothing_stays(tmp_path: Path) -> None:
    told = "import os, sys; from stoker.command import leave_out_foreign as leave; leave(); "
    shown = "print(os.environ['PYTHONPATH'], sys.path[0])"
    done = run(tmp_path, f"{tmp_path}{os.pathsep}.", told + shown)
    assert done.stdout.split() == [f"{tmp_path}{os.pathsep}.", str(tmp_path)]
