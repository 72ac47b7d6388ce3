"""Orphans of a killed launcher: ended without ever waiting for one that cannot die."""

import os
import subprocess
import sys

import pytest

from tests.worker.eventually import eventually
from worker.launch import orphans
from worker.launch.launcher import children_of
from worker.launch.locks import lock_holders, take_lock
from worker.launch.orphans import Orphans, end_abandoned


def test_an_orphan_is_killed_and_reaped_and_what_is_known_stays():
    known = set(children_of(os.getpid()))
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeper) as ours, subprocess.Popen(sleeper) as orphan:
        eventually(lambda: not Orphans().end(known | {ours.pid}), "the orphan is gone")
        assert orphan.wait() is not None
        assert ours.poll() is None
        ours.kill()


def test_a_process_that_does_not_die_is_told_instead_of_waited_for(monkeypatch):
    known = set(children_of(os.getpid()))
    monkeypatch.setattr(orphans, "DEATH_SECONDS", 0.0)
    ender = Orphans()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stuck:
        with monkeypatch.context() as kernel:
            kernel.setattr(os, "kill", lambda *_: None)  # as if it hung there
            assert ender.end(known) == {stuck.pid}
            assert ender.end(known) == {stuck.pid}
        stuck.kill()
        stuck.wait()
        assert ender.end(known) == set()


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "artifacts" / "runs" / "7"
    folder.mkdir(parents=True)
    return folder


def test_what_is_left_of_a_run_without_launcher_and_agent_is_killed(run_folder):
    root = run_folder.parent.parent
    variables = {**os.environ, "STOKER_ATTEMPT": "2"}
    of_run = {**variables, "STOKER_RUN_DIR": str(run_folder / "attempt-2")}
    of_another = {**variables, "STOKER_RUN_DIR": str(root.parent / "other/runs/7/attempt-2")}
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        subprocess.Popen(sleeper, env=of_run) as left,
        subprocess.Popen(sleeper, env=of_another) as other,
    ):
        held = take_lock(run_folder / "lock")
        assert held is not None
        end_abandoned(root)
        assert left.poll() is None, "a launcher sees to it"
        os.close(held)
        end_abandoned(root)
        assert left.wait(20) == -9
        assert other.poll() is None
        other.kill()


def test_only_a_launcher_that_holds_the_lock_is_named(run_folder):
    """And nobody else is continued."""
    lock = run_folder / "lock"
    held = take_lock(lock)
    assert held is not None
    assert lock_holders(lock) == []
    os.close(held)
