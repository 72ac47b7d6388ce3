"""Runs of such loops through the real service: killed, they go on, and never succeed."""

import random
import re
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import eventually
from tests.e2e.shell import Shell
from tests.script.test_kills_of_torch_scripts import each_path, iteration_in, loop

pytestmark = pytest.mark.minutes


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.service.close()


@each_path
def test_a_run_that_is_killed_goes_on_and_never_succeeds(shell: Shell, path: str):
    """Through the real service. Its first save is torn, and removed, as the run asks for."""
    (shell.project / "train.py").write_text(loop(path, 2_000))
    words = ("--checkpoints", "out/*.pt", "--resume", "--resume {checkpoint}", "--retries", "50")
    run_id = shell.run_command(*words, command=(sys.executable, "train.py"))["id"]
    torn = tear_first_save(shell, run_id)
    eventually(lambda: refusals(shell, run_id), "the next attempt is refused")
    assert f"{torn} was being written" in refusals(shell, run_id)[0]
    assert not re.search(r"^start", shell.said(run_id), re.MULTILINE)
    torn.unlink()
    shell.until_said(run_id, "start 0\n")
    chance = random.Random(path)
    for _ in range(4):
        eventually(partial(is_kept_after, shell, run_id, newest_kept(shell, run_id)), "it saves")
        time.sleep(chance.uniform(0.0, 1.0))
        attempt, known = shell.service.run(run_id)["attempt"], newest_kept(shell, run_id)
        for process in shell.processes_of(run_id):
            process.kill()
        eventually(partial(is_past, shell, run_id, attempt), "it goes on")
        shell.until_said(run_id, "start ")
        (began,) = re.findall(r"start (\d+)\n", shell.said(run_id))
        assert int(began) >= known
    stopped = shell.service.http.post(f"/runs/{run_id}/stop", params={"wait": 60}).json()
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stop_requested")
    *earlier, last = attempts(shell, run_id)
    assert {one["reason"] for one in earlier} == {"killed", "checkpoint_error"}
    assert last["reason"] == "interrupted"


def attempts(shell: Shell, run_id: int) -> list[dict[str, Any]]:
    found = shell.service.http.get(f"/runs/{run_id}/attempts").json()["data"]
    return sorted(found, key=lambda one: int(one["number"]))


def refusals(shell: Shell, run_id: int) -> list[str]:
    """What attempts said that found nothing whole."""
    ended = attempts(shell, run_id)
    return [one["message"] for one in ended if one["reason"] == "checkpoint_error"]


def tear_first_save(shell: Shell, run_id: int) -> Path:
    """Kill the script in the middle of it."""
    out = shell.project / "out"
    deadline = time.monotonic() + 60
    while not (begun := [one for one in out.glob("*.pt") if one.stat().st_size > 2**20]):
        assert time.monotonic() < deadline, shell.said(run_id)
        time.sleep(0.001)
    for process in shell.processes_of(run_id):
        process.kill()
    (torn,) = begun
    assert iteration_in(torn) is None, "it was whole by then"
    return torn


def is_past(shell: Shell, run_id: int, attempt: int) -> bool:
    return int(shell.service.run(run_id)["attempt"]) > attempt


def is_kept_after(shell: Shell, run_id: int, iteration: int) -> bool:
    return newest_kept(shell, run_id) > iteration


def newest_kept(shell: Shell, run_id: int) -> int:
    """The iteration inside the newest checkpoint of the run; 0 where there is none."""
    steps = [one["step"] for one in shell.checkpoints(run_id)]
    runs = shell.service.home / "artifacts" / "runs" / str(run_id)
    files = [
        file for step in steps for file in runs.glob(f"attempt-*/checkpoints/step-{step}/*.pt")
    ]
    return max((iteration_in(file) or 0 for file in files), default=0)
