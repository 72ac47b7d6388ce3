"""First weights from another run: what is waited for, chosen at the claim, and held meanwhile."""

from dataclasses import replace

import pytest

from app.errors import Conflict, InvalidRequest
from app.lifecycle import Intent, Reason
from app.store.records import Document, Lease, Restart, RestorePoint, RunRecord
from app.store.runs.first_weights import FirstWeights
from tests.store.conftest import World, new_run
from tests.store.runs.test_restarts import FULL, SCRATCH, claim, finish, held, save

BEST = {"run": 1, "which": "best", "prefix": "", "min_matched": 0.9}


def begin_with(world: World, init_from: Document, **changes: object) -> RunRecord:
    new = new_run(**changes)
    spec = {**new.spec, "init_from": init_from}
    return world.store.runs.create(replace(new, spec=spec))[0]


def source(world: World, name: str = "play") -> Lease:
    return world.running(name=name)


def path_of(lease: Lease, step: int) -> str:
    return f"runs/{lease.run_id}/attempt-{lease.attempt}/checkpoints/step-{step}"


@pytest.mark.parametrize("by", ["id", "name"])
def test_a_run_waits_for_the_one_whose_weights_it_begins_with(world: World, by: str) -> None:
    first = source(world)
    init_from = BEST | {"run": first.run_id if by == "id" else "play"}
    run = begin_with(world, init_from)
    assert (run.waits_for, run.waiting) == (first.run_id, None)
    assert world.store.runs.get(run.id).parent_id is None
    assert world.claim() is None
    save(world, first, 5, 0.5)
    save(world, first, 9, 0.7)
    finish(world, first)
    assert world.store.runs.get(run.id).waits_for is None
    lease = claim(world)
    assert lease.run_id == run.id
    assert lease.restore_points == (RestorePoint(first.run_id, "init", path_of(first, 5)),)
    assert world.store.runs.get(run.id).message is None


def test_a_run_that_waits_for_a_paused_one_says_how_that_goes_on(world: World) -> None:
    first = source(world)
    waiting = begin_with(world, BEST | {"run": first.run_id})
    world.store.runs.set_intent(first.run_id, Intent.pause, None)
    finish(world, first, Reason.interrupted)
    found = world.store.runs.get(waiting.id)
    assert found.waits_for == first.run_id
    assert found.waiting is not None
    assert found.waiting.why == "Run 1 is paused; `stoker resume 1` lets it go on."
    world.store.runs.resume(first.run_id, None)
    assert world.store.runs.get(waiting.id).waiting is None


@pytest.mark.parametrize(
    ("which", "scores", "step"), [("latest", (0.1, 0.9), 9), ("best", (None, None), 9)]
)
def test_which_checkpoint_is_chosen_when_the_run_is_claimed(
    world: World, which: str, scores: tuple[float | None, ...], step: int
) -> None:
    first = source(world)
    begin_with(world, BEST | {"run": first.run_id, "which": which})
    for at, score in zip((5, 9), scores, strict=True):
        save(world, first, at, score)
    finish(world, first, Reason.trainer_error)  # also of one that failed
    lease = claim(world)
    (point,) = lease.restore_points
    assert point.path == path_of(first, step)
    told = "It begins with the weights of run 1, which has failed before the end of its training."
    assert world.store.runs.get(lease.run_id).message == told


def test_a_source_without_a_checkpoint_is_told_to_the_agent(world: World) -> None:
    first = source(world)
    run = begin_with(world, BEST | {"run": first.run_id})
    finish(world, first, Reason.trainer_error)
    lease = claim(world)
    assert (lease.run_id, lease.restore_points) == (
        run.id, (RestorePoint(first.run_id, "init", None),)
    )  # fmt: skip


def test_a_named_checkpoint_is_not_waited_for(world: World) -> None:
    first = source(world)
    checkpoint = save(world, first, 5)
    run = begin_with(world, {"checkpoint": checkpoint, "prefix": "", "min_matched": 0.9})
    assert run.waits_for is None
    lease = claim(world)
    assert lease.restore_points == (RestorePoint(first.run_id, "init", path_of(first, 5)),)


def test_the_newest_of_a_name_is_meant_and_later_ones_are_not(world: World) -> None:
    source(world)
    second = world.submit(name="play")
    run = begin_with(world, BEST | {"run": "play"}, name="play")  # its own name means those before
    world.submit(name="play")
    assert world.store.runs.get(run.id).waits_for == second.id


