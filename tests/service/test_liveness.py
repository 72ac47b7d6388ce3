"""Who is declared lost, and when: after so many reads, each at a time when holders could beat."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.engine import make_url

from app.errors import Unavailable
from app.lifecycle import Intent
from app.service.liveness import Observer
from app.store.engine.database import Database
from app.store.engine.sqlite import driver
from app.store.records import Beat
from app.store.tables import runs, workers
from tests.store.conftest import Clock, World

# The longest that a healthy holder is silent: fifteen intervals (house plan, lifecycle).
READS = 15


def observer_of(world: World, beat_seconds: float = 2.0) -> tuple[Observer, Clock]:
    """An observer, and the clock by which it sees whether it is late."""
    clock = Clock()
    return Observer(world.store, beat_seconds, clock), clock


def observe(observer: Observer, clock: Clock, times: int, every: float = 2.0) -> list[int]:
    """How often it looked before it declared something lost, and what: nothing is lost else."""
    for _ in range(times):
        clock.now += every
        lost = observer.observe()
        if lost:
            return lost
    return []


def holder_beats_every(world: World, seconds: float | None) -> None:
    with world.database.write() as connection:
        connection.execute(update(workers).values(beat_seconds=seconds))


@pytest.mark.parametrize(
    ("own", "holders", "reads"),
    [
        (2.0, 2.0, 15),
        (2.0, None, 15),  # a worker of a version that does not say
        (0.1, 3.0, 450),
        (3.0, 0.1, 15),
        (2.0, 3.0, 23),
    ],
)
def test_silence_is_counted_in_the_longer_interval(
    world: World, own: float, holders: float | None, reads: int
) -> None:
    lease = world.running()
    holder_beats_every(world, holders)
    observer, clock = observer_of(world, own)
    assert observer.observe() == []  # it sees the counter for the first time
    assert observe(observer, clock, reads - 1, own) == []
    assert world.store.workers.get(world.worker).state == "alive"
    assert observe(observer, clock, 1, own) == [lease.run_id]
    assert world.store.workers.get(world.worker).state == "lost"


def test_a_worker_registers_its_interval(world: World) -> None:
    world.running()
    worker = world.register_worker("slow", beat_seconds=7.5)
    assert world.store.workers.get(worker).beat_seconds == 7.5
    assert {pulse.beat_seconds for pulse in world.store.workers.pulses()} == {None, 7.5}
    assert [holder.beat_seconds for holder in world.store.leases.holders()] == [None]


def test_a_beat_begins_the_count_anew(world: World) -> None:
    lease = world.running()
    observer, clock = observer_of(world)
    observer.observe()
    for _ in range(3):
        assert observe(observer, clock, READS - 1) == []
        world.store.leases.beat(lease.token, Beat())
        world.store.workers.beat(world.worker, "alive", [], [], {})
    assert observe(observer, clock, READS) == []  # the first of them saw the beat
    assert observe(observer, clock, 1) == [lease.run_id]


def test_a_read_that_failed_begins_the_count_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = world.running()
    observer, clock = observer_of(world)
    observer.observe()
    assert observe(observer, clock, READS - 1) == []

    def away() -> None:
        raise Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(world.store.workers, "pulses", away)
        with pytest.raises(Unavailable):
            observer.observe()
    assert observe(observer, clock, READS) == []
    assert observe(observer, clock, 1) == [lease.run_id]


@pytest.mark.parametrize(("own", "gap"), [(2.0, 4.1), (0.1, 1.2)])
def test_a_late_read_begins_the_count_anew(world: World, own: float, gap: float) -> None:
    """What held it up, a host asleep or a lock, may have held up the holder as well."""
    lease = world.running()
    observer, clock = observer_of(world, own)
    observer.observe()
    assert observe(observer, clock, READS - 1, own) == []
    assert observe(observer, clock, 1, gap) == []
    assert observe(observer, clock, READS - 1, own) == []
    assert observe(observer, clock, 1, own) == [lease.run_id]


@contextmanager
def locked(world: World) -> Iterator[None]:
    """Another program holds the database: everybody can read it, and nobody write."""
    if world.database.is_sqlite:
        other = driver.connect(str(make_url(world.settings.database_url).database))
        other.execute("BEGIN IMMEDIATE").close()
        try:
            yield
        finally:
            other.rollback()
            other.close()
    else:
        with world.database.write() as connection:
            connection.execute(text("LOCK TABLE runs, workers IN EXCLUSIVE MODE"))
            yield


@pytest.mark.parametrize("locked_reads", [1, READS + 5])
def test_after_a_lock_holders_have_their_time_again(
    world: World, locked_reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could not beat either, and wait for the same lock when it is released."""
    for module in ("runs.leases", "workers"):
        monkeypatch.setattr(f"app.store.{module}.OBSERVER_PATIENCE_SECONDS", 0.01)
    lease = world.running()
    observer, clock = observer_of(world)
    observer.observe()
    assert observe(observer, clock, READS - 1) == []
    with locked(world):
        for _ in range(locked_reads):
            clock.now += 2.0
            try:
                assert observer.observe() == []
            except Unavailable:
                continue
    assert observe(observer, clock, READS - 1) == [], "nothing is lost before fifteen more reads"
    assert world.store.runs.get(lease.run_id).state == "running"
    assert observe(observer, clock, 2) == [lease.run_id]


def test_a_healthy_holder_and_the_observer_wait_for_one_lock(world: World) -> None:
    """Whoever gets it first: a beat that waits is not overtaken by the verdict."""
    lease = world.running()
    observer, clock = observer_of(world)
    observer.observe()
    assert observe(observer, clock, READS - 1) == []
    store = world.store
    with locked(world):
        holder = threading.Thread(target=lambda: store.leases.beat(lease.token, Beat()))
        holder.start()
        clock.now += 2.0
        with pytest.raises(Unavailable):
            observer.observe()
    holder.join()
    assert observe(observer, clock, READS - 1) == []
    assert store.runs.get(lease.run_id).state == "running"


@pytest.mark.parametrize(
    "kind", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_one_locked_row_holds_up_no_other_verdict(world: World) -> None:
    """A holder that froze in a transaction is judged when the server has ended that; others now."""
    frozen, dead = world.running(), world.running()
    observer, clock = observer_of(world)
    observer.observe()
    database = Database(world.settings)
    with database.write() as connection:
        row = select(runs.c.id).where(runs.c.id == frozen.run_id)
        connection.execute(row.with_for_update())
        assert observe(observer, clock, READS) == [dead.run_id]
    database.close()
    assert observe(observer, clock, READS - 2) == []
    assert observe(observer, clock, 2) == [frozen.run_id]


def test_what_a_person_asked_for_does_not_hide_a_dead_holder(world: World) -> None:
    lease = world.running()
    world.store.runs.set_intent(lease.run_id, Intent.stop)
    observer, clock = observer_of(world)
    observer.observe()
    assert observe(observer, clock, READS) == [lease.run_id]
    assert world.store.runs.get(lease.run_id).state == "stopped"
