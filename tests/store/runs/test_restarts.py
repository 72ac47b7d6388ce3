"""Restarts: a child, its parent, and the checkpoint between them."""

import pytest

from app.errors import Conflict, InvalidRequest, PreconditionFailed
from app.lifecycle import Intent, Reason
from app.store.records import (
    Beat,
    Document,
    Finish,
    Lease,
    NewCheckpoint,
    Restart,
    RestorePoint,
    RunFilter,
    RunRecord,
)
from tests.store.conftest import World, new_run

FULL = {"kind": "full", "starts_anew": [], "changed": []}
WEIGHTS = {"kind": "weights", "starts_anew": ["optimizer state"], "changed": ["/optimizer/lr"]}
SCRATCH = {"kind": "scratch", "starts_anew": ["weights"], "changed": []}


def save(world: World, lease: Lease, step: int, val_loss: float | None = None) -> int:
    """A checkpoint of the attempt; its id."""
    path = f"runs/{lease.run_id}/attempt-{lease.attempt}/checkpoints/step-{step}"
    metrics = {} if val_loss is None else {"val_loss": val_loss}
    saved = NewCheckpoint(step, 0, path, 100, metrics, world.clock.now)
    world.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
    return next(c.id for c in world.store.checkpoints.list(lease.run_id) if c.step == step)


def finish(world: World, lease: Lease, reason: Reason = Reason.completed) -> None:
    world.store.leases.finish(lease.token, Finish(reason, ""))


def restart(
    world: World,
    parent_id: int,
    from_: str | int = "latest",
    carry: Document = FULL,
    *,
    force: bool = False,
) -> RunRecord:
    order = Restart(parent_id, from_, carry, force)  # type: ignore[arg-type]
    return world.store.runs.restart(order, new_run())[0]


def claim(world: World) -> Lease:
    lease = world.claim()
    assert lease is not None
    return lease


def held(world: World, run_id: int) -> list[int]:
    return [c.step for c in world.store.checkpoints.list(run_id) if c.pinned]


def test_an_active_parent_is_stopped_and_its_child_waits_in_its_place(world: World) -> None:
    parent = world.running()
    world.submit()
    child = restart(world, parent.run_id)
    assert world.store.runs.get(parent.run_id).intent is Intent.stop
    assert child.waits_for == parent.run_id
    assert world.store.runs.queue().data[0].id == child.id
    other = claim(world)
    assert other.run_id not in (parent.run_id, child.id)
    assert world.claim() is None
    finish(world, parent, Reason.interrupted)
    lease = claim(world)
    assert lease.run_id == child.id
    assert lease.restore_points == (RestorePoint(parent.run_id, "full", None),)


def test_with_force_the_parent_is_killed(world: World) -> None:
    parent = world.running()
    restart(world, parent.run_id)
    restart(world, parent.run_id, force=True)
    assert world.store.runs.get(parent.run_id).intent is Intent.kill


@pytest.mark.parametrize("intent", [None, Intent.pause])
def test_a_parent_that_nobody_holds_stops_at_once(world: World, intent: Intent | None) -> None:
    parent = world.submit()
    if intent is not None:
        world.store.runs.set_intent(parent.id, intent)
    child = restart(world, parent.id)
    stopped = world.store.runs.get(parent.id)
    assert (stopped.state, stopped.child_ids) == ("stopped", (child.id,))
    assert str(child.id) in str(stopped.message)
    assert claim(world).run_id == child.id


def test_the_child_of_a_run_that_is_over_queues_behind(world: World) -> None:
    parent = world.running()
    finish(world, parent)
    waiting = world.submit()
    child = restart(world, parent.run_id)
    assert [run.id for run in world.store.runs.queue().data] == [waiting.id, child.id]


def test_if_version_is_the_parents(world: World) -> None:
    parent = world.running()
    with pytest.raises(PreconditionFailed):
        world.store.runs.restart(Restart(parent.run_id, "latest", FULL), new_run(), if_version=1)
    assert world.store.runs.get(parent.run_id).child_ids == ()


