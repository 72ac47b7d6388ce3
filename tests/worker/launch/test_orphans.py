"""Orphans of a killed launcher: ended without ever waiting for one that cannot die."""

import os
import subprocess
import sys

from tests.worker.eventually import eventually
from worker.launch import orphans
from worker.launch.launcher import children_of
from worker.launch.orphans import Orphans


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
