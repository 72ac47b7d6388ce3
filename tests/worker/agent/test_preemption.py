"""A run that allows it makes way for one of higher priority, and goes on from where it was."""

import json

from app.lifecycle import Intent, Reason, RunState
from app.planning.requirements import Requirements
from tests.worker.agent.test_gpus import FAKE_HOST, GIB
from tests.worker.eventually import eventually

PREEMPTIBLE = {"preemptible": True}


def high_beside(farm, run_id, **script):
    """A run of higher priority, submitted while the other trains."""
    farm.wait_for_step(run_id, 3)
    return farm.submit(priority=5, **script)


def test_it_saves_goes_back_to_the_queue_and_goes_on_from_there(farm):
    low = farm.submit(policy=PREEMPTIBLE, steps=400, pace=0.02, save_every=1000)
    high = high_beside(farm, low, steps=60, pace=0.02)
    farm.wait_for_step(high, 1)
    waiting = farm.run(low)
    assert (waiting.state, waiting.reason) == (RunState.queued, Reason.preempted)
    assert (waiting.retry_at, waiting.retries_used) == (None, 0)
    assert waiting.message == (
        f"Preempted by run {high}, which has a higher priority and needed its slot: the trainer "
        "saved and ended. It goes on when a slot is free, and that uses up no retry."
    )
    assert farm.wait_for_end(high).state is RunState.succeeded
    farm.wait_for_attempt(low, 2)
    first, second = eventually(
        lambda: (told := farm.store.attempts.list(low))[1].resumed_from_step and told,
        "it says from where it goes on",
    )
    saved = farm.store.checkpoints.list(low)
    assert (first.state, first.reason) == ("retried", Reason.preempted)
    assert second.resumed_from_step == max(one.step for one in saved if one.attempt == 1)
    farm.want(low, Intent.kill)


def test_what_waits_says_who_makes_place_and_one_that_does_not_stop_is_killed(make_farm):
    farm = make_farm(stop_grace_seconds=2.0)
    farm.start_agent()
    low = farm.submit(policy=PREEMPTIBLE, steps=10**6, pace=0.02, on_stop="ignore")
    high = high_beside(farm, low, steps=5)
    told = eventually(lambda: farm.run(high).waiting, "it says for what it waits")
    assert told.why == f"Run {low}, of a lower priority, is giving up its slot for it."
    assert f"Run {high} of priority 5 needs its slot" in farm.run(low).message
    assert farm.wait_for_end(high).state is RunState.succeeded
    first = farm.store.attempts.list(low)[0]
    assert first.reason is Reason.preempted
    assert "ended without a new checkpoint" in first.message
    farm.want(low, Intent.kill)


def test_two_make_place_for_two_at_the_same_time(make_farm):
    """The second does not wait until the first has ended, which does not stop by itself."""
    farm = make_farm(slots=2, stop_grace_seconds=2.0)
    farm.start_agent(STOKER_SLOTS="2")
    script = {"policy": PREEMPTIBLE, "steps": 10**6, "pace": 0.02, "on_stop": "ignore"}
    lows = [farm.submit(**script) for _ in range(2)]
    for low in lows:
        farm.wait_for_step(low, 1)
    highs = [farm.submit(priority=5, steps=3) for _ in range(2)]
    needed_by = eventually(
        lambda: (told := [farm.run(high).waiting for high in highs]) and all(told) and told,
        "both wait for one of them",
    )
    assert len({told.why for told in needed_by}) == 2
    assert farm.log().count("run makes way") == 2
    for high in highs:
        assert farm.wait_for_end(high).state is RunState.succeeded


def test_one_that_does_not_allow_it_goes_on(farm):
    low = farm.submit(steps=120, pace=0.02)
    high = high_beside(farm, low, steps=5)
    assert farm.wait_for_end(low).state is RunState.succeeded
    assert farm.run(low).attempt == 1
    farm.wait_for_end(high)


def test_one_that_is_on_its_way_to_the_end_has_done_it(farm):
    """The trainer came to its end before it was asked to stop: nothing is queued again."""
    low = farm.submit(policy=PREEMPTIBLE, steps=8, pace=0.2, on_stop="ignore")
    high = high_beside(farm, low, steps=5)
    assert farm.wait_for_end(low).state is RunState.succeeded
    farm.wait_for_end(high)


def test_of_two_gpus_the_one_that_is_large_enough_is_given_back(make_farm):
    """Its run began first, and would stay if the other's GPU would do."""
    farm = make_farm()
    gpus = [{"total": 20 * GIB}, {"total": 100 * GIB}]
    farm.start_agent(PYTHONPATH=FAKE_HOST, FAKE_NVML=json.dumps({"gpus": gpus}))
    endless = {"policy": PREEMPTIBLE, "steps": 10**6, "pace": 0.02}
    large, small = (farm.submit(**endless) for _ in range(2))
    for run in (large, small):  # one that is ended as it starts is called interrupted
        farm.wait_for_step(run, 3)
    assert [farm.run(run).devices for run in (large, small)] == [["cuda:1"], ["cuda:0"]]
    needs = Requirements(device_bytes=50 * GIB)
    high = high_beside(farm, large, needs=needs, runtime={"device": "cuda"}, steps=3)
    assert farm.wait_for_end(high).state is RunState.succeeded
    assert farm.run(high).devices == ["cuda:1"]
    assert farm.store.attempts.list(large)[0].reason is Reason.preempted
    assert farm.run(small).attempt == 1
    farm.wait_for_attempt(large, 2)


def test_one_that_has_just_started_is_preempted_too(make_farm, tmp_path):
    """Its trainer handles no signal yet, and dies of it."""
    late = tmp_path / "late_trainer"
    late.write_text("#!/bin/sh\ntouch began\nexec sleep 600\n")
    late.chmod(0o755)
    farm = make_farm()
    farm.start_agent(FAKE_TRAINER=str(late), STOKER_SLOTS="1")
    low = farm.submit(policy=PREEMPTIBLE)
    eventually(lambda: (farm.folder(low) / "began").exists(), "its trainer starts")
    high = farm.submit(priority=5)
    eventually(lambda: farm.run(low).attempt and farm.run(low).state is RunState.queued, "it waits")
    first = farm.store.attempts.list(low)[0]
    assert first.reason is Reason.preempted
    assert f"Preempted by run {high}" in first.message
    farm.want(high, Intent.kill)
    farm.want(low, Intent.kill)