def test_latest_is_what_is_latest_when_the_child_is_claimed(world: World) -> None:
    parent = world.running()
    save(world, parent, 10)
    restart(world, parent.run_id)
    assert held(world, parent.run_id) == [10]
    save(world, parent, 20)
    assert 20 in held(world, parent.run_id)
    finish(world, parent, Reason.interrupted)
    lease = claim(world)
    assert held(world, parent.run_id) == [20]
    # Without a path: the disk is the truth.
    assert lease.restore_points == (RestorePoint(parent.run_id, "full", None),)


def test_best_and_ids_are_given_as_paths(world: World) -> None:
    parent = world.running()
    save(world, parent, 10, 0.5)
    save(world, parent, 20, 0.25)
    third = save(world, parent, 30, 0.75)
    finish(world, parent)
    restart(world, parent.run_id, "best")
    restart(world, parent.run_id, third)
    best, named = claim(world), claim(world)
    folder = "runs/1/attempt-1/checkpoints"
    assert best.restore_points == (RestorePoint(1, "full", f"{folder}/step-20"),)
    assert named.restore_points == (RestorePoint(1, "full", f"{folder}/step-30"),)
    assert sorted(held(world, parent.run_id)) == [20, 30]


def test_the_hold_ends_with_the_childs_own_checkpoint(world: World) -> None:
    parent = world.running()
    first = save(world, parent, 10)
    finish(world, parent)
    child = restart(world, parent.run_id)
    with pytest.raises(Conflict):
        world.store.checkpoints.request_delete(first)
    lease = claim(world)
    save(world, lease, 11)
    assert child.id == lease.run_id
    assert held(world, parent.run_id) == []
    assert world.store.checkpoints.request_delete(first).state == "removing"


def test_the_hold_ends_with_the_child(world: World) -> None:
    parent = world.running()
    save(world, parent, 10)
    finish(world, parent)
    child = restart(world, parent.run_id)
    assert held(world, parent.run_id) == [10]
    world.store.runs.set_intent(child.id, Intent.stop)
    assert held(world, parent.run_id) == []


def test_a_chain_of_restarts_that_saved_nothing_goes_on_from_the_first(world: World) -> None:
    parent = world.running()
    chosen = save(world, parent, 10, 1.0)
    finish(world, parent)
    second = restart(world, parent.run_id)
    third = restart(world, second.id)
    world.store.runs.set_intent(third.id, Intent.stop)
    fourth = restart(world, third.id, "best")
    assert held(world, parent.run_id) == [10]
    lease = claim(world)
    assert lease.run_id == fourth.id
    path = world.store.checkpoints.get(chosen).path
    assert lease.restore_points == (RestorePoint(parent.run_id, "full", path),)


def test_from_scratch_holds_nothing(world: World) -> None:
    parent = world.running()
    save(world, parent, 10)
    finish(world, parent)
    restart(world, parent.run_id, "scratch")
    assert held(world, parent.run_id) == []
    assert claim(world).restore_points == ()


def test_what_cannot_be_gone_on_from_is_refused(world: World) -> None:
    parent = world.running()
    save(world, parent, 10)
    other = world.running()
    foreign = save(world, other, 5)
    finish(world, parent)
    for wanted in (foreign, 999, "best"):
        with pytest.raises(InvalidRequest) as refusal:
            restart(world, parent.run_id, wanted)
        assert refusal.value.problem_code == "no_such_checkpoint"


def test_retention_and_restarts_do_not_cross(world: World) -> None:
    parent = world.running()
    old = save(world, parent, 10)
    save(world, parent, 20)
    save(world, parent, 30)
    paths = [c.path for c in world.store.checkpoints.list(parent.run_id) if c.step < 30]
    restart(world, parent.run_id, old)
    going = world.store.checkpoints.begin_removal(parent.token, paths)
    assert going == ["runs/1/attempt-1/checkpoints/step-20"]
    vanishing = next(c.id for c in world.store.checkpoints.list(parent.run_id) if c.step == 20)
    with pytest.raises(InvalidRequest):
        restart(world, parent.run_id, vanishing)
    world.store.leases.beat(parent.token, Beat(removed_checkpoints=going))
    assert [c.step for c in world.store.checkpoints.list(parent.run_id)] == [30, 10]


