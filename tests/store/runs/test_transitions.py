"""Where runs go: the table of app.lifecycle, as the store carries it out."""

from collections.abc import Callable
from itertools import product

import pytest
from sqlalchemy import JSON, BigInteger, Double, Integer, select, update
from sqlalchemy.exc import IntegrityError, InternalError

from app.errors import ActionNotAllowed
from app.lifecycle import (
    CRASH_LOOP_LOSSES,
    FAIL,
    FREE_RETRY,
    REASON_POLICY,
    RETRY,
    SUCCEED,
    TERMINAL,
    TRANSITIONS,
    Intent,
    Reason,
    RunState,
    finish_target,
)
from app.store.records import Beat, Finish, Lease, NewCheckpoint, RunRecord
from app.store.runs.transitions import finish_cases
from app.store.tables import CHANGEABLE_WHEN_TERMINAL, run_documents, runs
from tests.store.conftest import World
from tests.test_lifecycle import ALLOWED

POLICIES = (SUCCEED, RETRY, FREE_RETRY, FAIL)


def test_the_statement_chooses_exactly_what_the_table_says(world: World) -> None:
    """Every reason × intent × budget × losses; also with a policy in place of the reason's own."""
    run = world.submit()
    combinations = list(
        product(Intent, (0, 3), (0, 3), (0, CRASH_LOOP_LOSSES - 1, CRASH_LOOP_LOSSES, 9))
    )
    ends = [*((reason, None) for reason in REASON_POLICY), *product([Reason.host_oom], POLICIES)]
    cases = [
        case
        for reason, policy in ends
        for case in finish_cases(reason, runs.c.losses, runs.c.retries_used, policy)
    ]
    chosen = select(*[case.label(f"c{i}") for i, case in enumerate(cases)])
    with world.store.database.write() as connection:
        for intent, used, most, losses in combinations:
            connection.execute(
                update(runs)
                .where(runs.c.id == run.id)
                .values(intent=intent, retries_used=used, max_retries=most, losses=losses)
            )
            expected = [
                value
                for reason, policy in ends
                for value in finish_target(
                    reason,
                    intent,
                    retries_used=used,
                    max_retries=most,
                    losses=losses,
                    policy=policy,
                )
            ]
            row = connection.execute(chosen).one()
            assert list(row) == expected, (intent, used, most, losses)


def hold(world: World) -> None:
    world.running()


def queue(world: World) -> None:
    world.submit()


def pause_queued(world: World) -> None:
    world.store.runs.set_intent(world.submit().id, Intent.pause)


START = {RunState.queued: queue, RunState.running: hold, RunState.paused: pause_queued}


def end(reason: Reason, intent: Intent | None = None) -> Callable[[World], None]:
    def act(world: World) -> None:
        if intent is not None:
            world.store.runs.set_intent(1, intent)
        world.store.leases.finish(token_of(world), Finish(reason, ""))

    return act


def lose(intent: Intent | None = None, *, spent: bool = False) -> Callable[[World], None]:
    def act(world: World) -> None:
        if intent is not None:
            world.store.runs.set_intent(1, intent)
        if spent:
            with world.store.database.write() as connection:
                connection.execute(update(runs).values(retries_used=99))
        (holder,) = world.store.leases.holders()
        assert world.store.leases.declare_lost(holder.token, holder.beat)

    return act


def wish(intent: Intent) -> Callable[[World], None]:
    return lambda world: (world.store.runs.set_intent(1, intent), None)[1]


def token_of(world: World) -> str:
    return world.store.leases.holders()[0].token


ACTS: dict[tuple[str, str, str], Callable[[World], object]] = {
    ("queued", "running", "agent"): lambda world: world.claim(),
    ("queued", "paused", "API"): wish(Intent.pause),
    ("queued", "stopped", "API"): wish(Intent.stop),
    ("running", "succeeded", "agent"): end(Reason.completed, Intent.stop),
    ("running", "stopped", "agent"): end(Reason.interrupted, Intent.kill),
    ("running", "paused", "agent"): end(Reason.interrupted, Intent.pause),
    ("running", "queued", "agent"): end(Reason.killed),
    ("running", "failed", "agent"): end(Reason.nonfinite),
    ("running", "queued", "observer"): lose(),
    ("running", "stopped", "observer"): lose(Intent.stop),
    ("running", "paused", "observer"): lose(Intent.pause),
    ("running", "failed", "observer"): lose(spent=True),
    ("paused", "queued", "API"): lambda world: world.store.runs.resume(1),
    ("paused", "stopped", "API"): wish(Intent.stop),
}


def test_every_transition_of_the_table_has_its_act() -> None:
    assert set(ACTS) == {(t.source, t.target, t.by) for t in TRANSITIONS}


