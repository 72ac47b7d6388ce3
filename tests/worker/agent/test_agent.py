"""The agent with real processes and a fake trainer: what users see of a run's life."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil

from app.codestate import checkout
from app.lifecycle import Intent, Reason, RunState
from tests.worker.eventually import eventually
from worker.agent import signals
from worker.launch.local import PACKAGES

ENDLESS = {"steps": 10**6}


def kinds(farm, run_id):
    return [event.kind for event in farm.store.events.list(run_id, 0, 1000)]


def test_a_run_trains_to_its_end_and_everything_it_said_is_kept(farm):
    run_id = farm.submit(steps=20)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason) == (RunState.succeeded, Reason.completed)
    assert run.attempt == 1
    assert run.progress["step"] == 20
    assert run.result["last"] == {"step": 20}
    assert run.devices == ["cpu"]
    assert run.environment["python"] == "3"
    assert set(run.environment) == {"python", *checkout(PACKAGES)}
    series = farm.store.metrics.series(run_id, ["val_loss"], 1000, lineage=False)
    assert [point[0] for point in series["val_loss"]] == list(range(1, 21))
    assert "fake trainer starts" in farm.store.logs.read(run_id, None, 0, 10**6).text
    assert {"state", "phase", "applied", "checkpoint"} <= set(kinds(farm, run_id))
    (attempt,) = farm.store.attempts.list(run_id)
    assert attempt.exit_code == 0
    assert farm.left_running() == []


def test_stop_saves_and_ends_the_run(farm):
    run_id = farm.submit(**ENDLESS)
    farm.wait_for_step(run_id, 3)
    farm.want(run_id, Intent.stop)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason) == (RunState.stopped, Reason.stop_requested)
    latest = farm.store.checkpoints.resolve(run_id, "latest")
    assert latest.step == run.progress["step"]
    assert farm.left_running() == []


def test_a_slot_tells_what_its_run_has_of_the_hosts_memory(farm):
    def held():
        (worker,) = farm.store.workers.list(alive_only=True)
        return worker.slots[0]["host_memory_bytes"]

    run_id = farm.submit(**ENDLESS)
    assert eventually(held, "the trainer has said what it has") == 10_000_000
    farm.want(run_id, Intent.stop)
    farm.wait_for_end(run_id)
    assert eventually(lambda: held() is None, "the slot is free")


def test_a_stop_is_felt_without_waiting_for_the_beat(make_farm):
    farm = make_farm()
    farm.start_agent(STOKER_BEAT_SECONDS="60")
    run_id = farm.submit(**ENDLESS)
    trainer = farm.trainer()
    eventually((farm.folder(run_id) / "events.jsonl").exists, "the trainer has begun")
    farm.want(run_id, Intent.stop)
    assert farm.wait_for_end(run_id).state is RunState.stopped
    assert not psutil.pid_exists(trainer.pid)


def test_a_first_step_is_told_without_waiting_for_the_beat(make_farm):
    farm = make_farm()
    farm.start_agent(STOKER_BEAT_SECONDS="60")
    run_id = farm.submit(**ENDLESS, pace=0.3)
    farm.wait_for_step(run_id, 1)
    assert farm.step(run_id) < 100, "a minute of steps lies between two beats"
    farm.want(run_id, Intent.stop)
    assert farm.wait_for_end(run_id).state is RunState.stopped


def test_a_paused_run_goes_on_from_where_it_was(farm):
    run_id = farm.submit(steps=100, pace=0.02)
    farm.wait_for_step(run_id, 3)
    farm.want(run_id, Intent.pause)
    paused = farm.wait_for_end(run_id)
    assert (paused.state, paused.reason) == (RunState.paused, Reason.pause_requested)
    assert paused.message == "The trainer was asked to pause; it saved and ended."
    farm.store.runs.resume(run_id)
    eventually(lambda: farm.run(run_id).attempt == 2, "the second attempt begins")
    assert farm.wait_for_end(run_id).state is RunState.succeeded
    attempts = {attempt.number: attempt for attempt in farm.store.attempts.list(run_id)}
    assert attempts[2].resumed_from_step == paused.progress["step"]


def test_only_what_the_spec_keeps_stays_on_disk_and_in_the_store(farm):
    """Of eight checkpoints with an ever better val_loss, the newest two are also the best."""
    run_id = farm.submit(steps=40, pace=0.02, checkpoint={"keep_last": 2, "keep_best": 1})
    farm.wait_for_end(run_id)
    assert [row.step for row in farm.store.checkpoints.list(run_id)] == [40, 35]
    folders = {path.name for path in farm.folder(run_id).glob("checkpoints/*")}
    assert folders == {"step-40", "step-35"}


def test_kill_does_not_wait_for_the_grace_time(make_farm):
    farm = make_farm(stop_grace_seconds=3600.0)
    farm.start_agent()
    run_id = farm.submit(**ENDLESS, on_stop="ignore")
    farm.wait_for_step(run_id, 1)
    farm.want(run_id, Intent.stop)
    farm.want(run_id, Intent.kill)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason) == (RunState.stopped, Reason.kill_requested)


def test_a_trainer_that_ignores_the_stop_is_killed_after_the_grace_time(make_farm):
    farm = make_farm()
    farm.start_agent(STOKER_STOP_GRACE_SECONDS="0.5")
    run_id = farm.submit(**ENDLESS, on_stop="ignore")
    farm.wait_for_step(run_id, 1)
    farm.want(run_id, Intent.stop)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason) == (RunState.stopped, Reason.stop_requested)
    (attempt,) = farm.store.attempts.list(run_id)
    assert attempt.exit_code == -signal.SIGKILL
    assert "0.5 seconds" in attempt.message


def test_a_stop_that_arrives_while_the_trainer_exits_is_not_lost(farm):
    """Whatever comes first, the run ends in one clear state and is not tried again."""
    for step in (1, 2, 3):
        run_id = farm.submit(steps=3, at={"3": "crash"}, policy={"max_retries": 1000})
        eventually(lambda run=run_id, s=step: farm.step(run) >= s or farm.run(run).attempt > 1, "")
        farm.want(run_id, Intent.stop)
        run = farm.wait_for_end(run_id)
        assert run.state in (RunState.stopped, RunState.succeeded)
    assert farm.left_running() == []


def test_several_slots_train_several_runs_at_once(make_farm):
    farm = make_farm()
    farm.start_agent(STOKER_SLOTS="2")
    runs = [farm.submit(**ENDLESS) for _ in range(3)]
    eventually(lambda: len(farm.processes("fake_trainer.py")) == 2, "two trainers run")
    assert farm.run(runs[2]).state is RunState.queued
    (worker,) = farm.store.workers.list(alive_only=True)
    assert {slot["run_id"] for slot in worker.slots} <= {None, *runs}
    farm.want(runs[0], Intent.stop)
    eventually(lambda: farm.run(runs[2]).state is RunState.running, "the third run starts")


def test_two_agents_share_one_database_and_never_a_run(make_farm):
    farm = make_farm(beat_seconds=1.0)  # a busy machine must not make one look dead to the other
    farm.start_agent()
    farm.start_agent()
    runs = [farm.submit(steps=30, pace=0.02) for _ in range(6)]
    ended = [farm.wait_for_end(run_id) for run_id in runs]
    assert [run.state for run in ended] == [RunState.succeeded] * 6
    assert [run.attempt for run in ended] == [1] * 6
    assert len({run.worker for run in ended}) == 2
    told = [worker.beat_seconds for worker in farm.store.workers.list(alive_only=True)]
    assert told == [1.0, 1.0], "others count an agent's silence in its own interval"


def test_a_second_agent_runs_without_an_exporter_when_its_port_is_taken(make_farm):
    farm = make_farm()
    farm.start_agent()
    (first,) = farm.store.workers.list(alive_only=True)
    port = first.facts["metrics_url"].rsplit(":", 1)[1].split("/")[0]
    farm.start_agent(STOKER_EXPORTER_PORT=port)
    urls = [worker.facts["metrics_url"] for worker in farm.store.workers.list(alive_only=True)]
    assert sorted(urls, key=str) == sorted([first.facts["metrics_url"], None], key=str)
    whys = {worker.facts["why_no_metrics"] for worker in farm.store.workers.list(alive_only=True)}
    (why,) = whys - {None}
    assert f":{port} cannot be had" in why
    assert "STOKER_EXPORTER_PORT" in why


def test_a_drained_agent_saves_its_run_and_leaves_nothing(farm):
    run_id = farm.submit(**ENDLESS)
    farm.wait_for_step(run_id, 3)
    (agent,) = farm.agents
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=60) == 0
    run = farm.run(run_id)
    assert (run.state, run.reason, run.retries_used) == (RunState.queued, Reason.drained, 0)
    assert farm.store.checkpoints.resolve(run_id, "latest").step == run.progress["step"]
    assert [worker.state for worker in farm.store.workers.list(alive_only=False)] == ["gone"]
    assert farm.left_running() == []


def test_a_second_signal_kills(farm):
    run_id = farm.submit(**ENDLESS, on_stop="ignore")
    farm.wait_for_step(run_id, 1)
    (agent,) = farm.agents
    agent.send_signal(signal.SIGTERM)
    eventually(
        lambda: [w.state for w in farm.store.workers.list(alive_only=False)] == ["draining"],
        "the agent drains",
    )
    agent.send_signal(signal.SIGINT)
    assert agent.wait(timeout=60) == 0
    assert farm.run(run_id).reason is Reason.drained
    assert farm.left_running() == []


def test_further_signals_do_not_prolong_the_wait(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    heard = signals.Signals()
    late = []
    try:
        for now[0] in (100.0, 200.0, 215.0):
            signal.raise_signal(signal.SIGINT)
            heard.read()
        for now[0] in (219.0, 221.0):
            late.append(heard.is_overdue())
    finally:
        heard.close()
    assert heard.seen == 3
    assert late == [False, True], "20 seconds after the second"


def test_a_host_that_refuses_is_told_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker"],
        env=os.environ | {"STOKER_HOME": str(tmp_path), "STOKER_DATA_ROOT": f"{tmp_path}/file/x"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("stoker worker: this host refuses")
    assert "file/x" in done.stderr
    assert "Traceback" not in done.stderr
