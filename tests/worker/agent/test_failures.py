"""What goes wrong: each part killed, hangs, crash loops, lost leases, an unreachable database."""

import json
import os
import resource
import signal
import time
from contextlib import closing

import psutil
import pytest
from sqlalchemy import text

from app.lifecycle import CRASH_LOOP_LOSSES, Intent, Reason, RunState
from app.store.engine.clock import Clock
from app.store.engine.sqlite import driver
from app.store.runs.expiry import KEEP_SECONDS
from app.store.store import open_store
from app.store.worker_records import NewWorker
from tests.worker.eventually import eventually


def attempts(farm, run_id):
    ended = farm.store.attempts.list(run_id)
    return {attempt.number: attempt for attempt in ended}


@pytest.mark.parametrize(
    ("how", "reason"),
    [("crash", Reason.crashed), ("segfault", Reason.crashed), ("kill", Reason.killed),
     ("silent_exit", Reason.crashed)],
)  # fmt: skip
def test_a_trainer_that_dies_is_tried_again_from_its_checkpoint(farm, how, reason):
    run_id = farm.submit(steps=20, at={"12": how})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt, run.retries_used) == (RunState.succeeded, 2, 1)
    first, second = attempts(farm, run_id)[1], attempts(farm, run_id)[2]
    assert first.reason is reason
    assert second.resumed_from_step == 10
    if how == "crash":
        assert "the fake trainer fails on purpose" in first.message


def test_a_killed_launcher_takes_its_trainer_along_and_the_run_goes_on(farm):
    run_id = farm.submit(steps=60, pace=0.03, at={"2": "daemon"})
    farm.wait_for_step(run_id, 6)
    trainer = farm.trainer()
    farm.launcher().kill()
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt) == (RunState.succeeded, 2)
    assert attempts(farm, run_id)[1].reason is Reason.killed
    assert not psutil.pid_exists(trainer.pid)
    assert farm.left_running() == [], "the daemon of the killed trainer is gone as well"


def test_a_killed_agent_costs_no_work(farm):
    run_id = farm.submit(steps=200, pace=0.02)
    farm.wait_for_step(run_id, 6)
    (agent,) = farm.agents
    agent.kill()
    agent.wait()
    eventually(lambda: farm.left_running() == [], "the launcher ends the trainer")
    saved = max(int(p.name[5:]) for p in farm.folder(run_id).glob("checkpoints/step-*"))
    farm.start_agent()
    assert farm.wait_for_end(run_id).state is RunState.succeeded
    first, second = attempts(farm, run_id)[1], attempts(farm, run_id)[2]
    assert first.reason is Reason.worker_lost
    assert second.resumed_from_step == saved, "what was saved after the agent's death is adopted"


def test_a_daemon_of_a_trainer_is_reaped_before_the_slot_is_free(farm):
    run_id = farm.submit(steps=5, at={"2": "daemon"})
    assert farm.wait_for_end(run_id).state is RunState.succeeded
    daemon = int((farm.folder(run_id).parent / "daemon").read_text())
    assert not psutil.pid_exists(daemon)


def test_a_hang_is_dumped_killed_and_tried_again(farm):
    policy = {"hang_timeout_seconds": 5.0}
    run_id = farm.submit(steps=20, pace=0.1, at={"12": "hang"}, policy=policy)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt) == (RunState.succeeded, 2)
    assert attempts(farm, run_id)[1].reason is Reason.hang
    log = farm.store.logs.read(run_id, 1, 0, 10**6).text
    assert "most recent call first" in log
    assert "surprise" in log, "the stacks show where it hung"


def test_attempts_without_progress_are_a_crash_loop(farm):
    run_id = farm.submit(steps=20, at={"2": "crash"}, always=True, policy={"max_retries": 1000})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason) == (RunState.failed, Reason.crash_loop)
    assert run.attempt == CRASH_LOOP_LOSSES


@pytest.mark.parametrize("what", ["fifo", "endless"])
def test_a_run_whose_files_are_no_files_any_more_is_killed_as_any_other(farm, what):
    run_id = farm.submit(steps=10**6, pace=0.02, at={"12": what})
    farm.wait_for_step(run_id, 5)
    eventually(lambda: "file_replaced" in warnings_of(farm, run_id), "a warning names the file")
    asked = time.monotonic()
    farm.want(run_id, Intent.kill)
    assert farm.wait_for_end(run_id).state is RunState.stopped
    assert time.monotonic() - asked < 30
    after = farm.submit(steps=3)
    assert farm.wait_for_end(after).state is RunState.succeeded, "the slot is free"


