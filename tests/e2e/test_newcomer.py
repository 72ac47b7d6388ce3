"""A new user: an empty folder, a clone, and the README's two commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# `make test` would run these very tests: quick ones alone are run there, in one process.
QUICK_TESTS = (
    "--maxprocesses 1 tests/guard/presets tests/guard/rules/test_rules.py tests/test_lifecycle.py"
)

pytestmark = [pytest.mark.minutes, pytest.mark.timeout(600)]


def commands_of_the_readme() -> list[str]:
    """The commands in the README's first code block, without comments."""
    block = re.search(
        r"```(?:bash|sh|console)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert block, "the README opens with its commands"
    lines = (line.split("#")[0].strip() for line in block[1].splitlines())
    return [line for line in lines if line.startswith("make ")]


def in_clone(clone: Path, command: str, **extra: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("STOKER_", "PYTEST_"))}
    inherited.pop("CI", None)
    inherited.pop("VIRTUAL_ENV", None)
    inherited["PATH"] = f"{clone.parent / 'bin'}:{inherited['PATH']}"
    done = subprocess.run(
        command.split(),
        cwd=clone,
        env={**inherited, **extra},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """As for a user who has uv; `.ci/run` installs with pip where there is none."""
    folder = tmp_path_factory.mktemp("newcomer")
    clone = folder / "stoker"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    # Alone in a folder, so that nothing else of this environment is found there.
    (folder / "bin").mkdir()
    uv = Path(sys.executable).parent / "uv"
    assert uv.exists(), "the extra `test` brings it"
    (folder / "bin" / "uv").symlink_to(uv)
    return clone


def assert_as_it_was(clone: Path) -> None:
    untracked = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert untracked.stdout == "", "the commands leave the clone as it was"


def test_the_demo_works_in_a_fresh_clone(clone):
    demo, test = commands_of_the_readme()
    assert (demo, test) == ("make demo", "make test")
    shown = in_clone(clone, demo)
    assert re.search(r"baseline +\d+\.\d\d °C mean absolute error, ridge on", shown)
    assert "succeeded" in shown
    assert_as_it_was(clone)


def test_the_checks_work_there_too(clone):
    # The same code is checked here; without what mypy knows of it that takes a minute more.
    known = {"MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")}
    shown = in_clone(clone, "make test", PYTEST_ADDOPTS=QUICK_TESTS, **known)
    assert re.search(r"\d+ passed", shown)
    assert_as_it_was(clone)
