"""docs/from-nohup.md: its commands run as they stand, beside the script that it shows."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service import Service
from tests.pages import blocks, run_as_typed

PAGE = (Path(__file__).parents[2] / "docs" / "from-nohup.md").read_text("utf-8")
(SCRIPT,) = blocks("python", PAGE)
BLOCKS = blocks("sh", PAGE)
# Somebody who reads takes longer than the script to its first save.
READING = (
    'until stoker checkpoints 1 --json | grep -q "\\"step\\""; do sleep 0.2; done\n'
    "until stoker metrics 1 | grep -q train_loss; do sleep 0.2; done\n"  # prints count after 10 s
)
RESTARTED = "stoker restart 1\nuntil stoker logs 2 | grep -q step; do sleep 0.2; done\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    home = tmp_path / "home"
    environment = others | {
        "STOKER_HOME": str(home),
        "STOKER_PORT": "0",
        "STOKER_EXPORTER_PORT": "0",
        "STOKER_BEAT_SECONDS": "0.2",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    yield environment
    subprocess.run(["stoker", "down"], env=environment, capture_output=True, check=False)
    assert Service(home).left_running() == []


@pytest.mark.minutes
def test_every_command_works_as_it_stands(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    start, *others = BLOCKS
    commands = f"{start}{READING}{''.join(others)}".replace("stoker restart 1\n", RESTARTED)
    commands += "stoker logs 2\nstoker ls --json"
    printed = run_as_typed(commands, tmp_path, environment)
    runs = json.loads(printed[printed.rindex('{\n  "data"') :])["data"]
    assert [run["name"] for run in runs] == ["urgent", "lr-3e-4", "lr-1e-3", "train.py", "train.py"]
    assert re.search(r"train_loss +\d+ +0\.", printed), "curves of what it printed"
    first = [int(step) for step in re.findall(r"^step (\d+) ", printed, re.MULTILINE)]
    assert first.count(100) == 1, "the second began after what the first had saved"
    went_on = r"Run 1 goes on as run 2.*\n  It can go on from the checkpoint at step [\d,]+00\."
    assert re.search(went_on, printed)