def warnings_of(farm, run_id):
    return [one.data["code"] for one in farm.store.events.list(run_id) if one.kind == "warning"]


def test_retries_end_when_their_budget_is_spent(farm):
    script = {"steps": 30, "save_every": 100, "at": {"7": "crash", "13": "crash"}}
    run_id = farm.submit(**script, policy={"max_retries": 1})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason, run.attempt) == (RunState.failed, Reason.crashed, 2)


def test_an_attempt_that_saved_gives_the_budget_back(farm):
    script = {"steps": 30, "save_every": 5, "at": {"7": "crash", "13": "crash", "22": "crash"}}
    run_id = farm.submit(**script, policy={"max_retries": 1})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt, run.retries_used) == (RunState.succeeded, 4, 1)


def test_a_lost_lease_kills_the_trainer_at_once(farm):
    run_id = farm.submit(steps=10**6, on_stop="ignore")
    farm.wait_for_step(run_id, 3)
    trainer = farm.trainer()
    (holder,) = farm.store.leases.holders()
    eventually(
        lambda: farm.store.leases.declare_lost(
            holder.token, next(h.beat for h in farm.store.leases.holders())
        ),
        "the lease is declared lost",
    )
    eventually(lambda: not psutil.pid_exists(trainer.pid), "the trainer is killed")
    farm.wait_for_attempt(run_id, 2)
    farm.want(run_id, Intent.kill)
    assert farm.wait_for_end(run_id).state is RunState.stopped


def rename_table(farm, before, after):
    """Make every statement about runs fail, as it does when the database is out of reach."""
    with closing(driver.connect(farm.home / "stoker.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA legacy_alter_table = ON")
        connection.execute(f"ALTER TABLE {before} RENAME TO {after}")


def test_training_outlives_a_short_outage_and_is_saved_in_a_long_one(farm):
    run_id = farm.submit(steps=10**6, pace=0.02)
    farm.wait_for_step(run_id, 3)
    trainer = farm.trainer()
    rename_table(farm, "runs", "away")
    eventually(lambda: "out of reach" in farm.log(), "the agent notices")
    assert trainer.is_running()
    eventually(lambda: not psutil.pid_exists(trainer.pid), "the lease lapses")
    assert (farm.folder(run_id) / "checkpoints").is_dir()
    rename_table(farm, "away", "runs")
    farm.wait_for_attempt(run_id, 2)
    first = attempts(farm, run_id)[1]
    assert first.reason is Reason.interrupted
    assert "out of reach" in first.message


def test_a_run_that_does_not_fit_this_host_fails_with_a_sentence(farm):
    run_id = farm.submit(steps=5)
    with farm.store.database.write() as connection:
        connection.execute(text("UPDATE datasets SET fields = :fields"), {"fields": "{}"})
    again = farm.submit(steps=5)
    run = farm.wait_for_end(again)
    assert farm.wait_for_end(run_id).state in (RunState.succeeded, RunState.failed)
    assert (run.state, run.reason) == (RunState.failed, Reason.spec_error)
    assert "features" in run.message
    assert not farm.folder(again).exists()


def test_sigterm_from_outside_is_a_free_retry(farm):
    run_id = farm.submit(steps=200, pace=0.02)
    farm.wait_for_step(run_id, 3)
    os.kill(farm.trainer().pid, signal.SIGTERM)
    farm.wait_for_attempt(run_id, 2)
    run = farm.wait_for_end(run_id)
    assert (run.state, run.retries_used) == (RunState.succeeded, 0)
    assert attempts(farm, run_id)[1].reason is Reason.interrupted


def test_an_error_of_one_attempt_ends_that_attempt_and_no_other(make_farm):
    farm = make_farm()
    farm.start_agent(STOKER_SLOTS="2")
    broken, other = (farm.submit(steps=10**6, pace=0.02) for _ in range(2))
    farm.wait_for_step(broken, 3)
    farm.wait_for_step(other, 3)
    events = farm.folder(broken) / "events.jsonl"
    events.rename(events.with_suffix(".away"))
    events.symlink_to(events)
    farm.wait_for_attempt(broken, 2)
    first = attempts(farm, broken)[1]
    assert first.reason is Reason.crashed
    assert "events.jsonl" in first.message
    farm.wait_for_step(other, farm.step(other) + 3)
    assert farm.run(other).attempt == 1


def test_no_attempt_ends_while_its_trainer_lives(make_farm):
    farm = make_farm(stop_grace_seconds=1.0)
    farm.start_agent(PULSE_UNREADABLE="1")
    run_id = farm.submit(pace=3600, on_stop="ignore", policy={"max_retries": 0})
    run = farm.wait_for_end(run_id)
    assert farm.processes("worker.launch.launcher") == []
    assert (run.state, run.reason) == (RunState.failed, Reason.crashed)
    assert "pulse" in run.message


def test_a_host_short_of_descriptors_costs_no_run_and_no_agent(make_farm):
    farm = make_farm(beat_seconds=2.0)  # the lease outlasts the shortage
    agent = farm.start_agent(STOKER_SLOTS="2")
    run_id = farm.submit(steps=10**6, pace=0.02)
    farm.wait_for_step(run_id, 3)
    _, most = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    before = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, most))
    seen = len(farm.log())
    queued = farm.submit(steps=3)
    eventually(lambda: "Too many open files" in farm.log()[seen:], "the agent feels it")
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, before)
    assert farm.wait_for_end(queued).state is RunState.succeeded
    assert agent.poll() is None
    assert farm.run(run_id).attempt == 1


