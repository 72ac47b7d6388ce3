"""A night's queue through the real service: reordered, with limits, failures and edited code."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli.failures import ExitCode
from tests.e2e.service import eventually
from tests.e2e.shell import Shell
from tests.repository import committed, git

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOLD = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)"


class Night(Shell):
    """In a repository with a script that is edited all the time."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project"
        self.project.mkdir(parents=True)
        self.edit(0)
        (self.project / ".gitignore").write_text("go\n")
        committed(self.project)
        super().__init__(root)

    def edit(self, version: int) -> None:
        (self.project / "train.py").write_text(f"print('this is version {version}.')\n")

    def copies(self) -> int:
        return git(self.project, "worktree", "list").count("\n")

    def python(self, code: str, *words: str) -> int:
        return int(self.run_command(*words, command=(sys.executable, "-c", code))["id"])

    def hold(self) -> int:
        """A run that trains until `go` is called, so that all others wait."""
        (self.project / "go").unlink(missing_ok=True)
        run = self.python(HOLD)
        eventually(lambda: self.service.run(run)["status"] == "running", "it holds the slot")
        return run

    def go(self) -> None:
        (self.project / "go").touch()


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    night = Night(tmp_path_factory.mktemp("night"))
    yield night
    night.service.close()


@pytest.fixture(autouse=True)
def free_slot(night: Night) -> Iterator[None]:
    yield
    night.go()
    night.end_all()


def test_a_queue_is_put_in_order_and_goes_on_after_a_failure(night: Night) -> None:
    held = night.hold()
    endless = night.python("import time; time.sleep(600)", "--max-duration", "1")
    broken = night.python("raise SystemExit(3)")
    good, urgent, last = (night.python(f"print({n})") for n in range(3))
    night.stoker("edit", str(urgent), "--priority", "5", "--name", "urgent")
    night.stoker("queue", "move", str(last), "--last")
    night.stoker("queue", "move", str(broken), "--before", str(endless))
    told = json.loads(night.stoker("queue", "--json"))
    order = [urgent, broken, endless, good, last]
    assert [run["id"] for run in told["data"]] == order
    assert told["next"] == f"Run {urgent} starts next, when run {held} ends."
    night.go()
    ended = [night.service.wait_for_end(run) for run in (held, *order)]
    assert [(run["state"], run["reason"]) for run in ended] == [
        ("succeeded", "completed"),
        ("succeeded", "completed"),
        ("failed", "crashed"),
        ("succeeded", "max_duration"),
        ("succeeded", "completed"),
        ("succeeded", "completed"),
    ]
    began = [run["started_at"] for run in ended]
    assert began == sorted(began)


@pytest.mark.minutes
def test_copies_run_the_code_of_their_submission_and_go_with_their_runs(night: Night) -> None:
    night.hold()
    environments = night.service.home / "environments"
    before = len(list(environments.glob("*")))
    train = (sys.executable, "train.py")
    runs = []
    for version in range(1, 5):
        night.edit(version)
        run = night.run_command("--snapshot", command=train)
        runs.append(int(run["id"]))
        assert (Path(run["copy"]) / "train.py").exists()
    plain = int(night.run_command(command=train)["id"])
    night.edit(99)
    refused = night.stoker(
        "run", "--snapshot", "--grace", "1e9", "--", *train, code=ExitCode.refused
    )
    assert "at --grace: " in refused
    assert night.copies() == 4, "of what was refused nothing is kept"
    night.go()
    for version, run_id in enumerate(runs, start=1):
        assert night.service.wait_for_end(run_id)["state"] == "succeeded"
        assert f"this is version {version}.\n" in night.log(run_id)
        events = night.service.http.get(f"/runs/{run_id}/events").json()["data"]
        assert "code_changed" not in [event["kind"] for event in events]
    night.service.wait_for_end(plain)
    assert "this is version 99." in night.log(plain)
    events = night.service.http.get(f"/runs/{plain}/events").json()["data"]
    (changed,) = [event["data"] for event in events if event["kind"] == "code_changed"]
    assert "+print('this is version 99.')" in changed["diff"]
    again = json.loads(night.stoker("restart", str(runs[0]), "--from", "scratch", "--json"))["id"]
    night.service.wait_for_end(again)
    assert "this is version 1.\n" in night.log(again), "a restart has its parent's code"
    for run_id in runs:
        night.stoker("delete", str(run_id), "--yes")
    eventually(lambda: night.copies() == 1, "all go but the one that the restart has")
    night.stoker("delete", str(again), "--yes")
    night.stoker("delete", str(plain), "--yes")
    eventually(lambda: night.copies() == 0, "it goes as well")
    eventually(lambda: len(list(environments.glob("*"))) == before, "and their environments")


@pytest.mark.minutes
def test_a_hundred_copies_run_their_code_whatever_becomes_of_the_tree(night: Night) -> None:
    """Edited before each, committed at times; and gone by the time that they run."""
    night.hold()
    runs = {}
    for version in range(1, 101):
        night.edit(version)
        if version % 10 == 0:
            git(night.project, "commit", "--quiet", "--all", "--message", str(version))
        run = night.run_command("--snapshot", command=(sys.executable, "train.py"))
        runs[int(run["id"])] = version
    (night.project / "train.py").unlink()
    night.go()
    for run_id, version in runs.items():
        assert night.service.wait_for_end(run_id)["state"] == "succeeded"
        assert f"this is version {version}.\n" in night.said(run_id)
        events = night.service.http.get(f"/runs/{run_id}/events").json()["data"]
        assert "code_changed" not in [event["kind"] for event in events]
    assert night.copies() == 100
    answer = night.service.http.post("/runs/bulk/delete", json={"ids": list(runs)})
    assert answer.status_code == 200, answer.text
    eventually(lambda: night.copies() == 0, "the copies go with their runs")
    night.edit(0)


def test_two_that_save_to_the_same_place_at_once_are_warned(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "slots = 2")
    try:
        words = ("run", "--json", "--checkpoints", "out/*.pt", "--", sys.executable, "-c", HOLD)
        first, second = (json.loads(shell.stoker(*words))["id"] for _ in range(2))
        http = shell.service.http
        eventually(lambda: shell.service.run(second)["status"] == "running", "both run")

        def warnings(run: int) -> list[str]:
            events = http.get(f"/runs/{run}/events").json()["data"]
            return [one["data"]["message"] for one in events if one["kind"] == "warning"]

        eventually(lambda: warnings(second), "the second is warned")
        assert warnings(second)[0].startswith(f"Run {first} runs at the same time and saves to")
    finally:
        shell.service.close()
