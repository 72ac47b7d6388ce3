"""The queue: the order in which runs are claimed, and how one is moved in it."""

import random
from typing import Any

import pytest

from app.errors import ActionNotAllowed, NotFound, PreconditionFailed
from app.lifecycle import Intent
from app.store.records import Restart
from tests.store.conftest import World, new_run


def order(world: World) -> list[int]:
    return [run.id for run in world.store.runs.queue().data]


def test_whatever_was_moved_before_a_run_goes_where_it_is_told(world: World) -> None:
    """Against a plain list, with runs of several priorities and a restart on its parent's place."""
    chosen = random.Random(7)
    for _ in range(4):
        world.submit(priority=chosen.choice([-5, 0, 0, 3]))
    parent = world.submit()
    carry = {"kind": "scratch", "changed": [], "starts_anew": [], "why": ""}
    world.store.runs.restart(Restart(parent.id, "scratch", carry=carry), new_run())
    for _ in range(60):
        expected = order(world)
        run, *others = chosen.sample(expected, k=len(expected))
        to: Any = chosen.choice(["first", "last", others[0]])
        expected.remove(run)
        index = {"first": 0, "last": len(expected)}.get(to)
        after = isinstance(to, int) and chosen.random() < 0.5
        beside = index if index is not None else expected.index(to) + after
        expected.insert(beside, run)
        world.store.runs.move(run, to, after=after)
        assert order(world) == expected, (run, to)
        pages, cursor = [], None
        while True:
            page = world.store.runs.queue(2, cursor)
            pages += [one.id for one in page.data]
            if (cursor := page.next_cursor) is None:
                break
        assert pages == expected
    last = world.submit(priority=-1000).id
    world.store.runs.move(order(world)[0], "last")
    assert order(world)[-2] == last
    later = world.submit(priority=-1000).id
    assert order(world)[-1] == later, "what comes later comes behind what was moved to the end"


def test_two_restarts_on_their_parents_place_are_told_apart_by_their_ids(world: World) -> None:
    parent = world.submit()
    carry = {"kind": "scratch", "changed": [], "starts_anew": [], "why": ""}
    one, two = (
        world.store.runs.restart(Restart(parent.id, "scratch", carry=carry), new_run())[0].id
        for _ in range(2)
    )
    assert order(world) == [one, two]
    between = world.submit().id
    world.store.runs.move(between, two)
    assert order(world) == [one, between, two]
    world.store.runs.move(between, two, after=True)
    assert order(world) == [one, two, between]
    world.store.runs.move(between, one, after=True)
    assert order(world) == [one, between, two]


def test_a_run_takes_over_the_priority_of_where_it_goes(world: World) -> None:
    high, low = world.submit(priority=5), world.submit(priority=-5)
    middle = world.submit()
    assert world.store.runs.move(middle.id, high.id).priority == 5
    assert world.store.runs.move(middle.id, "last").priority == -5
    moved = world.store.runs.move(middle.id, low.id, world.store.runs.get(middle.id).version)
    assert moved.version == middle.version + 3
    assert order(world) == [high.id, middle.id, low.id]


def test_a_run_alone_or_before_itself_stays(world: World) -> None:
    run = world.submit()
    places: tuple[Any, ...] = ("first", "last", run.id)
    for to in places:
        for after in (False, True):
            assert world.store.runs.move(run.id, to, after=after).version == run.version
    assert order(world) == [run.id]


def test_only_what_waits_is_moved_and_only_before_what_waits(world: World) -> None:
    running = world.running().run_id
    waiting, paused = world.submit().id, world.submit().id
    world.store.runs.set_intent(paused, Intent.pause)
    wrong: list[tuple[int, Any]] = [
        (running, "first"), (waiting, running), (paused, "last"), (waiting, paused),
    ]  # fmt: skip
    for run, to in wrong:
        with pytest.raises(ActionNotAllowed, match="only a run that waits") as caught:
            world.store.runs.move(run, to)
        assert "stop" in caught.value.extensions["allowed_actions"]
    with pytest.raises(NotFound):
        world.store.runs.move(waiting, 999)
    with pytest.raises(PreconditionFailed):
        world.store.runs.move(waiting, "first", 99)
