"""The README and the tour over HTTP: every one of their lines works."""

import json
import math
import re
import socket
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from app.cli.main import app
from docs.reference import with_missing
from stoker import Client
from tests.cli.conftest import environment_of
from tests.e2e.service import Service, eventually
from tests.pages import blocks, run_as_typed

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs" / "guide" / "http.md").read_text()


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


def test_every_command_can_print_json_but_those_that_print_a_log_until_they_are_ended():
    without = {command for command, options in commands().items() if "--json" not in options}
    assert without == {"api", "worker"}


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 700


def test_the_readme_lists_what_is_not_there_yet():
    assert with_missing(README) == README, "run: python -m docs.reference"


def test_the_commands_of_make_come_first():
    [make, *_] = blocks("console", README)
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


@pytest.mark.minutes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_line_of_the_tour_works(tour):
    folder, environment = tour
    checkpoint, client = blocks("python", TOUR)
    (folder / "checkpoint.py").write_text(checkpoint)
    (folder / "client.py").write_text(client)
    # What it shows in Python is run before the tour's last line ends the service.
    before, down, after = "\n".join(blocks("sh", TOUR)).rpartition("stoker down\n")
    (folder / "converted.py").write_text(checkpoint.replace("weather.h5", "series.h5"))
    shown = (
        f"python client.py\nstoker show 1 --json >run.json\n{down}{after}"
        'stoker data convert "$STOKER_HOME/data/weather.h5" "$STOKER_HOME/data/series.h5"\n'
        "python converted.py\npython checkpoint.py"
    )
    lines = run_as_typed(before + shown, folder, environment).splitlines()
    assert [line for line in lines if line.startswith("1 succeeded")], "the client's script"
    tested = json.loads((folder / "run.json").read_text())["result"]["test"]["test_mae"]
    assert lines[-2:] == [f"{tested:.4f} °C"] * 2, "of the file as it was, and as a series"
    assert zipfile.ZipFile(folder / "best.zip").testzip() is None


PROMPT = "$ "
SCRIPT = """
import time

for step in range(1, 201):
    print(f"step {step} loss {2 / step:.4f}")
    time.sleep(0.005)
"""


def shown_commands() -> list[tuple[str, str]]:
    """Each command of the README with the output that it shows there, none where it shows none."""
    sessions = "".join(block for block in blocks("console", README) if block.startswith(PROMPT))
    entries = sessions.removeprefix(PROMPT).split(f"\n{PROMPT}")
    return [(command, output) for command, _, output in (one.partition("\n") for one in entries)]


def as_pattern(output: str) -> str:
    """Figures, folders and how far a run is differ from day to day; … stands for any lines."""
    pattern = re.sub(r"\d+(?:\\?[.,]\d+)*", r"[\\d.,]+", re.escape(output.rstrip("\n")))
    pattern = pattern.replace("/home/ada/\\.stoker", r"\S+").replace("…", r"[^\0]*")
    return re.sub(r"is\\ (starting|queued)", r"\\w+\\ \\w+", pattern)


def hourly_rows(path: Path) -> None:
    """A year of hours with two columns of numbers."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    rows = (
        f"{begin + timedelta(hours=hour):%Y-%m-%d %H:%M},"
        f"{math.sin(hour / 4):.2f},{math.cos(hour / 90):.2f}"
        for hour in range(8760)
    )
    path.write_text("\n".join(["time,temperature,pressure", *rows]) + "\n")


@pytest.mark.minutes
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_readme_shows_what_its_commands_print(tour):
    folder, environment = tour
    (folder / "train.py").write_text(SCRIPT)
    hourly_rows(folder / "rows.csv")
    (folder / "forecast.yaml").write_text(*blocks("yaml", README))
    for command, shown in shown_commands():
        if command.startswith("stoker stop"):
            await_training(environment)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == ("error:" not in shown), done.stdout
        if shown:
            assert re.fullmatch(as_pattern(shown), done.stdout.rstrip("\n")), done.stdout


def await_training(environment: dict[str, str]) -> None:
    """Until the newest run has something to save."""
    with Client(home=Path(environment["STOKER_HOME"])) as client:
        [run] = client.runs(limit=1)["data"]
        eventually(
            lambda: (client.run(run["id"])["progress"] or {}).get("step"), "the run has trained"
        )
