"""The doorbell: commits that somebody waits for wake listeners, and nothing else does."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import text

from app.errors import InvalidRequest, Unavailable
from app.lifecycle import Intent, Reason
from app.store.engine.doorbell import BellListener, Doorbell
from app.store.records import Beat, Finish, NewCheckpoint, NewEvent, Restart
from tests.store.conftest import World, new_run

LONG = 10.0  # seconds; only a failing test waits so long
NOTHING = 0.05
SETTLED = 0.5


@pytest.fixture
def listener(world: World) -> Iterator[BellListener]:
    with closing(Doorbell(world.settings).listener()) as made:
        made.wait(NOTHING)
        made.drain()
        yield made


def test_a_commit_is_heard_until_it_is_drained(world: World, listener: BellListener) -> None:
    assert not listener.wait(NOTHING)
    world.submit()
    assert listener.wait(LONG)
    assert listener.wait(0)
    listener.drain()
    assert not listener.wait(NOTHING)


def test_a_ring_by_hand_is_heard_by_all(world: World, listener: BellListener) -> None:
    with closing(Doorbell(world.settings).listener()) as second:
        Doorbell(world.settings).ring()
        assert listener.wait(LONG)
        assert second.wait(LONG)


def test_what_was_rolled_back_is_not_heard(world: World, listener: BellListener) -> None:
    with pytest.raises(InvalidRequest):
        world.store.runs.create(new_run(dataset="moon"))
    assert not listener.wait(NOTHING)


def test_what_somebody_waits_for_rings(world: World, listener: BellListener) -> None:
    """A run or a job that is queued, an intent, an end."""

    def rings(act: Callable[[], object]) -> bool:
        while listener.wait(SETTLED):
            listener.drain()
        act()
        return listener.wait(LONG)

    store = world.store
    assert rings(lambda: store.datasets.register("plain", "plain.h5"))
    assert rings(world.submit)
    lease = world.claim()
    assert lease is not None
    assert rings(lambda: store.runs.set_intent(lease.run_id, Intent.pause))
    assert rings(lambda: store.runs.resume(lease.run_id))
    assert rings(lambda: store.leases.finish(lease.token, Finish(Reason.completed, "")))
    job = store.jobs.claim(world.worker)
    assert job is not None
    assert rings(lambda: store.jobs.finish(job.id, world.worker, error="It is no file."))
    again = Restart(lease.run_id, "scratch", {"kind": "none"})
    assert rings(lambda: store.runs.restart(again, new_run()))


def test_what_nobody_waits_for_does_not_ring(world: World, listener: BellListener) -> None:
    """On PostgreSQL each NOTIFY makes commits wait for each other."""
    world.submit()
    while listener.wait(SETTLED):
        listener.drain()
    lease = world.claim()
    assert lease is not None
    news = Beat(
        progress={"phase": "training"},
        events=[NewEvent("phase", 0.0, {})],
        checkpoints=[NewCheckpoint(1, 0, "runs/1/attempt-1/checkpoints/step-1", 1, {}, 0.0)],
    )
    world.store.leases.beat(lease.token, news)
    world.store.workers.beat(world.worker, "alive", [], [], {})
    world.store.runs.update(lease.run_id, {"notes": "mine"})
    assert world.claim() is None
    assert not listener.wait(SETTLED)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
class TestSockets:
    def test_a_listener_that_died_is_forgotten(self, world: World) -> None:
        code = (
            "import os, signal, sys; from app.settings import load_settings; "
            "from app.store.engine.doorbell import Doorbell; "
            "bell = Doorbell(load_settings(home=sys.argv[1])).listener(); "
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(world.settings.home)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert len(list(world.settings.bells_dir.iterdir())) == 1
        world.submit()
        assert list(world.settings.bells_dir.iterdir()) == []

    def test_a_closed_listener_leaves_nothing(self, world: World) -> None:
        Doorbell(world.settings).listener().close()
        assert list(world.settings.bells_dir.iterdir()) == []

    def test_a_listener_that_never_drains_stops_nobody(self, world: World) -> None:
        with closing(Doorbell(world.settings).listener()) as deaf:
            for _ in range(500):
                Doorbell(world.settings).ring()
            assert deaf.wait(0)

    def test_what_is_stored_is_stored_also_when_nobody_can_be_woken(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def exhausted(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        world.settings.bells_dir.mkdir(exist_ok=True)
        monkeypatch.setattr("app.store.engine.doorbell.socket.socket", exhausted)
        run = world.submit()
        Doorbell(world.settings).ring()
        assert world.store.runs.get(run.id) == run

    def test_a_home_with_a_long_path_has_a_bell_too(self, world: World) -> None:
        home = world.settings.home / ("deep" * 30)
        settings = world.settings.model_copy(update={"home": home})
        with closing(Doorbell(settings).listener()) as listener:
            Doorbell(settings).ring()
            assert listener.wait(LONG)
        assert len(os.fsencode(home)) > 107


@pytest.mark.parametrize(
    "kind", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_without_a_server_a_ring_does_not_fail_and_a_listener_is_a_sentence(world: World) -> None:
    nowhere = "postgresql+psycopg://stoker@/nothing?host=/nowhere"
    bell = Doorbell(world.settings.model_copy(update={"database_url": nowhere}))
    bell.ring()
    with pytest.raises(Unavailable, match="stoker doctor"):
        bell.listener()


@pytest.mark.parametrize(
    "kind", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_broken_connection_is_made_anew(
    world: World, listener: BellListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.engine.postgres_bell.RECONNECT_SECONDS", 0.01)
    with world.store.database.write() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
            )
        )
    assert listener.wait(LONG)  # it tells that something may have been missed
    listener.drain()
    Doorbell(world.settings).ring()
    assert listener.wait(LONG)
