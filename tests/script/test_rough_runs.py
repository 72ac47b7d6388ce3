"""Runs of rough scripts, through the real service: stopped or killed, all is gone and said so."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.service import eventually
from tests.e2e.shell import Shell
from tests.script.disks import small_disk

pytestmark = pytest.mark.minutes

PYTHON = (sys.executable, "train.py")
WAITS = """
import time
print("ready", flush=True)
time.sleep(600)
"""
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {deaf!r}], start_new_session={daemon})
import time
time.sleep(600)
"""
FORKS = """
import os, time
for _ in range(1000):
    if os.fork() == 0:
        time.sleep(600)
"""
GIGABYTE = """
import os
line = b"x" * 99 + b"\\n"
for _ in range(1024):
    os.write(1, line * 10486)
"""
# One that prints nothing as it ends needs no word for `nothing`: the run says how it ended.
FILLS = """
import os, sys, time
with open("filling", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(2**16))
    except OSError:
        if sys.argv[1] == "ends":
            raise
open("is_full", "w").close()
time.sleep(600)
"""
TRUE = {"recipe": {"kind": "script", "command": "true"}}
SETTINGS = '[scripts.true]\nargv = ["/bin/true"]\ncwd = "/"\n'


class Rough(NamedTuple):
    """A script that prints `ready`, and what is told of its stop."""

    code: str
    processes: int = 1
    """How many of it there are by then."""
    ended: str = "it ended by SIGTERM"
    outlived: int = 0
    """How many others the leader leaves behind."""
    command: tuple[str, ...] = PYTHON


ROUGH = {
    "bash": Rough(WAITS, 2, outlived=1, command=("bash", "-c", f"{sys.executable} train.py; true")),
    "nohup": Rough(WAITS, command=("nohup", *PYTHON)),
    "daemon": Rough(PARENT.format(deaf=DEAF + WAITS, daemon=True), 2, outlived=1),
    "deaf child": Rough(PARENT.format(deaf=DEAF + WAITS, daemon=False), 2, outlived=1),
    "deaf": Rough(DEAF + WAITS, ended="did not stop within 2 seconds and was killed"),
    "forks": Rough(DEAF + FORKS + WAITS, 1001, "did not stop within 2 seconds and was killed"),
    "gigabyte": Rough(GIGABYTE + WAITS),
}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("rough"), SETTINGS)
    yield shell
    shell.service.close()


@pytest.fixture(autouse=True)
def free_slot(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "shell" in request.fixturenames:
        request.getfixturevalue("shell").end_all()


def require_free_slot(shell: Shell) -> None:
    """The worker says that it has nothing to do, and takes the next run."""

    def is_free() -> bool:
        workers = shell.service.http.get("/workers").json()["data"]
        slots = [slot for worker in workers for slot in worker["slots"]]
        return bool(slots) and all(slot["run_id"] is None for slot in slots)

    eventually(is_free, "the slot is free")
    assert shell.service.wait_for_end(shell.service.submit(TRUE))["state"] == "succeeded"


def ask(shell: Shell, run_id: int, action: str) -> dict[str, Any]:
    """The run once it has ended so."""
    answer = shell.service.http.post(f"/runs/{run_id}/{action}", params={"wait": 60})
    assert answer.status_code == 200, answer.text
    run: dict[str, Any] = answer.json()
    assert (run["state"], run["reason"]) == ("stopped", f"{action}_requested"), run
    return run


@pytest.mark.parametrize("action", ["stop", "kill"])
@pytest.mark.parametrize("rough", ROUGH.values(), ids=ROUGH)
def test_nothing_of_it_is_left(shell: Shell, rough: Rough, action: str):
    (shell.project / "train.py").write_text(rough.code)
    run_id = shell.run_command("--grace", "2", command=rough.command)["id"]
    shell.until_said(run_id, "ready\n")
    below = shell.processes_of(run_id)
    assert len(below) == rough.processes
    ended = ask(shell, run_id, action)
    assert not any(process.is_running() for process in below)
    assert shell.processes_of(run_id) == []
    assert (rough.ended if action == "stop" else "The script was killed.") in ended["message"]
    left = [told for told in shell.messages(run_id, "warning") if "outlived it" in told]
    assert len(left) == (action == "stop" and rough.outlived > 0)
    assert all(told.startswith(f"{rough.outlived} process") for told in left)
    require_free_slot(shell)


def test_a_daemon_that_outlives_its_script_is_ended_and_told(shell: Shell):
    (shell.project / "train.py").write_text(DEAF + WAITS)
    run_id = shell.run_command("--name", "left", command=("setsid", "--fork", *PYTHON))["id"]
    assert shell.service.wait_for_end(run_id)["state"] == "succeeded"
    assert shell.processes_of(run_id) == []
    (told,) = shell.messages(run_id, "warning")
    assert told.startswith("1 process that the script had started outlived it")
    require_free_slot(shell)


def test_of_a_gigabyte_the_begin_and_the_end_are_kept_and_shown(shell: Shell):
    (shell.project / "train.py").write_text("print('first')\n" + GIGABYTE + "print('last')\n")
    run_id = shell.run_command(command=PYTHON)["id"]
    assert shell.service.wait_for_end(run_id)["state"] == "succeeded"
    said = shell.log(run_id)
    assert said.startswith("first\nxxx")
    assert re.search(r"xxx\nlast\nstoker: The script ended with exit code 0 after \d+ s\.$", said)
    (log,) = shell.service.home.glob(f"artifacts/runs/{run_id}/attempt-1/trainer.log")
    assert log.stat().st_size > 2**30
    assert log.stat().st_blocks * 512 < 100 * 2**20, "the middle takes no room"


@pytest.fixture(params=["of the script", "of all"])
def cramped(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A service whose scripts work on a small disk, where it has its own files, too, maybe."""
    with small_disk(tmp_path / "disk", 64) as place:
        shell = Shell(place if request.param == "of all" else tmp_path / "large", SETTINGS)
        shell.project = place / "small"
        shell.project.mkdir()
        (shell.project / "train.py").write_text(FILLS)
        yield shell
        shell.service.close()


def test_one_that_fills_the_disk_and_ends_has_failed_for_that(cramped: Shell):
    run_id = cramped.run_command(command=(*PYTHON, "ends"))["id"]
    filling = cramped.project / "filling"
    eventually(lambda: filling.exists() and not cramped.processes_of(run_id), "it has ended")
    time.sleep(0.5)  # the runner looks why it ended
    filling.unlink()
    ended = cramped.service.wait_for_end(run_id)
    assert (ended["state"], ended["reason"]) == ("failed", "disk_full")
    assert "A disk is full: free space, and restart the run." in ended["message"]
    require_free_slot(cramped)


@pytest.mark.parametrize("action", ["stop", "kill"])
def test_one_that_fills_the_disk_and_stays_is_ended(cramped: Shell, action: str):
    run_id = cramped.run_command(command=(*PYTHON, "stays"))["id"]
    filling = cramped.project / "filling"
    eventually((cramped.project / "is_full").exists, "the disk is full")
    (one,) = cramped.processes_of(run_id)
    filling.unlink()
    ask(cramped, run_id, action)
    assert not one.is_running()
    require_free_slot(cramped)
