"""A script's own Python may be older than Stoker's: what is put on its path runs there, too."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.script.stage import ROOT, Stage

OLDEST = (3, 8)
CALLBACKS = ROOT / "stoker" / "callbacks"
LISTS = "import stoker, sys; stoker.init(); [print(m.__file__) for m in {modules}]"
OF_STOKER = "[m for name, m in sys.modules.items() if name.startswith('stoker')]"
USES_ALL = """
import sys, stoker
run = stoker.init(config={"lr": 0.1})
for step in range(1, 4):
    run.log({"loss": 1 / step}, step=step)
    assert not run.should_stop()
with run.checkpoint(3, {"train_loss": 0.25}) as folder:
    (folder / "weights").write_text("x")
run.finish()
print("python", sys.version_info[:2], sys.modules["sitecustomize"].__file__)
"""


def old_python(minor: int) -> str | None:
    """One of this version that runs: on PATH, or among pyenv's."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    named = shutil.which(f"python3.{minor}")
    found = [named] if named else []
    found += [str(path) for path in versions.glob(f"3.{minor}.*/bin/python3")]
    for path in found:
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def loaded_files() -> list[Path]:
    """What a script that calls `stoker.init` imports of Stoker, and what it may import besides."""
    code = LISTS.format(modules=OF_STOKER)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    shim = ROOT / "worker" / "script" / "path" / "sitecustomize.py"
    return [*map(Path, done.stdout.split()), *CALLBACKS.glob("*.py"), shim]


def test_the_grammar_is_that_of_the_oldest():
    files = loaded_files()
    assert {"script.py", "manifest.py", "sitecustomize.py"} <= {path.name for path in files}
    for path in files:
        ast.parse(path.read_text(), str(path), feature_version=OLDEST)


@pytest.mark.parametrize("minor", [8, 9, 10])
def test_a_script_of_an_older_python_does_all_of_it(stage: Stage, minor: int):
    python = old_python(minor)
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} here")
    stage.write(USES_ALL)
    end = stage.run(python, "train.py")
    assert end["reason"] == "completed", stage.log()
    assert f"python (3, {minor}) {stage.path_folder}" in stage.log()
    assert [(one["step"], one["metrics"]) for one in stage.events("checkpoint")] == [
        (3, {"train_loss": 0.25})
    ]
    assert set(stage.curve("train_loss")) == {1, 2, 3}
