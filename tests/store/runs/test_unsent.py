"""Output that a killed agent had not sent is added later, once, to its own attempt alone."""

from dataclasses import replace

from app.lifecycle import Reason
from app.store.records import Beat, Finish, MetricPoint, NewEvent, Unsent
from tests.store.conftest import World

UNSENT = Unsent(
    attempt=1,
    log_from=6,
    log_to=11,
    events_from=20,
    events_to=90,
    log_text="lost\n",
    events=[NewEvent("warning", 3.0, {"code": "odd"})],
    metric_points=[MetricPoint("val_loss", 4, 3.0, 0.5)],
)


def lost_and_claimed_again(world: World) -> int:
    """A run whose first attempt has sent 6 bytes of its log and 20 of its events; its id."""
    lease = world.running()
    sent = Beat(log_text="first\n", log_read=6, events_read=20)
    world.store.leases.beat(lease.token, sent)
    (holder,) = world.store.leases.holders()
    assert world.store.leases.declare_lost(holder.token, holder.beat)
    world.clock.now += 100.0
    second = world.claim()
    assert second is not None
    beat = Beat(log_text="second\n", metric_points=[MetricPoint("val_loss", 4, 9.0, 0.25)])
    world.store.leases.beat(second.token, beat)
    return second.run_id


def test_it_goes_to_its_own_attempt_and_changes_nothing_else(world: World) -> None:
    run_id = lost_and_claimed_again(world)
    before = world.store.runs.get(run_id)
    assert world.store.attempts.add_unsent(run_id, UNSENT)
    assert world.store.logs.read(run_id, 1).text == "first\nlost\n"
    assert world.store.logs.read(run_id, 2).text == "second\n"
    assert world.store.metrics.series(run_id)["val_loss"] == [(4, 9.0, 0.25)], "the later one wins"
    last = world.store.events.list(run_id)[-1]
    assert (last.attempt, last.kind, last.data) == (1, "warning", {"code": "odd"})
    after = world.store.runs.get(run_id)
    assert (after.state, after.attempt, after.result) == (before.state, 2, before.result)


def test_it_is_added_once(world: World) -> None:
    run_id = lost_and_claimed_again(world)
    added = [world.store.attempts.add_unsent(run_id, UNSENT) for _ in range(2)]
    ahead = replace(UNSENT, log_from=12, log_to=20)
    assert [*added, world.store.attempts.add_unsent(run_id, ahead)] == [True, False, False]
    assert world.store.logs.read(run_id, 1).text == "first\nlost\n"
    assert [one.kind for one in world.store.events.list(run_id)].count("warning") == 1


def test_a_run_that_is_over_takes_it_too(world: World) -> None:
    lease = world.running()
    end = Finish(Reason.completed, "Done.", final=Beat(log_read=6, events_read=20))
    run = world.store.leases.finish(lease.token, end)
    assert world.store.attempts.add_unsent(run.id, UNSENT)
    assert world.store.logs.read(run.id, 1).text == "lost\n"
    assert replace(world.store.runs.get(run.id), version=run.version) == run