class TestTheRestartOfARunThatWaits:
    """A trains, B waits for it, C is a restart of B."""

    def test_waits_for_the_run_that_trains_and_goes_on_from_its_end(self, world: World) -> None:
        a = world.running()
        save(world, a, 10)
        b = restart(world, a.run_id)
        c = restart(world, b.id)
        assert world.store.runs.get(b.id).state == "stopped"
        assert c.waits_for is not None
        assert world.store.runs.find_ids(RunFilter(statuses=("waiting_for_parent",)), 9) == [c.id]
        assert world.claim() is None
        save(world, a, 20)
        assert 20 in held(world, a.run_id)
        finish(world, a, Reason.interrupted)
        lease = claim(world)
        assert lease.run_id == c.id
        assert [point.run_id for point in lease.restore_points] == [b.id, a.run_id]
        assert held(world, a.run_id) == [20]

    def test_waits_also_when_it_was_stopped_before(self, world: World) -> None:
        a = world.running()
        b = restart(world, a.run_id)
        world.store.runs.set_intent(b.id, Intent.stop)
        c = restart(world, b.id)
        d = restart(world, c.id)
        assert world.claim() is None
        finish(world, a, Reason.interrupted)
        assert claim(world).run_id == d.id

    @pytest.mark.parametrize(("of_a", "of_b"), [("best", "latest"), ("latest", "best")])
    def test_goes_on_from_the_best_when_either_asked_for_it(
        self, world: World, of_a: str, of_b: str
    ) -> None:
        a = world.running()
        save(world, a, 10, 0.5)
        b = restart(world, a.run_id, of_a)
        c = restart(world, b.id, of_b)
        save(world, a, 20, 0.1)
        save(world, a, 30, 0.3)
        assert 20 in held(world, a.run_id)
        finish(world, a, Reason.interrupted)
        lease = claim(world)
        assert lease.run_id == c.id
        best = "runs/1/attempt-1/checkpoints/step-20"
        assert lease.restore_points[-1] == RestorePoint(a.run_id, "full", best)
        assert held(world, a.run_id) == [20]


class TestWhatIsCarriedAlongAChain:
    """The weakest carry between a checkpoint's run and the child."""

    def chain(self, world: World, *carries: Document) -> tuple[int, list[int]]:
        """A run with one checkpoint, then restarts that saved nothing; (checkpoint, run ids)."""
        first = world.running()
        checkpoint = save(world, first, 10, 1.0)
        finish(world, first)
        ids = [first.run_id]
        for carry in carries:
            from_ = "scratch" if carry is SCRATCH else "latest"
            ids.append(restart(world, ids[-1], from_, carry).id)
        return checkpoint, ids

    @pytest.mark.parametrize("from_", ["latest", "best", 1])
    def test_the_weakest_counts(self, world: World, from_: str | int) -> None:
        checkpoint, (first, second) = self.chain(world, WEIGHTS)
        assert checkpoint == 1
        child = restart(world, second, from_, FULL)
        assert child.carry is not None
        assert (child.carry["kind"], child.carry["changed"]) == ("weights", [])
        assert "optimizer state" in child.carry["starts_anew"]
        last = claim(world).restore_points[-1]
        assert (last.run_id, last.carry) == (first, "weights")

    def test_what_the_parent_saves_meanwhile_is_carried_as_between_the_two(
        self, world: World
    ) -> None:
        self.chain(world, WEIGHTS)
        second = claim(world)
        child = restart(world, second.run_id, "latest", FULL)
        assert child.carry is not None
        assert child.carry["kind"] == "weights"
        save(world, second, 11)
        finish(world, second, Reason.interrupted)
        assert claim(world).restore_points[0] == RestorePoint(second.run_id, "full", None)
        carried = world.store.runs.get(child.id).carry
        assert carried == {**FULL, "step": 11, "waits_for_parent": False}

    def test_a_start_from_scratch_ends_the_chain(self, world: World) -> None:
        checkpoint, (_, second) = self.chain(world, SCRATCH)
        for wanted in (checkpoint, "best"):
            with pytest.raises(InvalidRequest):
                restart(world, second, wanted)
        restart(world, second, "latest")
        assert claim(world).restore_points == (RestorePoint(second, "full", None),)

    def test_a_later_attempt_is_told_the_same(self, world: World) -> None:
        _, (_, second) = self.chain(world, WEIGHTS)
        restart(world, second)
        lease = claim(world)
        world.store.leases.finish(lease.token, Finish(Reason.killed, ""))
        assert claim(world).restore_points == lease.restore_points
