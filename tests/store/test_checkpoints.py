"""Checkpoints: pins, the best and the latest, and who may remove them."""

from collections.abc import Callable
from contextlib import closing

import pytest
from sqlalchemy import select

from app.errors import Conflict, FileLocked, LeaseLost, Locked, NotFound
from app.lifecycle import Intent, Reason
from app.store.engine.database import Database
from app.store.jobs import LONGEST_RETRY_SECONDS, RECONCILE_ATTEMPTS
from app.store.records import Beat, Document, Finish, Lease, NewCheckpoint
from app.store.tables import checkpoints, jobs
from app.store.worker_records import JobRecord
from tests.store.conftest import World


def test_who_has_lost_the_lease_removes_nothing(world: World) -> None:
    """Its successor may be restoring from what it thinks is old."""
    lease = world.running()
    saved = NewCheckpoint(1, 0, "runs/1/attempt-1/checkpoints/step-1", 1, {}, 0.0)
    world.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
    (holder,) = world.store.leases.holders()
    assert world.store.leases.declare_lost(holder.token, holder.beat)
    with pytest.raises(LeaseLost):
        world.store.checkpoints.begin_removal(lease.token, [saved.path])
    assert [c.state for c in world.store.checkpoints.list(lease.run_id)] == ["saved"]


def test_a_lease_removes_checkpoints_of_its_own_run_alone(world: World) -> None:
    lease, other = world.running(), world.running()
    saved = NewCheckpoint(1, 0, "runs/1/attempt-1/checkpoints/step-1", 1, {}, 0.0)
    world.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
    assert world.store.checkpoints.begin_removal(other.token, [saved.path]) == []
    assert world.store.checkpoints.begin_removal(lease.token, [saved.path]) == [saved.path]


@pytest.mark.parametrize("patience", [0.0, 0.1])
def test_a_removal_waits_for_locks_no_longer_than_it_is_told(world: World, patience: float) -> None:
    lease = world.running()
    save(world, lease, 1)
    with closing(Database(world.settings)) as others, others.write() as somebody:
        somebody.execute(select(checkpoints.c.id).with_for_update())
        with pytest.raises((Locked, FileLocked)):
            world.store.checkpoints.begin_removal(lease.token, [path_of(lease, 1)], patience)
    assert states(world, lease) == {1: "saved"}


@pytest.mark.parametrize(
    "kind", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_a_beat_does_not_wait_for_the_row_of_a_checkpoint_that_is_gone(world: World) -> None:
    """It stays until the run has ended, and is looked at then."""
    lease = world.running()
    save(world, lease, 1, 2)
    gone = [path_of(lease, 1), path_of(lease, 2)]
    world.store.checkpoints.begin_removal(lease.token, gone)
    with closing(Database(world.settings)) as others, others.write() as somebody:
        held = select(checkpoints.c.id).where(checkpoints.c.step == 1).with_for_update()
        somebody.execute(held)
        beat = Beat(number=1, removed_checkpoints=gone)
        world.store.leases.beat(lease.token, beat, patience_seconds=0.1)
    assert states(world, lease) == {1: "removing"}
    world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
    assert take_reconciliation(world).payload["run_id"] == lease.run_id


def test_pins_hold_until_they_are_taken_off(world: World) -> None:
    lease = world.running()
    saved = NewCheckpoint(1, 0, "runs/1/attempt-1/checkpoints/step-1", 1, {}, 0.0)
    world.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
    latest = world.store.checkpoints.resolve(lease.run_id, "latest")
    assert world.store.checkpoints.set_pinned(latest.id, True).pinned
    assert world.store.checkpoints.begin_removal(lease.token, [saved.path]) == []
    with pytest.raises(Conflict):
        world.store.checkpoints.request_delete(latest.id)
    assert not world.store.checkpoints.set_pinned(latest.id, False).pinned
    assert world.store.checkpoints.request_delete(latest.id).state == "removing"
    with pytest.raises(Conflict, match="too late"):
        world.store.checkpoints.set_pinned(latest.id, True)


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 3)])
def test_best_is_by_the_specs_monitor(world: World, mode: str, best: int) -> None:
    spec = {"checkpoint": {"monitor": "val_mae", "mode": mode}}
    lease = world.running(spec=spec)
    folder = "runs/1/attempt-1/checkpoints/step-"
    scores = {1: 5.0, 2: 1.0, 3: 9.0, 4: float("nan"), 5: None}
    saved = [
        NewCheckpoint(step, 0, f"{folder}{step}", 1, {"val_mae": score}, 0.0)
        for step, score in scores.items()
    ]
    world.store.leases.beat(lease.token, Beat(checkpoints=saved))
    rows = world.store.checkpoints.list(lease.run_id)
    assert [row.step for row in rows if row.is_best] == [best]
    assert [row.step for row in rows if row.is_latest] == [5]
    assert world.store.checkpoints.resolve(lease.run_id, "best").step == best