@pytest.mark.parametrize("init_from", [{"checkpoint": 99}, {"run": 99}, {"run": "nobody"}])
def test_what_is_not_there_cannot_be_begun_with(world: World, init_from: Document) -> None:
    with pytest.raises(InvalidRequest, match="not there"):
        begin_with(world, {"which": "best", **init_from})
    assert world.store.runs.first_weights({"which": "best", **init_from}, None) is None


def test_a_run_only_waits_for_those_before_it(world: World) -> None:
    """So that nobody waits in a circle: the next id is of nobody yet."""
    first = source(world, name="a")
    next_id = first.run_id + 1
    with pytest.raises(InvalidRequest):
        begin_with(world, BEST | {"run": next_id})
    with pytest.raises(InvalidRequest):
        begin_with(world, BEST | {"run": "b"}, name="b")


def test_checkpoints_are_held_until_the_run_has_saved_one_of_its_own(world: World) -> None:
    first = source(world)
    save(world, first, 5, 0.5)
    begin_with(world, BEST | {"run": first.run_id})
    save(world, first, 7, 0.7)
    save(world, first, 9, 0.9)
    assert held(world, first.run_id) == [9, 5]  # which of them is meant is settled at the claim
    finish(world, first)
    lease = claim(world)
    assert held(world, first.run_id) == [5]
    best = next(c for c in world.store.checkpoints.list(first.run_id) if c.step == 5)
    with pytest.raises(Conflict, match="first weights"):
        world.store.checkpoints.request_delete(best.id)
    with pytest.raises(Conflict, match="begins with its weights"):
        world.store.runs.delete(first.run_id)
    save(world, lease, 1)
    assert held(world, first.run_id) == []
    world.store.runs.delete(first.run_id)


def test_a_later_attempt_begins_with_the_same_checkpoint(world: World) -> None:
    first = source(world)
    save(world, first, 5, 0.5)
    finish(world, first)
    run = begin_with(world, BEST | {"run": first.run_id})
    finish(world, claim(world), Reason.interrupted)
    lease = claim(world)
    assert (lease.run_id, lease.attempt) == (run.id, 2)
    assert [point.path for point in lease.restore_points] == [path_of(first, 5)]


def restart(world: World, parent: int, init_from: Document, carry: Document) -> RunRecord:
    new = new_run()
    order = Restart(parent, "scratch" if carry is SCRATCH else "latest", carry)
    spec = {**new.spec, "init_from": init_from}
    return world.store.runs.restart(order, replace(new, spec=spec))[0]


def test_a_restart_means_the_run_that_its_parent_meant(world: World) -> None:
    first = source(world)
    save(world, first, 5, 0.5)
    finish(world, first)
    by_name = BEST | {"run": "play"}
    parent = begin_with(world, by_name)
    finish(world, claim(world), Reason.trainer_error)
    world.submit(name="play")
    runs = world.store.runs
    assert runs.first_weights(by_name, parent.id) == FirstWeights(first.run_id, 1)
    other = claim(world)  # the newer one of that name
    child = restart(world, parent.id, by_name, SCRATCH)
    assert child.waits_for is None
    finish(world, other)
    lease = claim(world)
    assert lease.run_id == child.id
    assert lease.restore_points == (RestorePoint(first.run_id, "init", path_of(first, 5)),)


def test_a_restart_goes_on_from_its_parent_before_it_begins_anew(world: World) -> None:
    first = source(world)
    save(world, first, 5, 0.5)
    finish(world, first)
    init_from = BEST | {"run": first.run_id}
    parent = begin_with(world, init_from)
    finish(world, claim(world), Reason.trainer_error)
    restart(world, parent.id, init_from, FULL)
    assert claim(world).restore_points == (
        RestorePoint(parent.id, "full", None),
        RestorePoint(first.run_id, "init", path_of(first, 5)),
    )


def test_a_restart_that_goes_on_does_without_a_source_that_was_deleted(world: World) -> None:
    first = source(world)
    save(world, first, 5)
    finish(world, first)
    init_from = BEST | {"run": first.run_id}
    parent = begin_with(world, init_from)
    lease = claim(world)
    save(world, lease, 3)
    finish(world, lease, Reason.trainer_error)
    world.store.runs.delete(first.run_id)
    with pytest.raises(InvalidRequest, match="not there"):
        restart(world, parent.id, init_from, SCRATCH)
    restart(world, parent.id, init_from, FULL)
    assert claim(world).restore_points == (RestorePoint(parent.id, "full", None),)
