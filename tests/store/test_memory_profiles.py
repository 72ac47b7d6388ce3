"""What runs and probes were measured to take: written as they end, bounded, found by its key."""

from dataclasses import replace

import pytest

from app.lifecycle import Reason
from app.planning.profile import KEPT_POINTS, Measured, Point, ProfileKey
from app.store.records import Finish
from app.store.telemetry import memory_profiles
from tests.store.conftest import World

KEY = ProfileKey("sequence", "1", "a" * 32, "b" * 32, "cpu")
MIB = 2**20


def finish_with(world: World, measured: Measured | None) -> int:
    lease = world.running()
    world.store.leases.finish(lease.token, Finish(Reason.completed, "Done.", measured=measured))
    return lease.run_id


def test_a_runs_end_stores_what_it_took_with_who_and_when(world: World) -> None:
    point = Point(128, 90 * MIB, 64, 40 * MIB, parameters=17, samples_per_second=99.5, torch="2.13")
    run_id = finish_with(world, Measured(KEY, [point]))
    found = world.store.profiles.of([KEY, KEY._replace(device="RTX")])
    assert list(found) == [KEY]
    assert found[KEY].points == (
        replace(point, run_id=run_id, worker="agent", measured_at=world.clock.now),
    )


@pytest.mark.parametrize("name", ProfileKey._fields)
def test_another_key_has_another_profile(world: World, name: str) -> None:
    finish_with(world, Measured(KEY, [Point(1, 1)]))
    assert world.store.profiles.of([KEY._replace(**{name: "other"})]) == {}


def test_an_end_that_comes_too_late_stores_nothing(world: World) -> None:
    lease = world.running()
    end = Finish(Reason.completed, "Done.", measured=Measured(KEY, [Point(1, 1)]))
    world.store.leases.finish(lease.token, end)
    with pytest.raises(Exception, match="lease"):
        world.store.leases.finish(lease.token, end)
    assert len(world.store.profiles.of([KEY])[KEY].points) == 1


def test_the_newest_points_of_a_key_stay_newest_first(world: World) -> None:
    for batch in range(1, KEPT_POINTS + 4):
        finish_with(world, Measured(KEY, [Point(batch, batch)]))
    (found,) = world.store.profiles.of([KEY]).values()
    assert [p.batch_size for p in found.points] == list(range(KEPT_POINTS + 3, 3, -1))


def test_of_all_keys_together_the_oldest_points_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_profiles, "MOST_POINTS", 2)
    keys = [KEY._replace(device=f"GPU {i}") for i in range(4)]
    for key in keys:
        finish_with(world, Measured(key, [Point(1, 1)]))
    assert set(world.store.profiles.of(keys)) == set(keys[2:])


PROBE = {
    "profile": {
        "key": KEY._asdict(),
        "model_bytes": {"training": 30 * MIB, "evaluating": 20 * MIB},
        "sample_bytes": MIB,
    }
}
RESULT = {
    "device": "cpu",
    "training": [[16, 100 * MIB], [128, 300 * MIB]],
    "accumulating": 310 * MIB,
    "evaluation": [64, 150 * MIB],
    "host_bytes": 310 * MIB,
    "parameters": 5,
    "samples_per_second": [10.0, 50.0],
}


def take(world: World, job_id: int) -> None:
    """Claim jobs until it is this one's turn."""
    while (job := world.store.jobs.claim(world.worker)) is not None and job.id != job_id:
        pass


def test_a_probe_stores_its_points_as_its_job_ends(world: World) -> None:
    job_id = world.store.jobs.order_probe(world.worker, PROBE)
    take(world, job_id)
    world.store.jobs.finish(job_id, world.worker, result=RESULT)
    found = world.store.profiles.of([KEY])[KEY].points
    assert [(p.batch_size, (p.training_bytes or 0) // MIB, p.accumulated) for p in found] == [
        (128, 152, True), (128, 142, False), (16, 54, False),
    ]  # fmt: skip
    assert {p.evaluation_bytes for p in found[1:]} == {(150 - 20 - 64) * MIB}
    assert {(p.run_id, p.worker, p.parameters) for p in found} == {(None, "agent", 5)}
    assert [p.samples_per_second for p in found] == [None, 50.0, 10.0]


def test_a_probe_that_ran_out_of_memory_stores_the_least(world: World) -> None:
    job_id = world.store.jobs.order_probe(world.worker, PROBE)
    take(world, job_id)
    ran_out = {"device": "cpu", "error": "It ran out.", "out_of_memory": ["training", 128]}
    world.store.jobs.finish(job_id, world.worker, result={**ran_out, "least_bytes": 400 * MIB})
    (point,) = world.store.profiles.of([KEY])[KEY].points
    assert (point.ran_out, point.training_bytes) == ("training", (400 - 30 - 128) * MIB)
