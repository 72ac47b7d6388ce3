"""A skipped test that CI promised to run fails the session, and says so; elsewhere it does not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
MARKERS = "[pytest]\nmarkers =\n  postgres: x\n  gpu: x\n  minutes: x\n"


def run_session(
    folder: Path, test: str, *, ci: str, limit: str = "1200"
) -> subprocess.CompletedProcess[str]:
    text, line = CONFTEST.read_text(), "MINUTES_LIMIT = 1200\n"
    assert line in text
    (folder / "conftest.py").write_text(text.replace(line, f"MINUTES_LIMIT = {limit}\n"))
    (folder / "pytest.ini").write_text(MARKERS)
    (folder / "test_it.py").write_text(f"import pytest\n{test}\ndef test_fine(): pass\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_timeout"],
        cwd=folder,
        env={**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


SKIPPED_POSTGRES = "@pytest.mark.postgres\n@pytest.mark.skip\ndef test_it(): pass"
SKIPPED_GPU = SKIPPED_POSTGRES.replace("postgres", "gpu")
SKIPPED_FILE = "pytest.skip('not here', allow_module_level=True)"


@pytest.mark.parametrize("test", [SKIPPED_POSTGRES, SKIPPED_FILE], ids=["test", "file"])
def test_a_skip_fails_where_ci_must_run_it(tmp_path, test):
    session = run_session(tmp_path, test, ci="true")
    assert session.returncode == 1
    assert "a check that did not run proves nothing" in session.stdout
    closing_line = session.stdout.splitlines()[-1]
    assert re.search(r"1 skipped.* in [\d.]+s", closing_line)


@pytest.mark.parametrize(("test", "ci"), [(SKIPPED_POSTGRES, ""), (SKIPPED_GPU, "true")])
def test_other_skips_are_allowed(tmp_path, test, ci):
    session = run_session(tmp_path, test, ci=ci)
    assert session.returncode == 0, session.stdout
    assert "1 passed, 1 skipped" in session.stdout


HANGS = """import time
pytestmark = pytest.mark.timeout(300)
@pytest.mark.minutes
def test_it():
    time.sleep(600)
"""


def test_what_takes_minutes_ends_with_its_stack_after_one_limit(tmp_path):
    session = run_session(tmp_path, HANGS, ci="", limit="0.5")
    assert "Timeout (>0.5s) from pytest-timeout" in session.stdout
    assert "time.sleep(600)" in session.stdout
    assert "1 failed, 1 passed" in session.stdout
