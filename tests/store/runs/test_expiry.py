"""What is old and over is forgotten, what is in use is not."""

import pytest

from app.errors import NotFound
from app.store.jobs import add_job
from app.store.records import Idempotency
from app.store.runs.expiry import KEEP_SECONDS, STEP_ROWS
from tests.store.conftest import World, new_run

KEY = Idempotency("key", "hash", "POST /runs")


def test_a_key_means_the_same_run_for_a_week(world: World) -> None:
    def ask() -> tuple[int, bool]:
        run, created = world.store.runs.create(new_run(), idempotency=KEY)
        return run.id, created

    assert ask() == (1, True)
    world.clock.now += KEEP_SECONDS
    assert ask() == (1, False)
    world.clock.now += 1
    assert ask() == (2, True)


def test_jobs_that_ended_long_ago_go_in_steps(world: World) -> None:
    def add(count: int) -> list[int]:
        payload = {"run_id": 1, "paths": [], "checkpoint_id": None}
        with world.store.database.write() as connection:
            now = world.clock.now
            return [add_job(connection, "remove_artifacts", payload, now) for _ in range(count)]

    add(STEP_ROWS)
    waiting = add(1)[0]
    for _ in range(1 + STEP_ROWS):  # and the inspection of the world's dataset
        job = world.store.jobs.claim(world.worker)
        assert job is not None
        world.store.jobs.finish(job.id, world.worker)
    world.clock.now += KEEP_SECONDS + 1
    add(1)
    for job_id in range(1, 1 + STEP_ROWS):
        with pytest.raises(NotFound):
            world.store.jobs.get(job_id)
    assert world.store.jobs.get(1 + STEP_ROWS).state == "done"
    assert world.store.jobs.get(waiting).state == "queued"


def test_dead_workers_go_when_nothing_refers_to_them(world: World) -> None:
    gone, busy, waiting = (world.register_worker(name) for name in ("gone", "busy", "waiting"))
    lease = world.running()
    job = world.store.jobs.claim(busy)
    assert job is not None
    world.store.jobs.finish(job.id, busy)
    world.store.workers.set_state(gone, "gone")
    for worker in (world.worker, busy):
        assert world.store.workers.declare_lost(worker, world.store.workers.get(worker).beat)
    recent = world.register_worker("recent")

    def left() -> set[int]:
        world.clock.now += KEEP_SECONDS + 1
        newest = world.register_worker("newest")
        return {worker.id for worker in world.store.workers.list()} - {newest, recent, waiting}

    assert left() == {world.worker, busy}
    (holder,) = world.store.leases.holders()
    assert world.store.leases.declare_lost(lease.token, holder.beat)
    with world.store.database.write() as connection:
        add_job(connection, "remove_artifacts", {"paths": []}, world.clock.now)
    assert world.worker not in left()
    assert [attempt.worker for attempt in world.store.attempts.list(lease.run_id)] == ["agent"]
