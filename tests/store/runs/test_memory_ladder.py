"""Rungs of the memory ladder, and rollbacks: recorded at an attempt's end, told at later claims."""

from collections.abc import Callable

import pytest

from app.lifecycle import CRASH_LOOP_LOSSES, FAIL, FREE_RETRY, Intent, Reason, RunState
from app.planning.rollback import Rollback
from app.store.records import Finish, Lease, NextRung, Restart, RunRecord
from tests.store.conftest import World, new_run

RAN_OUT = {"where": "device", "phase": "training", "wanted_bytes": 2**30, "free_bytes": 2**20}


def next_rung(number: int) -> NextRung:
    return NextRung({"number": number, "batch": 64 // number}, RAN_OUT, f"Rung {number}: smaller.")


def run_out(world: World, lease: Lease, number: int) -> RunRecord:
    """The attempt runs out of memory, and the ladder has a rung."""
    end = Finish(
        Reason.device_oom, "Out of memory.", policy=FREE_RETRY, next_rung=next_rung(number)
    )
    return world.store.leases.finish(lease.token, end)


def claimed(world: World) -> Lease:
    world.clock.now += 60.0
    lease = world.claim()
    assert lease is not None
    return lease


def test_each_attempt_stands_on_the_rung_below_and_costs_nothing(world: World) -> None:
    """More of them than a crash loop has losses, and with no retries left."""
    lease = world.running(max_retries=0)
    assert lease.memory_rung is None
    for number in range(1, CRASH_LOOP_LOSSES + 3):
        run = run_out(world, lease, number)
        assert (run.state, run.reason) == (RunState.queued, Reason.device_oom)
        assert (run.retries_used, run.losses) == (0, 0)
        lease = claimed(world)
        assert lease.memory_rung == {"number": number, "batch": 64 // number}
    assert [a.reason for a in world.store.attempts.list(1)][:-1] == [Reason.device_oom] * 5


def test_a_rung_is_an_event_that_says_what_ran_out_and_what_changes(world: World) -> None:
    run = run_out(world, world.running(), 1)
    assert run.message == "Out of memory."
    (retry,) = [event for event in world.store.events.list(1) if event.kind == "retry"]
    assert retry.data == {
        "reason": "device_oom",
        "message": "Out of memory. Rung 1: smaller.",
        "change": "Rung 1: smaller.",
        "ran_out": RAN_OUT,
        "memory_rung": {"number": 1, "batch": 64},
        "delay_seconds": 0.0,
        "retries_used": 0,
        "max_retries": 3,
    }


def lose(world: World, lease: Lease) -> None:
    (holder,) = world.store.leases.holders()
    assert world.store.leases.declare_lost(holder.token, holder.beat)


def drain(world: World, lease: Lease) -> None:
    world.store.leases.finish(lease.token, Finish(Reason.drained, ""))


def pause_and_resume(world: World, lease: Lease) -> None:
    world.store.runs.set_intent(lease.run_id, Intent.pause)
    run = world.store.leases.finish(lease.token, Finish(Reason.interrupted, ""))
    assert run.state is RunState.paused
    world.store.runs.resume(lease.run_id)


def run_out_with_the_host_full_of_others(world: World, lease: Lease) -> None:
    world.store.leases.finish(lease.token, Finish(Reason.host_oom, ""))


@pytest.mark.parametrize(
    "happen", [lose, drain, pause_and_resume, run_out_with_the_host_full_of_others]
)
def test_a_rung_stays_whatever_happens_to_the_attempts_on_it(
    world: World, happen: Callable[[World, Lease], None]
) -> None:
    run_out(world, world.running(), 2)
    happen(world, claimed(world))
    lease = claimed(world)
    assert (lease.attempt, lease.memory_rung) == (3, {"number": 2, "batch": 32})


def test_a_pause_that_comes_as_memory_runs_out_keeps_the_rung(world: World) -> None:
    lease = world.running()
    world.store.runs.set_intent(1, Intent.pause)
    assert run_out(world, lease, 1).state is RunState.paused
    assert world.store.events.list(1)[-1].data["change"] == "Rung 1: smaller."
    world.store.runs.resume(1)
    assert claimed(world).memory_rung == {"number": 1, "batch": 64}


def test_a_stop_that_comes_as_memory_runs_out_is_a_stop(world: World) -> None:
    lease = world.running()
    world.store.runs.set_intent(1, Intent.stop)
    run = run_out(world, lease, 1)
    assert (run.state, run.reason) == (RunState.stopped, Reason.stop_requested)
    assert "retry" not in [event.kind for event in world.store.events.list(1)]


def test_a_ladder_at_its_end_fails_with_budget_left(world: World) -> None:
    lease = world.running(max_retries=5)
    run = world.store.leases.finish(lease.token, Finish(Reason.host_oom, "All.", policy=FAIL))
    assert (run.state, run.reason, run.message) == (RunState.failed, Reason.host_oom, "All.")


def test_a_restart_begins_with_the_spec(world: World) -> None:
    lease = world.running()
    run_out(world, lease, 1)
    world.store.runs.set_intent(1, Intent.stop)
    carry = {"kind": "full", "starts_anew": [], "changed": []}
    world.store.runs.restart(Restart(1, "latest", carry), new_run())
    child = claimed(world)
    assert (child.run_id, child.memory_rung) == (2, None)


BACK = Rollback(1, from_step=40, step=55, epoch=2, position=300)


def go_back(world: World, lease: Lease, rollback: Rollback = BACK) -> RunRecord:
    end = Finish(Reason.nonfinite, "It became NaN.", policy=FREE_RETRY, rollback=rollback)
    return world.store.leases.finish(lease.token, end)


@pytest.mark.parametrize("happen", [lose, drain, pause_and_resume])
def test_a_rollback_is_told_whatever_happens_to_the_attempts_after_it(
    world: World, happen: Callable[[World, Lease], None]
) -> None:
    """Until the next one; it costs no retry, and is an event that says what is undone."""
    run = go_back(world, world.running(max_retries=1))
    assert (run.state, run.reason, run.retries_used) == (RunState.queued, Reason.nonfinite, 0)
    (retry,) = [event for event in world.store.events.list(1) if event.kind == "retry"]
    assert retry.data["change"] == BACK.sentence
    assert retry.data["message"] == f"It became NaN. {BACK.sentence}"
    assert retry.data["rollback"] == BACK.as_json()
    happen(world, claimed(world))
    lease = claimed(world)
    assert lease.rollback == BACK.as_json()
    later = Rollback(2, 80, 90, 3, 0)
    go_back(world, lease, later)
    assert claimed(world).rollback == later.as_json()


def test_a_pause_that_comes_as_it_goes_back_keeps_the_rollback(world: World) -> None:
    lease = world.running()
    world.store.runs.set_intent(1, Intent.pause)
    assert go_back(world, lease).state is RunState.paused
    retry = world.store.events.list(1)[-1].data
    assert (retry["rollback"], retry["paused"]) == (BACK.as_json(), True)
    world.store.runs.resume(1)
    assert claimed(world).rollback == BACK.as_json()


def test_a_restart_has_no_rollback_of_its_parent(world: World) -> None:
    go_back(world, world.running())
    world.store.runs.set_intent(1, Intent.stop)
    carry = {"kind": "full", "starts_anew": [], "changed": []}
    world.store.runs.restart(Restart(1, "latest", carry), new_run())
    assert claimed(world).rollback is None
