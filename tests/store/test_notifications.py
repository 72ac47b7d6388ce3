"""What is noted of runs that end: once, from the beginning on, for whoever takes it first."""

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from app.lifecycle import Intent, Reason
from app.settings import NOTIFY_EVENTS
from app.store.notifications import GIVE_UP_SECONDS, _due
from app.store.records import Finish
from app.store.tables import notifications
from tests.store.conftest import World


def end(world: World, reason: Reason = Reason.completed, message: str = "It is done.") -> int:
    lease = world.running()
    world.store.leases.finish(lease.token, Finish(reason, message))
    return lease.run_id


def claimed(world: World) -> Iterator[tuple[int, str]]:
    while (record := world.store.notifications.claim(NOTIFY_EVENTS, 60)) is not None:
        yield record.run_id, record.kind


def test_each_end_is_noted_once_from_the_beginning_on(world: World) -> None:
    end(world)
    world.store.notifications.begin()
    world.store.notifications.begin()
    succeeded, failed = end(world), end(world, Reason.trainer_error, "It broke.")
    lease = world.running()
    stopped = lease.run_id
    world.store.runs.set_intent(stopped, Intent.stop)
    world.store.leases.finish(lease.token, Finish(Reason.interrupted, "It saved and ended."))
    never_began = world.submit().id
    world.store.runs.set_intent(never_began, Intent.stop)
    told = [(succeeded, "succeeded"), (failed, "failed"), (stopped, "stopped")]
    assert list(claimed(world)) == told
    assert list(claimed(world)) == [], "each is held by whoever took it"


def test_a_hang_that_is_tried_again_is_a_stall_and_other_retries_are_not(world: World) -> None:
    world.store.notifications.begin()
    lease = world.running()
    world.store.leases.finish(lease.token, Finish(Reason.worker_lost, "It is gone."))
    again = world.claim()
    assert again is not None
    world.store.leases.finish(again.token, Finish(Reason.hang, "It made no progress."))
    assert list(claimed(world)) == [(lease.run_id, "stalled")]


def test_a_run_whose_message_is_unstorable_and_that_is_deleted_is_told(world: World) -> None:
    world.store.notifications.begin()
    run = end(world, message="a\x00b\ud800")
    world.store.runs.delete(run)
    record = world.store.notifications.claim(NOTIFY_EVENTS, 60)
    assert record is not None
    assert (record.run_id, record.name, record.message) == (
        run,
        "lstm",
        "a\ufffdb\ufffd\ufffd\ufffd",
    )


def test_who_wants_to_hear_of_failures_alone_hears_of_them(world: World) -> None:
    world.store.notifications.begin()
    end(world)
    failed = end(world, Reason.trainer_error)
    record = world.store.notifications.claim(["failed"], 60)
    assert record is not None
    assert record.run_id == failed
    assert world.store.notifications.claim(["failed"], 60) is None


def test_what_a_dead_process_held_is_taken_by_another_and_old_news_by_nobody(world: World) -> None:
    world.store.notifications.begin()
    end(world)
    first = world.store.notifications.claim(NOTIFY_EVENTS, 60)
    world.clock.now += 61
    second = world.store.notifications.claim(NOTIFY_EVENTS, 60)
    assert first is not None
    assert second is not None
    assert (first.id, first.tries, second.tries) == (second.id, 1, 2)
    assert world.store.notifications.retry(first, "too late", 5), "it is no longer the first's"
    world.clock.now += 30
    assert world.store.notifications.claim(NOTIFY_EVENTS, 60) is None
    world.clock.now += GIVE_UP_SECONDS
    assert world.store.notifications.claim(NOTIFY_EVENTS, 60) is None


def test_it_is_given_up_when_the_next_try_would_be_too_late(world: World) -> None:
    world.store.notifications.begin()
    end(world)
    record = world.store.notifications.claim(NOTIFY_EVENTS, 60)
    assert record is not None
    world.clock.now += GIVE_UP_SECONDS - 10
    assert not world.store.notifications.retry(record, "nobody there", 60)
    last = world.store.notifications.last()
    assert last is not None
    assert (last.error, last.ended_at) == ("nobody there", world.clock.now)


def test_of_what_was_told_a_week_ago_nothing_is_kept(world: World) -> None:
    world.store.notifications.begin()
    for _ in range(3):
        end(world)
    world.clock.now += 8 * 86400
    new = end(world)
    kept = select(notifications.c.run_id).order_by(notifications.c.id)
    with world.database.read() as connection:
        assert connection.execute(kept).scalars().all() == [None, new], "and that it is on"


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_an_idle_look_reads_an_index(world: World) -> None:
    world.store.notifications.begin()
    for _ in range(30):
        end(world)
        record = world.store.notifications.claim(NOTIFY_EVENTS, 60)
        assert record is not None
        world.store.notifications.end(record.id)
    due = _due(NOTIFY_EVENTS, world.clock.now).compile(
        world.database.engine, compile_kwargs={"literal_binds": True}
    )
    with world.database.read() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {due}").all()
    assert "ix_notifications_t" in str(plan), plan
