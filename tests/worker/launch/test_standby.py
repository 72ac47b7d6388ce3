"""Trainers that are started ahead: they wait, are given an attempt, and outlive nobody."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from app.lifecycle import Intent, RunState
from tests.worker.eventually import eventually
from tests.worker.launch.test_launcher import ENDLESS, ENDLESS_TERM, FAKE_TRAINER, Attempt
from worker.launch.launcher import children_of
from worker.launch.local import trainer_environment
from worker.launch.standby import Standby


@pytest.fixture
def standby(tmp_path):
    one = Standby(1, trainer_environment(tmp_path, gpu=None, threads=1), FAKE_TRAINER)
    one.refill()
    yield one
    one.close()
    eventually(lambda: one.pids() == set(), "no launcher is left")


@pytest.fixture
def begin(tmp_path, standby):
    """Give an attempt to what stands by."""
    begun = []

    def give(script, **environment):
        one = Attempt(tmp_path, script)
        one.plan = one.plan._replace(environment={**one.plan.environment, **environment})
        one.launched = standby.launcher(one.plan.environment)
        one.launched.begin(one.plan, ENDLESS_TERM)
        begun.append(one)
        return one

    yield give
    for one in begun:
        one.launched.order("kill")
        one.wait()
        one.launched.close()


SLOW = """
import os, sys, time
if "--standby" in sys.argv:
    time.sleep(600)
os.execv(sys.argv[1], sys.argv[1:])
"""


def waiting(standby):
    """The trainer that waits, once its launcher has started it."""
    (launcher,) = standby.pids()
    (trainer,) = eventually(lambda: children_of(launcher), "a trainer is started")
    return psutil.Process(trainer)


def ready(standby):
    """The trainer that waits, once it has said so."""
    process = waiting(standby)
    home = Path(process.environ()["STOKER_HOME"])
    eventually((home / f"ready-{process.pid}").exists, "it says that it is ready")
    return process


def test_the_trainer_that_waited_gets_the_attempt(standby, begin):
    waited = ready(standby)
    one = begin({"steps": 3})
    assert one.hear("started") == waited.pid
    assert one.wait()["returncode"] == 0
    assert one.log().startswith("fake trainer starts\n")
    assert standby.pids() == set()


def test_memory_is_taken_from_one_that_waits_before_any_that_trains(standby, begin):
    waited = waiting(standby)
    score = Path(f"/proc/{waited.pid}/oom_score_adj")
    eventually(lambda: score.read_text() == "1000\n", "it may be ended at once")
    ready(standby)
    begin(ENDLESS).hear("started")
    assert score.read_text() == "500\n"


def test_the_device_is_told_with_the_attempt(standby, begin):
    waited = ready(standby)
    one = begin({"steps": 1}, CUDA_VISIBLE_DEVICES="GPU-1")
    assert one.hear("started") == waited.pid
    one.wait()
    assert "it sees the device 'GPU-1'" in one.log()


def test_another_environment_gets_a_trainer_of_its_own_and_the_next_one_waits_with_it(
    standby, begin
):
    waited = waiting(standby)
    one = begin({"steps": 3}, OMP_NUM_THREADS="2")
    assert one.hear("started") != waited.pid
    assert one.wait()["returncode"] == 0
    standby.refill()
    eventually(lambda: len(standby.pids()) == 1 and not waited.is_running(), "it was let go")
    assert eventually(lambda: waiting(standby).environ(), "a new one")["OMP_NUM_THREADS"] == "2"


def test_a_stop_reaches_a_trainer_that_has_just_got_its_attempt(standby, begin):
    waiting(standby)
    one = begin(ENDLESS)
    one.launched.order("stop")
    assert one.wait()["returncode"] in (0, -signal.SIGTERM)


def test_a_trainer_that_died_as_it_waited_is_replaced_when_the_attempt_comes(standby, begin):
    waited = waiting(standby)
    waited.kill()
    eventually(lambda: waited.status() == psutil.STATUS_ZOMBIE, "it is dead")
    one = begin({"steps": 3})
    assert one.hear("started") != waited.pid
    ended = one.wait()
    assert (ended["returncode"], ended["escaped"]) == (0, 0)


def test_a_launcher_that_died_is_replaced(standby, begin):
    waited = waiting(standby)
    (launcher,) = standby.pids()
    os.kill(launcher, signal.SIGKILL)
    eventually(lambda: not waited.is_running(), "its trainer went with it")
    one = begin({"steps": 3})
    assert one.launched.pid != launcher
    assert one.wait()["returncode"] == 0


def test_one_that_is_not_ready_is_not_waited_for(tmp_path):
    """It imports at idle priority: on busy cores that may take minutes."""
    command = [sys.executable, "-c", SLOW, *FAKE_TRAINER]
    slow = Standby(1, trainer_environment(tmp_path, gpu=None, threads=1), command)
    slow.refill()
    waited = waiting(slow)
    one = Attempt(tmp_path, {"steps": 3})
    one.launched = slow.launcher(one.plan.environment)
    one.launched.begin(one.plan, ENDLESS_TERM)
    assert one.hear("started") != waited.pid
    assert (one.wait()["returncode"], waited.is_running()) == (0, False)
    one.launched.close()


def test_what_cannot_be_kept_is_not_tried_at_every_beat(tmp_path):
    short = Standby(1, trainer_environment(tmp_path, gpu=None, threads=1), FAKE_TRAINER)
    short.refill()
    (launcher,) = short.pids()
    os.kill(launcher, signal.SIGKILL)
    eventually(lambda: short.pids() == set(), "it is dead")
    short.refill()
    assert short.pids() == set()


@pytest.mark.parametrize("sent", [signal.SIGTERM, None])
def test_nothing_is_left_of_what_no_attempt_came_for(standby, sent):
    waited = waiting(standby)
    (launcher,) = standby.pids()
    if sent is None:
        standby.close()
    else:
        os.kill(launcher, sent)
    eventually(lambda: standby.pids() == set() and not waited.is_running(), "both are gone")


def test_an_agent_uses_the_one_that_waits_and_has_the_next_ready(make_farm):
    farm = make_farm()
    agent = farm.start_agent(STOKER_STANDBY="1")

    def trainers():
        return {process.pid for process in farm.processes("fake_trainer.py")}

    first = eventually(trainers, "a trainer waits")
    run_id = farm.submit(**ENDLESS)
    farm.wait_for_step(run_id, 3)
    eventually(lambda: len(trainers()) == 2, "the next one waits")
    assert first < trainers()
    farm.want(run_id, Intent.stop)
    assert farm.wait_for_end(run_id).state is RunState.stopped
    assert len(trainers() - first) == 1
    agent.terminate()
    assert agent.wait() == 0
    eventually(lambda: farm.left_running() == [], "nothing is left")


def test_what_waits_goes_with_an_agent_that_is_killed(make_farm):
    farm = make_farm()
    agent = farm.start_agent(STOKER_STANDBY="2")
    eventually(lambda: len(farm.processes("fake_trainer.py")) == 2, "both wait")
    agent.kill()
    eventually(lambda: farm.left_running() == [], "nothing is left")
