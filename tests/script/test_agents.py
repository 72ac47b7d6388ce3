"""docs/agents.md runs as it stands, and the skill file names what there is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.failures import ExitCode
from app.lifecycle import Reason
from docs.missing import command_names
from tests.pages import blocks, run_as_typed

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "agents.md").read_text("utf-8")
SKILL = (DOCS / "skill" / "SKILL.md").read_text("utf-8")


def test_the_skill_file_is_short_and_can_be_found():
    assert len(SKILL.splitlines()) <= 80
    front = re.match(r"---\nname: stoker\ndescription: (.+)\n---\n", SKILL)
    assert front
    assert len(front[1]) <= 1024


def test_the_skill_file_names_commands_and_reasons_that_are_there():
    told = re.findall(r"stoker ((?:data |db )?[a-z]+)", "\n".join(re.findall(r"`([^`]+)`", SKILL)))
    groups = {name.split()[0] for name in command_names()}
    assert {name for name in told if name not in {*command_names(), *groups}} == set()
    reasons = re.findall(r"^   - ((?:`\w+`(?:, )?)+):", SKILL, re.MULTILINE)
    assert len(reasons) == 6
    assert {word for line in reasons for word in re.findall(r"\w+", line)} <= set(Reason)


def test_both_tell_every_exit_code():
    table = PAGE.split("## Exit codes")[1]
    rows = re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE)
    codes = [str(code.value) for code in ExitCode]
    assert [code for row in rows for code in row.split(", ")] == codes
    assert re.findall(r"(?:^|· ?\n?)(\d+) ", SKILL.split("## Exit codes\n\n")[1]) == codes


@pytest.mark.minutes
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_of_the_page_works(tmp_path):
    (tmp_path / "train.py").write_text(*blocks("python", PAGE))
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    others = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    home = {"STOKER_HOME": str(tmp_path / "home"), "STOKER_PORT": "0", "STOKER_EXPORTER_PORT": "0"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = others | home | {"PATH": path}
    commands = "".join(blocks("sh", PAGE))
    try:
        run_as_typed(commands, tmp_path, environment)
    finally:
        subprocess.run(["stoker", "down"], env=environment, capture_output=True, check=False)
    documents = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert documents["mended"]["accepted"]
    assert documents["failed"]["reason"] == Reason.crashed
    assert documents["failed"]["result"]["exit_code"] == 1
    assert "learning_rate" in documents["failed"]["message"]
    assert documents["stopped"]["state"] == "stopped"
    last = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert (last["data"]["id"], last["data"]["state"]) == (3, "succeeded")


def test_no_command_of_the_page_has_an_id_that_a_reader_may_not_have():
    assert not re.findall(r"^stoker [a-z]+ \d", "\n".join(blocks("sh", PAGE)), re.MULTILINE)
