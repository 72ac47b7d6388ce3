"""At most one trainer of a run, when the agent, the database or the host stands still.

The launcher ends its own before anybody else can have taken the run.
"""

import json
import shutil
import signal
import subprocess
import time
from contextlib import closing

import psutil
import pytest
from sqlalchemy import text

from app.lifecycle import LEASE_BEATS, Intent, Reason, RunState
from app.settings import load_settings
from app.store.artifact_root import MARKER
from app.store.engine.database import Database
from app.store.engine.sqlite import driver
from tests.store.server import FreezingProxy, PostgresServer
from tests.worker.eventually import eventually
from tests.worker.launch.test_launcher import ENDLESS, attempt  # noqa: F401 - a fixture
from worker.launch.lease_term import lease_term, lock_patience
from worker.protocol import LeaseTerm, boottime

IGNORES = {**ENDLESS, "on_stop": "ignore"}


def term_of(seconds, saving=0.0):
    kill_at = boottime() + seconds
    return LeaseTerm(stop_at=kill_at - saving, kill_at=kill_at)


def test_the_trainer_is_gone_before_an_observer_can_have_counted_to_the_end(tmp_path):
    settings = load_settings(home=tmp_path, beat_seconds=2.0, stop_grace_seconds=60.0)
    assert LEASE_BEATS == 15
    assert lease_term(100.0, settings) == pytest.approx((100 + 28 * 2 / 3, 128.0))
    short = load_settings(home=tmp_path, beat_seconds=2.0, stop_grace_seconds=5.0)
    assert lease_term(100.0, short) == pytest.approx((123.0, 128.0))


def test_a_trainer_whose_lease_term_ends_saves_and_ends(attempt):  # noqa: F811
    one = attempt(ENDLESS, grace=3600).start(lease_term=term_of(3600, saving=3598))
    assert one.hear("lapsed") is True
    assert one.wait()["returncode"] == 0
    assert list(one.folder.glob("checkpoints/step-*/manifest.json"))


def test_one_that_does_not_stop_is_killed_when_the_lease_term_is_over(attempt):  # noqa: F811
    one = attempt(IGNORES, grace=3600).start(lease_term=term_of(4, saving=1))
    assert one.wait()["returncode"] == -signal.SIGKILL


def test_each_stored_beat_moves_the_end(attempt):  # noqa: F811
    first = term_of(6, saving=0.5)
    one = attempt(ENDLESS).start(lease_term=first)
    one.hear("started")
    one.launched.hold(term_of(3600))
    while boottime() < first.kill_at + 2:
        time.sleep(0.1)
    assert psutil.Process(one.hear("started")).status() != psutil.STATUS_ZOMBIE
    assert not any("lapsed" in message for message in one.messages)


def test_what_is_over_before_the_trainer_has_started_starts_none(attempt):  # noqa: F811
    one = attempt(ENDLESS).start(lease_term=term_of(-1))
    assert one.hear("lapsed") is True
    assert one.wait() is None
    assert not (one.folder / "events.jsonl").exists()


@pytest.mark.namespaces
def test_time_goes_on_while_the_host_is_asleep(attempt, monkeypatch):  # noqa: F811
    """The clock of a suspended host has jumped when it wakes; other timers have stood still."""
    asleep = ["unshare", "--time", "--boottime", "86400"]
    if subprocess.run([*asleep, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("clocks of one's own need the rights of an administrator")
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **how: popen([*asleep, *command], **how)
    )
    one = attempt(IGNORES, grace=3600).start(lease_term=term_of(3600))
    assert one.hear("lapsed") is True


def started_at(folder):
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[0])["t"] if lines else None


def ended_at(folder):
    return json.loads((folder / "exit.json").read_text())["finished_at"]


def test_a_run_of_an_agent_that_stands_still_goes_to_another(make_farm):
    farm = make_farm(stop_grace_seconds=3600.0)
    stopped = farm.start_agent()
    run_id = farm.submit(steps=10**6, pace=0.02, on_stop="ignore")
    farm.wait_for_step(run_id, 3)
    farm.start_agent()
    farm.stop_still(stopped)
    try:
        farm.wait_for_attempt(run_id, 2)
        again = eventually(lambda: started_at(farm.folder(run_id, 2)), "it is trained again")
        assert ended_at(farm.folder(run_id, 1)) < again
        assert farm.store.attempts.list(run_id)[0].reason is Reason.worker_lost
    finally:
        stopped.send_signal(signal.SIGCONT)
    eventually(lambda: "before this was told" in farm.log() or "lease lost" in farm.log(), "")
    assert farm.run(run_id).attempt == 2
    farm.want(run_id, Intent.kill)
    assert farm.wait_for_end(run_id).state is RunState.stopped


@pytest.fixture(scope="module")  # set up before any farm, and stopped after it
def postgres():
    server = PostgresServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.mark.postgres
def test_a_locked_run_takes_no_beat_of_another(make_farm, postgres):
    url = postgres.new_database()
    farm = make_farm(database_url=url, beat_seconds=2.0)
    farm.start_agent(STOKER_SLOTS="2")
    locked, other = (farm.submit(steps=10**6, pace=0.02) for _ in range(2))
    farm.wait_for_step(locked, 3)
    farm.wait_for_step(other, 3)
    (worker,) = farm.store.workers.list(alive_only=True)
    somebody = Database(farm.settings, may_last=True)
    with closing(somebody), somebody.engine.connect() as connection:
        row = {"id": locked}
        connection.execute(text("SELECT id FROM runs WHERE id = :id FOR UPDATE"), row)
        before = farm.step(other)
        eventually(lambda: farm.step(other) > before, "the other run is beaten")
        before = farm.step(other)
        eventually(lambda: farm.step(other) > before, "and again")
        connection.rollback()
    assert "out of reach" not in farm.log()
    (after,) = farm.store.workers.list(alive_only=True)
    assert after.beat > worker.beat
    before = farm.step(locked)
    eventually(lambda: farm.step(locked) > before, "the locked run goes on")
    assert (farm.run(locked).attempt, farm.run(other).attempt) == (1, 1)