def test_a_lease_that_is_lost_between_beat_and_retention_kills_at_once(make_farm):
    farm = make_farm(stop_grace_seconds=3600.0)
    farm.start_agent()
    with closing(driver.connect(farm.home / "stoker.db", isolation_level=None)) as connection:
        connection.execute(
            "CREATE TRIGGER lose AFTER INSERT ON checkpoints WHEN NEW.step = 10 BEGIN "
            "UPDATE runs SET lease_token = 'another' WHERE id = NEW.run_id; END"
        )
    keeps = {"keep_last": 1, "keep_best": 0}
    farm.submit(steps=11, pace=0.1, on_stop="ignore", at={"11": "hang"}, checkpoint=keeps)
    trainer = farm.trainer()
    holders = farm.store.leases.holders
    eventually(lambda: [h.token for h in holders()] == ["another"], "the lease is lost")
    eventually(lambda: not psutil.pid_exists(trainer.pid), "the trainer is killed")
    assert "cannot be recorded" in farm.log(), "retention saw it"
    assert "an attempt fails here" not in farm.log(), "no stop was asked for first"


def test_a_run_that_has_vanished_costs_the_agent_nothing_but_the_attempt(make_farm):
    farm = make_farm()
    farm.start_agent(STOKER_BEAT_SECONDS="5")
    run_id = farm.submit(steps=10**6, pace=0.02)
    trainer = farm.trainer()
    with closing(driver.connect(farm.home / "stoker.db", isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in triggers.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM runs WHERE id = ?", (run_id,))
    trainer.kill()
    eventually(lambda: "lease lost" in farm.log() or "cannot be recorded" in farm.log(), "")
    assert farm.wait_for_end(farm.submit(steps=3)).state is RunState.succeeded


def test_an_end_that_cannot_be_stored_is_tried_again_at_beats_only(farm):
    run_id = farm.submit(steps=10**6, pace=0.02)
    farm.wait_for_step(run_id, 3)
    rename_table(farm, "runs", "away")
    farm.trainer().kill()
    eventually(lambda: farm.processes("worker.launch.launcher") == [], "the attempt is over")
    rename_table(farm, "away", "runs")
    farm.wait_for_attempt(run_id, 2)
    assert attempts(farm, run_id)[1].reason is Reason.killed


def test_a_run_that_only_a_gpu_can_train_waits_for_another_worker(make_farm):
    farm = make_farm()
    run_id = farm.submit(steps=5, runtime={"precision": "tf32"})
    farm.start_agent()
    eventually(lambda: farm.run(run_id).retry_at is not None, "it goes back into the queue")
    run = farm.run(run_id)
    assert (run.state, run.reason, run.retries_used) == (RunState.queued, Reason.slot_busy, 0)
    assert "worker with a GPU" in run.message
    assert run.retry_at - farm.store.attempts.list(run_id)[0].finished_at >= 30


def test_a_launcher_that_cannot_start_its_trainer_says_why(make_farm):
    farm = make_farm()
    farm.start_agent(FAKE_TRAINER="/does/not/exist")
    run_id = farm.submit(steps=5, policy={"max_retries": 0})
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason) == (RunState.failed, Reason.crashed)
    assert "/does/not/exist" in run.message


def test_a_worker_that_was_forgotten_registers_anew_and_trains_on(make_farm):
    """What a week without the database leads to: run and worker declared lost, the row deleted."""
    farm = make_farm(beat_seconds=0.5)
    agent = farm.start_agent()
    run_id = farm.submit(steps=200, pace=0.02)
    farm.wait_for_step(run_id, 6)
    (before,) = farm.store.workers.list(alive_only=True)

    def lose_run():
        (holder,) = farm.store.leases.holders()
        return farm.store.leases.declare_lost(holder.token, holder.beat)

    eventually(lose_run, "the run is declared lost between two beats")

    class NextWeek(Clock):
        def __call__(self):
            return time.time() + KEEP_SECONDS + 60

    next_week = open_store(farm.settings, NextWeek())

    def forget():
        (worker,) = [w for w in farm.store.workers.list() if w.id == before.id]
        farm.store.workers.declare_lost(worker.id, worker.beat)
        process = ("elsewhere", "boot", 1, 1.0, "0")
        other = next_week.workers.register(NewWorker("other", *process))
        farm.store.workers.set_state(other, "gone")
        return before.id not in [w.id for w in farm.store.workers.list()]

    with closing(next_week):
        eventually(forget, "the worker is forgotten between two beats")
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt) == (RunState.succeeded, 2)
    assert attempts(farm, run_id)[2].resumed_from_step >= 5
    (after,) = farm.store.workers.list(alive_only=True)
    assert (after.pid, after.name) == (agent.pid, before.name)
    assert after.id > before.id
    assert "Traceback" not in farm.log()


