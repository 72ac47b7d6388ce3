"""Several processes on one database: nothing is lost, nothing is given twice."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InternalError

from app.errors import Conflict, Unavailable
from app.lifecycle import Intent, Reason
from app.service.liveness import Observer
from app.settings import Settings
from app.store import Store, open_store
from app.store.checkpoints import mark_removing
from app.store.engine import migrate
from app.store.engine.clock import Clock
from app.store.engine.database import PAUSE_BEFORE_RETRY_SECONDS, retried
from app.store.records import (
    Beat,
    Finish,
    Lease,
    MetricPoint,
    NewCheckpoint,
    NewEvent,
    Restart,
)
from app.store.runs.submission import insert_restart
from app.store.tables import jobs, runs
from tests.store.conftest import CPU, World, new_run
from tests.store.server import CommitBreaker

RACER = Path(__file__).with_name("racer.py")
LATEST = Restart(1, "latest", {"kind": "full", "starts_anew": [], "changed": []})


Race = Callable[..., list[Any]]


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(RACER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=RACER.parents[2],
        env={"PYTHONPATH": str(RACER.parents[2]), "PATH": "/usr/bin:/bin"},
    )


def order(racers: subprocess.Popen[str], settings: Settings, *acts: tuple[str, str]) -> Any:
    assert racers.stdin is not None
    assert racers.stdout is not None
    url = make_url(settings.database_url).render_as_string(hide_password=False)
    racers.stdin.write(json.dumps([str(settings.home), url, acts]) + "\n")
    racers.stdin.flush()
    return json.loads(racers.stdout.readline())


@pytest.fixture(scope="module")
def race() -> Iterator[Race]:
    """What each of the acts gave, done at once by processes of their own."""
    racers = start()
    yield partial(order, racers)
    racers.communicate()
    assert racers.returncode == 0


def test_two_claimers_never_get_the_same_run(world: World, race: Race) -> None:
    ids = [world.submit().id for _ in range(40)]
    claimed = race(world.settings, *[("claim", "")] * 2)
    assert sorted(chain.from_iterable(claimed)) == ids
    assert all(run.attempt == 1 for run in map(world.store.runs.get, ids))


def test_sixteen_writers_lose_nothing(world: World, race: Race) -> None:
    """Four processes of four threads each."""
    made = race(world.settings, *[("submit", "20")] * 4)
    ids = list(chain.from_iterable(made))
    assert len(set(ids)) == 80
    assert world.store.runs.counts_by_state() == {"queued": 80}
    assert all(len(world.store.events.list(run_id)) == 1 for run_id in ids)


def test_one_key_makes_one_run_however_many_ask(world: World, race: Race) -> None:
    answers = race(world.settings, *[("submit_once", "key")] * 4)
    assert len({run_id for run_id, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1


def test_beats_of_many_runs_and_a_stop_go_past_each_other(world: World, race: Race) -> None:
    tokens = [world.running().token for _ in range(2)]
    acts = [("beat", f"{token} 25") for token in tokens]
    assert race(world.settings, *acts, ("stop", "2"))[:2] == [25, 25]
    for run_id in (1, 2):
        events = world.store.events.list(run_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert sum(event.kind == "warning" for event in events) == 25
        assert world.store.logs.read(run_id).text == "".join(f"{i}\n" for i in range(25))
        assert len(world.store.metrics.series(run_id)["val_loss"]) == 25


def test_a_stop_that_races_with_the_end_is_never_lost(world: World, race: Race) -> None:
    """Whoever comes first: a stop that was accepted ends with a stopped run."""
    leases = [world.running() for _ in range(2)]
    acts = [("finish", lease.token) for lease in leases]
    acts += [("stop", str(lease.run_id)) for lease in leases]
    race(world.settings, *acts)
    states = Counter(world.store.runs.get(lease.run_id).state for lease in leases)
    assert states == {"stopped": 2}


def until_one_waits(world: World, call: Future[Any]) -> None:
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    while not call.done():
        with world.store.database.read() as connection:
            if connection.execute(waiting).scalar():
                return
    pytest.fail(f"it did not wait: {call.result()}")


def ended(world: World) -> int:
    """A run that is over."""
    lease = world.running()
    return world.store.leases.finish(lease.token, Finish(Reason.completed, "")).id


@pytest.mark.parametrize(
    "kind", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
class TestARestartAndARemoval:
    """Both want the same checkpoint; each is a transaction on a connection of its own."""

    def test_the_restart_comes_first_and_its_checkpoint_stays(self, world: World) -> None:
        parent, paths = self.saved(world)
        with ThreadPoolExecutor(1) as other:
            with world.store.database.write() as connection:
                child = insert_restart(connection, LATEST, new_run(), world.clock(), None)
                removal = other.submit(self.remove, world, parent, paths)
                until_one_waits(world, removal)
            assert removal.result() == paths[:1]
        assert [point.run_id for point in self.claim(world, child).restore_points] == [parent]
        assert [c.state for c in world.store.checkpoints.list(parent)] == ["saved", "removing"]

    def test_the_removal_comes_first_and_the_restart_takes_another(self, world: World) -> None:
        parent, paths = self.saved(world)
        with ThreadPoolExecutor(1) as other:
            with world.store.database.write() as connection:
                assert mark_removing(connection, parent, paths[1:]) == paths[1:]
                restart = other.submit(world.store.runs.restart, LATEST, new_run())
                until_one_waits(world, restart)
            restart.result()
        newest, oldest = world.store.checkpoints.list(parent)
        assert (newest.state, newest.pinned) == ("removing", False)
        assert (oldest.state, oldest.pinned) == ("saved", True)

    def test_a_run_is_not_deleted_under_a_restart_of_its_restart(self, world: World) -> None:
        parent, _ = self.saved(world)
        child, _ = world.store.runs.restart(LATEST, new_run())
        world.store.runs.set_intent(child.id, Intent.stop)
        with ThreadPoolExecutor(1) as other:
            with world.store.database.write() as connection:
                again = replace(LATEST, parent_id=child.id)
                grandchild = insert_restart(connection, again, new_run(), world.clock(), None)
                deletion = other.submit(world.store.runs.delete, parent)
                until_one_waits(world, deletion)
            with pytest.raises(Conflict, match=f"Run {grandchild}"):
                deletion.result()
        assert [point.run_id for point in self.claim(world, grandchild).restore_points][
            -1
        ] == parent

    def saved(self, world: World) -> tuple[int, list[str]]:
        """A run that is over, and the paths of its two checkpoints, the newest last."""
        lease = world.running()
        paths = [f"runs/1/attempt-1/checkpoints/step-{step}" for step in (1, 2)]
        saved = [NewCheckpoint(i, 0, path, 1, {}, 0.0) for i, path in enumerate(paths)]
        final = Beat(checkpoints=saved)
        world.store.leases.finish(lease.token, Finish(Reason.completed, "", final=final))
        return lease.run_id, paths

    def remove(self, world: World, run_id: int, paths: list[str]) -> list[str]:
        with world.store.database.write() as connection:
            return mark_removing(connection, run_id, paths)

    def claim(self, world: World, run_id: int) -> Lease:
        lease = world.claim()
        assert lease is not None
        assert lease.run_id == run_id
        return lease


@pytest.mark.parametrize(
    "kind", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
class TestPostgres:
    def test_one_answer_tells_of_one_moment(self, world: World) -> None:
        """A run that ends between two statements of a read is not counted twice."""
        lease = world.running()
        running = select(func.count()).select_from(runs).where(runs.c.state == "running")
        with world.store.database.read() as connection:
            assert connection.execute(running).scalar() == 1
            world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
            ended = select(func.count()).select_from(runs).where(runs.c.finished_at.is_not(None))
            assert connection.execute(ended).scalar() == 0

    def test_a_deadlock_is_tried_once_more(self, world: World) -> None:
        """PostgreSQL ends the one that waits first; the other one goes on, and then it does too."""
        first, second = ended(world), ended(world)
        hold = select(runs.c.id).with_for_update()
        with ThreadPoolExecutor(1) as others:
            with world.store.database.write() as connection:
                connection.execute(text("SET LOCAL deadlock_timeout = '60s'"))  # not this one
                connection.execute(hold.where(runs.c.id == second))
                deletion = others.submit(world.store.runs.delete_all, [first, second])
                until_one_waits(world, deletion)
                connection.execute(hold.where(runs.c.id == first))  # until the other is ended
            assert deletion.result() == {}
        assert world.store.runs.finished_counts() == {("succeeded", "completed"): 2}
        assert world.store.runs.counts_by_state() == {}

    def test_what_deadlocks_twice_is_a_sentence(self, world: World) -> None:
        calls = []

        @retried
        def work() -> None:
            calls.append(time.monotonic())
            with world.store.database.write() as connection:
                connection.execute(
                    text("DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$")
                )

        with pytest.raises(Unavailable, match="stoker doctor"):
            work()
        first, second = calls
        assert second - first >= PAUSE_BEFORE_RETRY_SECONDS  # the other one is woken before it

    def test_two_deletions_of_the_same_runs_take_turns(self, world: World) -> None:
        ids = [ended(world) for _ in range(20)]
        with ThreadPoolExecutor(2) as threads:
            both = list(threads.map(world.store.runs.delete_all, (ids, ids[::-1])))
        assert sorted(len(kept) for kept in both) == [0, 20]
        assert world.store.runs.finished_counts() == {("succeeded", "completed"): 20}

    def test_what_hosts_compare_is_the_database_clock(self, world: World) -> None:
        """A host whose clock is a day ahead takes no retry and no job before its time."""

        class Ahead(Clock):
            def __call__(self) -> float:
                return time.time() + 86400.0

        ahead = Store(world.database, Ahead())
        lease = world.running()
        end = Finish(Reason.killed, "", retry_delay_seconds=3600.0)
        Store(world.database).leases.finish(lease.token, end)
        assert ahead.leases.claim(world.worker, [CPU]) is None
        ahead.datasets.register("other", "other.h5")
        job = ahead.jobs.claim(world.worker)
        assert job is not None
        with world.database.write() as connection:
            waits = {"state": "queued", "retry_at": time.time() + 3600.0}
            connection.execute(update(jobs).values(waits))
        assert ahead.jobs.claim(world.worker) is None

    def test_a_read_cannot_write(self, world: World) -> None:
        with pytest.raises(InternalError, match="read-only"), world.store.database.read() as reader:
            reader.execute(delete(runs))

    def test_a_commit_that_was_not_answered_is_said_to_be_unknown(self, world: World) -> None:
        with broken_once(world) as store:
            with pytest.raises(Unavailable, match="not known whether") as error:
                store.runs.create(new_run())
            assert error.value.problem_code == "outcome_unknown"
        assert world.store.runs.counts_by_state() == {"queued": 1}

    def test_a_beat_that_was_not_answered_can_be_sent_again(self, world: World) -> None:
        lease = world.running()
        news = [NewEvent("warning", 1.0, {})]
        points = [MetricPoint("val_loss", 1, 1.0, 0.5)]
        beat = Beat(lease.beats, events=news, log_text="once\n", metric_points=points)
        with broken_once(world) as store:
            with pytest.raises(Unavailable, match="not known whether"):
                store.leases.beat(lease.token, beat)
            world.store.runs.set_intent(lease.run_id, Intent.stop)
            assert store.leases.beat(lease.token, beat) is Intent.stop
        kinds = [event.kind for event in world.store.events.list(lease.run_id)]
        assert kinds.count("warning") == 1
        assert world.store.logs.read(lease.run_id).text == "once\n"


@contextmanager
def broken_once(world: World) -> Iterator[Store]:
    """The same store by a connection that breaks while its next commit is answered."""
    breaker = CommitBreaker(world.settings.database_url)
    settings = world.settings.model_copy(update={"database_url": breaker.url})
    with closing(breaker), closing(open_store(settings, world.clock)) as store:
        store.ping()
        breaker.armed.set()
        yield store


def test_upgrades_that_start_together_take_turns(settings: Settings, race: Race) -> None:
    revisions = race(settings, *[("upgrade", "")] * 3)
    assert set(revisions) == {migrate.current(settings)}
    assert migrate.check(settings) == []


def test_a_holder_that_is_killed_is_known_at_once(world: World) -> None:
    world.submit()
    holder = start()
    assert order(holder, world.settings, ("hold", "")) == 1
    observer = Observer(world.store, beat_seconds=2.0)
    assert observer.observe() == []
    holder.kill()
    holder.wait()
    assert observer.observe() == [1]
    holder.communicate()
    run = world.store.runs.get(1)
    assert (run.state, run.reason) == ("queued", "worker_lost")
    states = [worker.state for worker in world.store.workers.list()]
    assert states == ["lost", "alive"]