@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda t: f"{t.source}-{t.target}-{t.by}")
def test_a_transition_moves_the_run_and_tells_it_in_one_event(
    world: World, transition: object
) -> None:
    source, target, by = (getattr(transition, name) for name in ("source", "target", "by"))
    START[source](world)
    before = world.store.runs.get(1)
    assert before.state is source
    ACTS[source, target, by](world)
    after = world.store.runs.get(1)
    assert after.state is target
    assert after.version > before.version
    assert (after.finished_at is not None) == (target in TERMINAL)
    events = world.store.events.list(1)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    moves = [e.data for e in events if e.kind == "state" and e.data["from"] != e.data["to"]]
    assert (moves[-1]["from"], moves[-1]["to"]) == (source, target)
    assert moves[-1]["reason"] == after.reason


def arrange(world: World, state: RunState, intent: Intent) -> int:
    """A new run in a state with an intent; its row is set, since some are a long way off."""
    run = world.submit()
    changed = update(runs).where(runs.c.id == run.id).values(state=state, intent=intent)
    with world.store.database.write() as connection:
        connection.execute(changed)
    return run.id


def act(world: World, run_id: int, verb: str) -> tuple[RunRecord, bool]:
    if verb == "resume":
        return world.store.runs.resume(run_id)
    return world.store.runs.set_intent(run_id, Intent(verb))


SO_ALREADY = {
    (RunState.queued, Intent.run): {"resume"},
    (RunState.paused, Intent.pause): {"pause"},
    (RunState.running, Intent.run): {"resume"},
    (RunState.running, Intent.pause): {"pause"},
    (RunState.running, Intent.stop): {"stop"},
    (RunState.running, Intent.kill): {"stop", "kill"},
    (RunState.succeeded, Intent.run): set(),
    (RunState.failed, Intent.run): set(),
    (RunState.stopped, Intent.stop): {"stop", "kill"},
}
VERBS = ("pause", "stop", "kill", "resume")
PASSIVE = {"pause": "paused", "stop": "stopped", "kill": "killed", "resume": "resumed"}


@pytest.mark.parametrize(("state", "intent"), SO_ALREADY)
def test_a_verb_acts_or_is_so_already_or_is_refused_with_what_is_allowed(
    world: World, state: RunState, intent: Intent
) -> None:
    allowed = ALLOWED[state, intent]
    for verb in VERBS:
        run_id = arrange(world, state, intent)
        if verb in allowed:
            run, changed = act(world, run_id, verb)
            assert changed, verb
            assert run.intent == ("run" if verb == "resume" else verb)
        elif verb in SO_ALREADY[state, intent]:
            assert not act(world, run_id, verb)[1], verb
        else:
            with pytest.raises(ActionNotAllowed, match=f"cannot be {PASSIVE[verb]}") as refusal:
                act(world, run_id, verb)
            assert refusal.value.extensions["allowed_actions"] == allowed


def test_losses_in_a_row_are_a_crash_loop_and_progress_ends_the_row(world: World) -> None:
    world.submit(max_retries=100)

    def attempt(*, made_progress: bool) -> str:
        lease = world.claim()
        assert lease is not None
        saved = [saved_by(lease)] if made_progress else []
        end = Finish(Reason.crashed, "boom", final=Beat(checkpoints=saved))
        return world.store.leases.finish(lease.token, end).state

    assert [attempt(made_progress=p) for p in (False, False, True, False, False)] == ["queued"] * 5
    assert attempt(made_progress=False) == "failed"
    run = world.store.runs.get(1)
    assert run.reason is Reason.crash_loop
    assert "boom" in str(run.message)


def saved_by(lease: Lease) -> NewCheckpoint:
    path = f"runs/{lease.run_id}/attempt-{lease.attempt}/checkpoints/step-{lease.attempt}"
    return NewCheckpoint(lease.attempt, 0, path, 1, {}, 0.0)


@pytest.mark.parametrize("lost", [False, True])
def test_progress_gives_the_retry_budget_back(world: World, lost: bool) -> None:
    """A run of a week may be interrupted more often than `max_retries`, but not in vain."""
    world.submit(max_retries=1)

    def attempt(*, saves: bool) -> tuple[str, int]:
        world.clock.now += 100
        lease = world.claim()
        assert lease is not None
        beat = Beat(checkpoints=[saved_by(lease)] if saves else [])
        if lost:
            world.store.leases.beat(lease.token, beat)
            (holder,) = world.store.leases.holders()
            assert world.store.leases.declare_lost(holder.token, holder.beat)
        else:
            world.store.leases.finish(lease.token, Finish(Reason.crashed, "", final=beat))
        run = world.store.runs.get(1)
        return run.state, run.retries_used

    assert [attempt(saves=True) for _ in range(5)] == [("queued", 1)] * 5
    assert attempt(saves=False) == ("failed", 1)


def test_what_a_run_that_is_over_had_used_stays_told(world: World) -> None:
    lease = world.running()
    world.store.leases.finish(lease.token, Finish(Reason.crashed, ""))
    again = world.claim()
    assert again is not None
    final = Beat(checkpoints=[saved_by(again)])
    run = world.store.leases.finish(again.token, Finish(Reason.completed, "", final=final))
    assert (run.state, run.retries_used) == ("succeeded", 1)


