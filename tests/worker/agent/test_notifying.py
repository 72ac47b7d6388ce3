"""An agent tells how runs end, and no run waits for whoever is told."""

import json
import time
from contextlib import suppress

from app.lifecycle import Intent, RunState
from tests.service.receiver import receiving
from tests.worker.eventually import eventually


def told(receiver):
    with receiver.lock:
        documents = [json.loads(one.body) for one in receiver.requests]
    return [(document["type"], document["data"]["run"]["id"]) for document in documents]


def test_two_agents_tell_each_end_once(make_farm):
    with receiving() as receiver:
        farm = make_farm()
        for _ in range(2):
            farm.start_agent(STOKER_NOTIFY_URL=receiver.url)
        runs = [
            farm.submit(steps=3),
            farm.submit(steps=3, at={"2": "kill"}, policy={"max_retries": 0}),
        ]
        stopped = farm.submit(steps=100_000, pace=0.02)
        farm.wait_for_step(stopped, 1)
        farm.want(stopped, Intent.stop)
        ends = [farm.wait_for_end(run) for run in (*runs, stopped)]
        expected = [(f"run.{run.state}", run.id) for run in ends]
        assert {run.state for run in ends} == {"succeeded", "failed", "stopped"}
        eventually(lambda: len(told(receiver)) >= 3, "all three are told")
        time.sleep(1)
        assert sorted(told(receiver)) == sorted(expected)


def test_a_hang_is_told_as_a_stall_and_the_run_goes_on(make_farm):
    with receiving() as receiver:
        farm = make_farm()
        farm.start_agent(STOKER_NOTIFY_URL=receiver.url, STOKER_NOTIFY_ON="stalled")
        # It steps for longer than a beat: until a step was seen, a start is what it may take.
        policy = {"hang_timeout_seconds": 5}
        run = farm.submit(steps=40, pace=0.05, save_every=5, at={"38": "hang"}, policy=policy)
        assert farm.wait_for_end(run).state == "succeeded"
        eventually(lambda: told(receiver), "the stall is told")
        assert told(receiver) == [("run.stalled", run)]


def test_a_receiver_that_never_answers_holds_up_nothing(make_farm):
    def hang(handler):
        with suppress(OSError):
            handler.rfile.read(1)  # until the sender has gone

    with receiving(hang) as receiver:
        farm = make_farm()
        agent = farm.start_agent(STOKER_NOTIFY_URL=receiver.url)
        first = farm.submit(steps=2)
        assert farm.wait_for_end(first).state == RunState.succeeded
        eventually(lambda: receiver.requests, "it is being told")
        assert farm.wait_for_end(farm.submit(steps=2)).state == RunState.succeeded
        agent.terminate()
        began = time.monotonic()
        assert agent.wait() == 0
        assert time.monotonic() - began < 15, "a try may last 20 seconds, and is not waited for"
        assert farm.store.notifications.last() is None, "nothing was sent, and nothing given up"