def test_a_training_that_was_complete_when_its_worker_was_lost_is_not_repeated(make_farm):
    farm = make_farm(beat_seconds=1.0)  # the lease outlasts the training
    farm.start_agent()
    run_id = farm.submit(steps=60, pace=0.03)
    farm.wait_for_step(run_id, 3)
    rename_table(farm, "runs", "away")
    eventually(lambda: farm.processes("worker.launch.launcher") == [], "the training is over")
    (agent,) = farm.agents
    agent.kill()
    agent.wait()
    rename_table(farm, "away", "runs")
    farm.start_agent()
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason, run.attempt) == (RunState.succeeded, Reason.completed, 2)
    assert attempts(farm, run_id)[1].reason is Reason.worker_lost
    assert (run.result["last"], run.progress["step"]) == ({"step": 60}, 60)
    assert "Attempt 1" in run.message
    assert not farm.folder(run_id, 2).exists(), "no second trainer was started"
    assert farm.store.checkpoints.resolve(run_id, "latest").step == 60


def test_only_the_end_of_a_lost_attempt_counts_as_this_runs(farm):
    """A folder may be left of another run, as after the database was made anew."""
    stale = farm.folder(1)
    stale.mkdir(parents=True)
    end = {"t": 1.0, "kind": "end", "reason": "completed", "message": "", "result": {"last": {}}}
    (stale / "events.jsonl").write_text(json.dumps(end) + "\n")
    run_id = farm.submit(steps=5)
    assert run_id == 1
    run = farm.wait_for_end(run_id)
    assert (run.state, run.result["last"]) == (RunState.succeeded, {"step": 5})
    assert run.attempt == 1


def test_what_ended_by_itself_stays_so_when_the_worker_is_drained_before_it_is_stored(farm):
    run_id = farm.submit(steps=10**6, pace=0.02, save_every=10**6)
    farm.wait_for_step(run_id, 3)
    launcher = farm.launcher()
    rename_table(farm, "runs", "away")
    farm.trainer().kill()
    eventually(lambda: not psutil.pid_exists(launcher.pid), "the agent has reaped it, and judged")
    (agent,) = farm.agents
    agent.terminate()
    eventually(lambda: "draining" in farm.log(), "the agent drains")
    rename_table(farm, "away", "runs")
    assert agent.wait(timeout=60) == 0
    run = farm.run(run_id)
    assert (run.state, run.reason, run.losses) == (RunState.queued, Reason.killed, 1)