def test_of_a_run_without_a_best_the_latest_is_offered(world: World) -> None:
    lease = world.running(spec={"checkpoint": {"monitor": "val_loss", "mode": "min"}})
    saved = NewCheckpoint(1, 0, "runs/1/attempt-1/checkpoints/step-1", 1, {}, 0.0)
    world.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
    with pytest.raises(NotFound, match="after an evaluation") as refused:
        world.store.checkpoints.resolve(lease.run_id, "best")
    one = lease.run_id
    told = f"`stoker download {one}` and `stoker export {one} --latest` take the latest."
    assert told in str(refused.value)


def path_of(lease: Lease, step: int) -> str:
    return f"runs/{lease.run_id}/attempt-{lease.attempt}/checkpoints/step-{step}"


def save(world: World, lease: Lease, *steps: int) -> None:
    saved = [NewCheckpoint(step, 0, path_of(lease, step), 1, {}, 0.0) for step in steps]
    world.store.leases.beat(lease.token, Beat(checkpoints=saved))


def states(world: World, lease: Lease) -> dict[int, str]:
    return {row.step: row.state for row in world.store.checkpoints.list(lease.run_id)}


def lose(world: World) -> None:
    (holder,) = world.store.leases.holders()
    assert world.store.leases.declare_lost(holder.token, holder.beat)


def is_lost_then_stopped(world: World, lease: Lease) -> None:
    lose(world)
    world.store.runs.set_intent(lease.run_id, Intent.stop)


def is_lost_while_stopping(world: World, lease: Lease) -> None:
    world.store.runs.set_intent(lease.run_id, Intent.stop)
    lose(world)


def is_lost_while_pausing_then_stopped(world: World, lease: Lease) -> None:
    world.store.runs.set_intent(lease.run_id, Intent.pause)
    lose(world)
    world.store.runs.set_intent(lease.run_id, Intent.stop)


def is_lost_then_paused(world: World, lease: Lease) -> None:
    lose(world)
    world.store.runs.set_intent(lease.run_id, Intent.pause)


def ends_untold(world: World, lease: Lease) -> None:
    world.store.leases.finish(lease.token, Finish(Reason.completed, "", untold=True))


def gives_up_a_removal(world: World, lease: Lease) -> None:
    world.store.checkpoints.begin_removal(lease.token, [path_of(lease, 1)])
    world.store.leases.finish(lease.token, Finish(Reason.completed, ""))


Way = Callable[[World, Lease], None]
WAYS: list[Way] = [
    is_lost_then_stopped,
    is_lost_then_paused,
    is_lost_while_stopping,
    is_lost_while_pausing_then_stopped,
    ends_untold,
    gives_up_a_removal,
]


def open_jobs(world: World) -> list[tuple[str, dict[str, int]]]:
    """Those that are not about the dataset."""
    query = select(jobs.c.kind, jobs.c.payload).where(
        jobs.c.kind != "inspect_dataset", jobs.c.state.in_(["queued", "running"])
    )
    with world.database.read() as connection:
        return [(row.kind, row.payload) for row in connection.execute(query)]


def take_reconciliation(world: World) -> JobRecord:
    while (job := world.store.jobs.claim(world.worker)) is not None:
        if job.kind == "reconcile_checkpoints":
            return job
    raise AssertionError("there is none")


@pytest.mark.parametrize("way", WAYS)
def test_an_ended_run_of_which_not_all_was_told_is_compared_with_its_disk(
    world: World, way: Way
) -> None:
    lease = world.running()
    save(world, lease, 1, 2)
    way(world, lease)
    payload = {"run_id": lease.run_id, "attempt": 1}
    assert open_jobs(world) == [("reconcile_checkpoints", payload)]


def test_one_that_was_watched_to_its_end_or_goes_on_is_not(world: World) -> None:
    lease = world.running()
    save(world, lease, 1)
    world.store.leases.finish(lease.token, Finish(Reason.crashed, "", untold=True))
    assert world.store.runs.get(lease.run_id).state == "queued"
    again = world.claim()
    assert again is not None
    world.store.leases.finish(again.token, Finish(Reason.completed, ""))
    world.store.runs.set_intent(world.submit().id, Intent.stop)
    assert open_jobs(world) == []


