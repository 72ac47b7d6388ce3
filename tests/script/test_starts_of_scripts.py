"""A script starts as it would from its shell: signals, umask, limits, niceness, standard input."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from app.inherited import Inherited
from tests.script.stage import ROOT, Stage
from worker.start.scripts import COMMAND

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)
SAVES_ON_CTRL_C = """
import time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saved", flush=True)
"""
SAYS_ITS_LIMITS = """
import json, os, resource
umask = os.umask(0)
names = ("RLIMIT_NOFILE", "RLIMIT_AS")
soft = {name: resource.getrlimit(getattr(resource, name)) for name in names}
print(json.dumps({"umask": umask, "niceness": os.nice(0), **soft}))
"""


def test_every_signal_has_its_default(stage: Stage):
    """Not in Python, which ignores two signals by itself."""
    code = "grep -E 'SigIgn|SigBlk' /proc/self/status"
    stage.start("bash", "-c", code, ignored=IGNORED).wait()
    masks = [int(line.split()[1], 16) for line in stage.log().splitlines() if "Sig" in line]
    of_the_c_library = 1 << 31 | 1 << 32  # 32 and 33, which a program can neither set nor see
    assert [mask & ~of_the_c_library for mask in masks] == [0, 0]


def test_one_that_saves_on_ctrl_c_is_stopped_by_sigint(stage: Stage):
    stage.write(SAVES_ON_CTRL_C)
    runner = stage.start(stop_signal="SIGINT", ignored=IGNORED)
    stage.until_log_has("ready")
    end = stage.stop(runner)
    assert (end["reason"], end["result"]["exit_code"]) == ("interrupted", 0)
    assert "saved" in stage.log()


def test_it_has_the_settings_of_its_shell_within_those_of_the_worker(stage: Stage):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    usual = Inherited.here().document()
    nice = min(19, usual["niceness"] + 5)
    limits = {**usual["limits"], "RLIMIT_NOFILE": 300, "RLIMIT_AS": 2**40}
    stage.write(SAYS_ITS_LIMITS)
    stage.run(of_shell={"umask": 0o077, "niceness": nice, "limits": limits})
    (line,) = (line for line in stage.log().splitlines() if line.startswith("{"))
    as_hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    assert json.loads(line) == {
        "umask": 0o077,
        "niceness": nice,
        "RLIMIT_NOFILE": [300, hard],
        "RLIMIT_AS": [2**40, as_hard],
    }


def test_a_soft_limit_above_the_hard_one_becomes_the_hard_one(stage: Stage):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    stage.write(SAYS_ITS_LIMITS)
    stage.run(of_shell={"umask": 0o022, "niceness": 0, "limits": {"RLIMIT_NOFILE": hard + 1}})
    (line,) = (line for line in stage.log().splitlines() if line.startswith("{"))
    assert json.loads(line)["RLIMIT_NOFILE"] == [hard, hard]


def test_each_attempt_reads_all_of_its_standard_input(stage: Stage):
    for attempt in (1, 2):
        stage.run(sys.executable, "-", attempt=attempt, stdin=b"print('this is in the log')\n")
        assert "this is in the log" in stage.log(attempt)


def test_standard_input_that_is_gone_is_no_empty_one(stage: Stage):
    stage.run("bash", stdin=b"exit 3\n")
    assert stage.end()["result"]["exit_code"] == 3
    (stage.cwd.parent / "environment.stdin").unlink()
    document = json.loads((stage.attempt() / "spec.json").read_text()) | {"attempt": 2}
    stage.attempt(2).mkdir()
    (stage.attempt(2) / "spec.json").write_text(json.dumps(document))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*COMMAND, str(stage.attempt(2))], env=environment, check=True)
    assert "that was kept with the command cannot be read" in stage.end(2)["message"]


def test_one_that_asks_for_more_than_was_piped_is_told_so(stage: Stage):
    stage.write("input()\ninput()\n")
    end = stage.run(stdin=b"yes\n")
    assert end["reason"] == "spec_error"
    assert "It has read all that was piped to `stoker run`" in end["message"]