def test_without_a_retry_in_the_spec_progress_gives_none(world: World) -> None:
    lease = world.running(max_retries=0)
    final = Beat(checkpoints=[saved_by(lease)])
    end = Finish(Reason.crashed, "", final=final)
    assert world.store.leases.finish(lease.token, end).state == "failed"


def test_a_free_retry_without_progress_gives_nothing_back(world: World) -> None:
    world.submit(max_retries=2)
    for reason, used in ((Reason.crashed, 1), (Reason.drained, 1), (Reason.slot_busy, 1)):
        lease = world.claim()
        assert lease is not None
        run = world.store.leases.finish(lease.token, Finish(reason, ""))
        assert (run.state, run.retries_used, run.losses) == ("queued", used, 1)


def test_what_was_lost_before_a_person_asked_to_go_on_does_not_count(world: World) -> None:
    world.submit(max_retries=100)

    def attempt() -> str:
        lease = world.claim()
        assert lease is not None
        return world.store.leases.finish(lease.token, Finish(Reason.crashed, "boom")).state

    for asked_while in ("queued", "running"):
        assert [attempt() for _ in range(CRASH_LOOP_LOSSES - 1)][-1] == "queued"
        lease = world.claim() if asked_while == "running" else None
        world.store.runs.set_intent(1, Intent.pause)
        world.store.runs.resume(1)
        assert world.store.runs.get(1).losses == 0
        if lease is not None:
            world.store.leases.finish(lease.token, Finish(Reason.drained, ""))


def test_free_retries_use_neither_budget_nor_patience(world: World) -> None:
    world.submit(max_retries=0)
    for _ in range(CRASH_LOOP_LOSSES + 2):
        lease = world.claim()
        assert lease is not None
        run = world.store.leases.finish(lease.token, Finish(Reason.drained, ""))
        assert (run.state, run.retries_used, run.losses) == ("queued", 0, 0)


def test_a_retry_waits_for_its_time(world: World) -> None:
    lease = world.running()
    end = Finish(Reason.killed, "", retry_delay_seconds=10.0)
    run = world.store.leases.finish(lease.token, end)
    assert run.retry_at == world.clock.now + 10
    assert (run.worker, run.retries_used) == (None, 1)
    assert world.claim() is None
    world.clock.now += 10
    second = world.claim()
    assert second is not None
    assert second.attempt == 2


def test_a_lost_attempt_is_no_loss_when_it_has_saved(world: World) -> None:
    lease = world.running()
    saved = NewCheckpoint(9, 0, "runs/1/attempt-1/checkpoints/step-9", 1, {}, 0.0)
    adopted = NewCheckpoint(3, 0, "runs/1/attempt-0/checkpoints/step-3", 1, {}, 0.0)

    def lose_it() -> int:
        (holder,) = world.store.leases.holders()
        assert world.store.leases.declare_lost(holder.token, holder.beat)
        world.clock.now += 5.0
        return world.store.runs.get(1).losses

    world.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
    assert lose_it() == 0
    second = world.claim()
    assert second is not None
    world.store.leases.beat(second.token, Beat(checkpoints=[adopted]))
    assert lose_it() == 1


class TestTerminalRunsAreImmutable:
    """The triggers, against code that forgot."""

    def test_no_other_column_changes(self, world: World) -> None:
        world.submit()
        world.store.runs.set_intent(1, Intent.stop)
        for column in runs.columns:
            if column.name in CHANGEABLE_WHEN_TERMINAL:
                continue
            is_number = isinstance(column.type, Integer | BigInteger | Double)
            value = 12345 if is_number else {"x": 1} if isinstance(column.type, JSON) else "x"
            refused = pytest.raises((IntegrityError, InternalError), match="over does not change")
            with refused, world.store.database.write() as connection:
                connection.execute(update(runs).values({column.name: value}))

    def test_what_people_write_on_it_still_changes(self, world: World) -> None:
        world.submit()
        world.store.runs.set_intent(1, Intent.stop)
        changes = {"name": "b", "notes": "c", "labels": {"d": "e"}, "priority": 1}
        assert world.store.runs.update(1, changes).notes == "c"

    def test_rows_are_never_deleted_and_documents_never_changed(self, world: World) -> None:
        world.submit()
        for statement in (runs.delete(), update(run_documents).values(spec={})):
            refused = pytest.raises((IntegrityError, InternalError), match="does not change")
            with refused, world.store.database.write() as connection:
                connection.execute(statement)


def test_ids_are_never_reused(world: World) -> None:
    first, _ = world.store.tokens.create("a")
    with world.store.database.write() as connection:
        connection.exec_driver_sql("DELETE FROM tokens")
    assert world.store.tokens.create("b")[0].id > first.id
