"""The README says all that there is, and every one of its lines works."""

import json
import re
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import typer

from app.cli.failures import ExitCode
from app.cli.main import app
from app.settings import Settings
from tests.cli.conftest import environment_of
from tests.e2e.service import Service

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONTRACT_COMMANDS = [
    *("up", "down", "api", "worker", "submit", "plan", "ls"),
    *("show", "watch", "logs", "metrics", "stop", "kill", "pause"),
    *("resume", "restart", "compare", "diagnose", "checkpoints", "download", "export"),
    *("gpus", "queue", "workers", "doctor", "rules", "presets", "bench"),
]
CONTRACT_SUBCOMMANDS = {
    "service": ("install",),
    "data": ("sample", "inspect", "register", "convert"),
    "token": ("create", "list", "revoke"),
    "db": ("upgrade", "backup", "restore", "accept-root", "check", "prune"),
}


def commands() -> dict[str, list[str]]:
    """Every command (`data ls`) with its options."""
    found: dict[str, list[str]] = {}

    def walk(command: object, words: list[str]) -> None:
        children = getattr(command, "commands", None)
        if children is None:
            params = getattr(command, "params", [])
            found[" ".join(words)] = [name for param in params for name in param.opts]
            return
        for name, child in children.items():
            walk(child, [*words, name])

    walk(typer.main.get_command(app), [])
    return found


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def missing_section() -> str:
    return README.split("## What is not there yet")[1]


def test_every_command_is_in_the_readme():
    assert [command for command in commands() if f"stoker {command}" not in README] == []


def test_every_command_can_print_json_but_those_that_print_a_log_until_they_are_ended():
    without = {command for command, options in commands().items() if "--json" not in options}
    assert without == {"api", "worker"}


def test_each_command_of_the_contract_is_there_or_said_to_be_missing():
    groups = CONTRACT_SUBCOMMANDS.items()
    contract = {f"{group} {name}" for group, names in groups for name in names}
    contract |= {*CONTRACT_COMMANDS}
    missing = {command for command in contract if f"`{command}`" in missing_section()}
    assert contract - commands().keys() == missing


def test_every_setting_and_every_exit_code_is_in_the_readme():
    assert [name for name in Settings.model_fields if f"`{name.upper()}`" not in README] == []
    told = re.findall(r"^\| (\d+) \| \w", README, re.MULTILINE)
    assert told == [str(code.value) for code in ExitCode]


def test_the_commands_of_make_come_first():
    [make, *_] = blocks("console")
    assert [line.split("#")[0].strip() for line in make.splitlines()] == ["make demo", "make test"]


@pytest.fixture
def tour(tmp_path, monkeypatch):
    """A working directory as a clone has it, and the environment of a new user's shell."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = environment_of(tmp_path / "home")
    environment["STOKER_PORT"] = str(free_port())
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    yield tmp_path, environment
    ended = subprocess.run(
        ["stoker", "down"], env=environment, capture_output=True, text=True, check=False
    )
    assert Service(tmp_path / "home").left_running() == [], ended.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_line_of_the_tour_works(tour):
    folder, environment = tour
    checkpoint, client, _ = blocks("python")
    (folder / "checkpoint.py").write_text(checkpoint)
    (folder / "client.py").write_text(client)
    # What the README shows in Python is run before the tour's last line ends the service.
    before, down, after = "\n".join(blocks("sh")).rpartition("stoker down\n")
    shown = f"python client.py\nstoker show 1 --json >run.json\n{down}{after}python checkpoint.py"
    done = subprocess.run(
        ["bash", "-c", f"set -euxo pipefail\n{before}{shown}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("1 succeeded")], "the client's script"
    best = json.loads((folder / "run.json").read_text())["result"]["best"]["val_mae"]
    assert lines[-1] == f"{best:.4f} °C"
    assert zipfile.ZipFile(folder / "best.zip").testzip() is None
