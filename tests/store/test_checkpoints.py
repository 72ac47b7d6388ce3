"""Checkpoints: pins, the best and the latest, and who may remove them."""

import pytest

from app.errors import Conflict, LeaseLost
from app.store.records import Beat, NewCheckpoint

from .conftest import World


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