def test_a_removal_that_nobody_ends_is_over_once_the_disk_was_looked_at(world: World) -> None:
    lease = world.running()
    save(world, lease, 1, 2, 3, 4)
    doomed = [path_of(lease, step) for step in (1, 2, 3)]
    world.store.checkpoints.begin_removal(lease.token, doomed)
    world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
    job = take_reconciliation(world)
    found = {"path": doomed[2], "why": "its manifest is gone"}
    result = {"adopted": [], "damaged": [found], "gone": [doomed[0]]}
    world.store.jobs.finish(job.id, world.worker, result=result)
    assert states(world, lease) == {2: "saved", 3: "damaged", 4: "saved"}


def test_what_a_person_has_removed_meanwhile_stays_about_to_be_removed(world: World) -> None:
    lease = world.running()
    save(world, lease, 1, 2, 3)
    world.store.checkpoints.begin_removal(lease.token, [path_of(lease, 1)])
    world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
    job = take_reconciliation(world)
    ids = {row.step: row.id for row in world.store.checkpoints.list(lease.run_id)}
    world.store.checkpoints.request_delete(ids[2])
    result: Document = {"adopted": [], "damaged": [], "gone": []}
    world.store.jobs.finish(job.id, world.worker, result=result)
    assert states(world, lease) == {1: "saved", 2: "removing", 3: "saved"}
    removal = world.store.jobs.claim(world.worker)
    assert removal is not None
    assert removal.kind == "remove_artifacts"
    world.store.jobs.finish(removal.id, world.worker)
    assert states(world, lease) == {1: "saved", 3: "saved"}


def test_a_disk_is_not_looked_at_again_once_the_run_goes_on(world: World) -> None:
    lease = world.running()
    save(world, lease, 1)
    world.store.runs.set_intent(lease.run_id, Intent.pause)
    lose(world)
    job = take_reconciliation(world)
    world.store.runs.resume(lease.run_id)
    assert world.claim() is not None
    ended = world.store.jobs.finish(job.id, world.worker, error="It is locked.")
    assert (ended.state, ended.error) == ("failed", "It is locked.")
    assert open_jobs(world) == []


def test_what_was_found_counts_no_more_once_the_run_goes_on(world: World) -> None:
    lease = world.running()
    save(world, lease, 1)
    world.store.runs.set_intent(lease.run_id, Intent.pause)
    lose(world)
    job = take_reconciliation(world)
    world.store.runs.resume(lease.run_id)
    again = world.claim()
    assert again is not None
    world.store.checkpoints.begin_removal(again.token, [path_of(lease, 1)])
    result: Document = {"adopted": [], "damaged": [], "gone": []}
    assert world.store.jobs.finish(job.id, world.worker, result=result).state == "done"
    assert states(world, lease) == {1: "removing"}


def test_what_was_found_of_a_run_that_is_deleted_meanwhile_is_left_out(world: World) -> None:
    lease = world.running()
    ends_untold(world, lease)
    job = take_reconciliation(world)
    world.store.runs.delete(lease.run_id)
    new = {"step": 5, "epoch": 0, "path": path_of(lease, 5), "bytes": 1, "metrics": {},
           "created_at": 0.0}  # fmt: skip
    result = {"adopted": [new], "damaged": [], "gone": []}
    assert world.store.jobs.finish(job.id, world.worker, result=result).state == "done"
    assert states(world, lease) == {}


def test_a_disk_that_cannot_be_looked_at_is_tried_again_for_hours(world: World) -> None:
    lease = world.running()
    save(world, lease, 1)
    gives_up_a_removal(world, lease)
    waits = []
    for _ in range(RECONCILE_ATTEMPTS):
        job = take_reconciliation(world)
        ended = world.store.jobs.finish(job.id, world.worker, error="It is locked.")
        with world.database.read() as connection:
            due = select(jobs.c.retry_at).where(jobs.c.id == job.id)
            retry_at = connection.execute(due).scalar()
        if ended.state == "queued":
            assert states(world, lease) == {1: "removing"}
            assert retry_at is not None
            waits.append(retry_at - world.clock.now)
            world.clock.now = retry_at
    assert ended.state == "failed"
    assert waits[:2] == [10.0, 60.0]
    assert max(waits) == LONGEST_RETRY_SECONDS
    assert 6 * 3600 < sum(waits) < 12 * 3600
    assert states(world, lease) == {1: "saved"}, "it can be used, and asked to be removed, again"
