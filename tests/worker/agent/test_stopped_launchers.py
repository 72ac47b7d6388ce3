"""A trainer that stops its launcher (SIGSTOP): the run is over only when its process is gone."""

import pytest

from app.lifecycle import Intent, Reason, RunState
from tests.worker.eventually import eventually

ONCE = "kill -STOP $PPID\ntouch began\nexec sleep 600\n"
AGAIN = "touch began\nwhile true; do kill -STOP $PPID; done\n"


def farm_with(make_farm, tmp_path, script: str, **environment: str):
    trainer = tmp_path / "rough_trainer"
    trainer.write_text(f"#!/bin/bash\n{script}")
    trainer.chmod(0o755)
    farm = make_farm(stop_grace_seconds=1.0)
    farm.start_agent(FAKE_TRAINER=str(trainer), STOKER_SLOTS="1", **environment)
    return farm


@pytest.mark.parametrize("intent", [Intent.stop, Intent.kill])
def test_a_launcher_that_was_stopped_goes_on_to_obey(make_farm, tmp_path, intent: Intent):
    farm = farm_with(make_farm, tmp_path, ONCE, ANSWER_SECONDS="600")
    run_id = farm.submit()
    eventually(lambda: (farm.folder(run_id) / "began").exists(), "its trainer starts")
    farm.want(run_id, intent)
    assert farm.wait_for_end(run_id).state is RunState.stopped
    assert not farm.processes("sleep 600")
    assert not farm.processes("worker.launch.launcher --control-fd")


def test_one_that_is_stopped_again_and_again_is_killed(make_farm, tmp_path):
    farm = farm_with(make_farm, tmp_path, AGAIN, ANSWER_SECONDS="1.0")
    run_id = farm.submit()
    eventually(lambda: (farm.folder(run_id) / "began").exists(), "its trainer starts")
    farm.want(run_id, Intent.kill)
    ended = farm.wait_for_end(run_id)
    assert (ended.state, ended.reason) == (RunState.stopped, Reason.kill_requested)
    assert not farm.processes("rough_trainer")
    again = farm.submit()
    eventually(lambda: (farm.folder(again) / "began").exists(), "its slot is free")
    farm.want(again, Intent.kill)
    farm.wait_for_end(again)


def test_one_of_an_agent_that_was_killed_goes_on_and_ends_its_attempt(make_farm, tmp_path):
    """The next agent needs its lock. Nothing else would ever continue it."""
    farm = farm_with(make_farm, tmp_path, ONCE)
    run_id = farm.submit()
    eventually(lambda: (farm.folder(run_id) / "began").exists(), "its trainer starts")
    farm.agents[0].kill()
    farm.agents[0].wait()
    trainer = farm.processes("sleep 600")
    assert trainer
    farm.start_agent(STOKER_SLOTS="1")
    farm.wait_for_attempt(run_id, 2)
    assert farm.wait_for_end(run_id).state is RunState.succeeded
    assert not farm.processes("sleep 600")