@pytest.mark.postgres
def test_runs_that_are_all_locked_take_no_lease_of_the_last_one(make_farm, postgres):
    """Its beat comes after theirs: if each waited for five seconds, its lease would be over."""
    url = postgres.new_database()
    farm = make_farm(database_url=url, beat_seconds=1.0)
    farm.start_agent(STOKER_SLOTS="6")
    *locked, last = (farm.submit(steps=10**6, pace=0.1) for _ in range(6))
    for run_id in (*locked, last):
        farm.wait_for_step(run_id, 3)
    somebody = Database(farm.settings, may_last=True)
    with closing(somebody), somebody.engine.connect() as connection:
        for run_id in locked:
            row = {"id": run_id}
            connection.execute(text("SELECT id FROM runs WHERE id = :id FOR UPDATE"), row)
        for _ in range(3):
            before = farm.step(last)
            eventually(lambda before=before: farm.step(last) > before, "the last one is beaten")
        connection.rollback()
    assert farm.run(last).attempt == 1


@pytest.mark.postgres
def test_checkpoints_that_are_all_locked_take_no_lease_of_the_last_run(make_farm, postgres):
    """A beat of a run that has saved asks for the removal of its old checkpoints, too."""
    url = postgres.new_database()
    farm = make_farm(database_url=url, beat_seconds=1.0)
    farm.start_agent(STOKER_SLOTS="6")
    kept = {"keep_last": 1, "every_steps": 20}
    saving = [farm.submit(steps=10**6, pace=0.1, save_every=20, checkpoint=kept) for _ in range(5)]
    last = farm.submit(steps=10**6, pace=0.1, save_every=10**6)
    for run_id in saving:
        farm.wait_for_step(run_id, 25)
    farm.wait_for_step(last, 3)
    somebody = Database(farm.settings, may_last=True)
    with closing(somebody), somebody.engine.connect() as connection:
        connection.execute(text("SELECT id FROM checkpoints FOR UPDATE"))
        for run_id in saving:
            before = farm.step(run_id)
            eventually(lambda run_id=run_id, least=before + 20: farm.step(run_id) > least, "saves")
        for _ in range(3):
            before = farm.step(last)
            eventually(lambda before=before: farm.step(last) > before, "the last one is beaten")
        connection.rollback()
    assert "a run is locked in the database" in farm.log()
    assert [farm.run(run_id).attempt for run_id in (*saving, last)] == [1] * 6


def test_the_locks_of_all_runs_take_a_third_of_a_lease_together(tmp_path):
    settings = load_settings(home=tmp_path, beat_seconds=2.0)
    assert lock_patience(settings, 1) == 5.0
    assert lock_patience(settings, 8) == pytest.approx(10 / 8)


def test_a_sqlite_file_that_somebody_locks_for_longer_than_a_lease_costs_no_attempt(make_farm):
    farm = make_farm(beat_seconds=1.0)  # a shorter lease lapses where other tests want the cores
    for _ in range(2):
        farm.start_agent()
    run_id = farm.submit(steps=10**6, pace=0.02)
    farm.wait_for_step(run_id, 3)
    trainer = farm.trainer()
    somebody = driver.connect(str(farm.home / "stoker.db"))
    with closing(somebody):
        somebody.isolation_level = None
        somebody.execute("BEGIN IMMEDIATE")
        over = lease_term(boottime(), farm.settings).kill_at
        while boottime() < over + 2:
            time.sleep(0.1)
        assert "out of reach" in farm.log()
        assert trainer.is_running()
    before = farm.step(run_id)
    eventually(lambda: farm.step(run_id) > before, "the run is beaten again")
    assert farm.run(run_id).attempt == 1
    assert trainer.is_running()


@pytest.mark.postgres
def test_at_most_one_trainer_while_the_database_is_frozen_for_its_agent(make_farm, postgres):
    """Two hosts that share the database alone: no lock is between them."""
    url = postgres.new_database()
    with closing(FreezingProxy(url)) as proxy:
        farm = make_farm(database_url=url, beat_seconds=0.5, stop_grace_seconds=3600.0)
        frozen = farm.start_agent(STOKER_DATABASE_URL=proxy.url)
        run_id = farm.submit(steps=10**6, pace=0.02, save_every=10**6, on_stop="ignore")
        farm.wait_for_step(run_id, 3)
        other = farm.home.with_name("other-host")
        (other / "artifacts").mkdir(parents=True)
        shutil.copy(farm.settings.artifact_root / MARKER, other / "artifacts" / MARKER)
        farm.start_agent(STOKER_HOME=str(other))
        proxy.freeze()
        farm.wait_for_attempt(run_id, 2)
        second = other / "artifacts" / "runs" / str(run_id) / "attempt-2"
        again = eventually(lambda: started_at(second), "the other host trains it")
        assert ended_at(farm.folder(run_id, 1)) < again
        proxy.thaw()
        # The other host has no slot left: the agent that was cut off goes on as if nothing was.
        assert farm.wait_for_end(farm.submit(steps=3)).state is RunState.succeeded
        assert frozen.poll() is None
        assert farm.run(run_id).attempt == 2
        farm.want(run_id, Intent.kill)
        assert farm.wait_for_end(run_id).state is RunState.stopped
