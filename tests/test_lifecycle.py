"""The lifecycle table: every end of an attempt leads along a transition that the table has."""

from itertools import product

import pytest

from app.lifecycle import (
    CRASH_LOOP_LOSSES,
    FAIL,
    FREE_RETRY,
    LEASE_BEATS,
    REASON_POLICY,
    TERMINAL,
    TRANSITIONS,
    Intent,
    Reason,
    RunState,
    allowed_actions,
    derive_status,
    finish_target,
)

# What an end leads to, as the house plan (4 Lifecycle) and the reference of reasons say it: the
# outcome, and whether a retry is free of the budget. Written by hand, not read from the code.
ENDS = {
    "completed": ("succeed", False),
    "early_stopped": ("succeed", False),
    "max_duration": ("succeed", False),
    "interrupted": ("retry", True),
    "drained": ("retry", True),
    "preempted": ("retry", True),
    "slot_busy": ("retry", True),
    "checkpoint_error": ("retry", True),
    "worker_lost": ("retry", False),
    "killed": ("retry", False),
    "crashed": ("retry", False),
    "hang": ("retry", False),
    "gpu_fault": ("retry", False),
    "host_oom": ("retry", False),
    "checkpoint_write_error": ("retry", False),
    "device_oom": ("fail", False),
    "nonfinite": ("fail", False),
    "data_error": ("fail", False),
    "dataset_changed": ("fail", False),
    "checkpoint_unusable": ("fail", False),
    "carry_mismatch": ("fail", False),
    "disk_full": ("fail", False),
    "spec_error": ("fail", False),
    "trainer_error": ("fail", False),
}
# Chosen by `finish`, so no attempt ends with them.
CHOSEN = {"stop_requested", "kill_requested", "pause_requested", "crash_loop"}

OVER = ["restart", "delete"]
PAUSED = ["resume", "stop", "kill", "restart"]
# What is accepted: an intent only escalates, resume withdraws a pause, a restart is always
# possible, and only what is over can be deleted.
ALLOWED = {
    ("queued", "run"): ["pause", "stop", "kill", "restart"],
    ("queued", "pause"): ["resume", "stop", "kill", "restart"],
    ("queued", "stop"): ["kill", "restart"],
    ("queued", "kill"): ["restart"],
    ("running", "run"): ["pause", "stop", "kill", "restart"],
    ("running", "pause"): ["resume", "stop", "kill", "restart"],
    ("running", "stop"): ["kill", "restart"],
    ("running", "kill"): ["restart"],
    ("paused", "run"): PAUSED,
    ("paused", "pause"): PAUSED,
    ("paused", "stop"): PAUSED,
    ("paused", "kill"): PAUSED,
    ("succeeded", "run"): OVER,
    ("succeeded", "pause"): OVER,
    ("succeeded", "stop"): OVER,
    ("succeeded", "kill"): OVER,
    ("failed", "run"): OVER,
    ("failed", "pause"): OVER,
    ("failed", "stop"): OVER,
    ("failed", "kill"): OVER,
    ("stopped", "run"): OVER,
    ("stopped", "pause"): OVER,
    ("stopped", "stop"): OVER,
    ("stopped", "kill"): OVER,
}


def test_every_reason_leads_where_the_plan_says():
    found = {reason: (policy.outcome, policy.free) for reason, policy in REASON_POLICY.items()}
    assert found == ENDS
    assert set(Reason) == set(ENDS) | CHOSEN


@pytest.mark.parametrize("state", RunState)
@pytest.mark.parametrize("intent", Intent)
def test_what_a_run_accepts(state, intent):
    assert allowed_actions(state, intent) == ALLOWED[state, intent]


def test_fifteen_beats_are_a_lease_and_three_losses_a_crash_loop():
    assert (LEASE_BEATS, CRASH_LOOP_LOSSES) == (15, 3)


def edges(by: str) -> set[tuple[RunState, RunState]]:
    return {(t.source, t.target) for t in TRANSITIONS if t.by == by}


def test_every_end_of_an_attempt_is_a_transition_of_the_table():
    for reason, intent, used, losses in product(
        REASON_POLICY, Intent, (0, 3), (0, CRASH_LOOP_LOSSES)
    ):
        target, _ = finish_target(reason, intent, retries_used=used, max_retries=3, losses=losses)
        assert (RunState.running, target) in edges("agent"), (reason, intent)


def test_nothing_leaves_a_terminal_state():
    assert not {t.source for t in TRANSITIONS} & TERMINAL


def test_a_stop_never_reads_as_completed_and_a_completion_never_as_stopped():
    def target(reason, intent):
        return finish_target(reason, intent, retries_used=0, max_retries=3, losses=0)

    assert target(Reason.interrupted, Intent.stop) == (RunState.stopped, Reason.stop_requested)
    assert target(Reason.completed, Intent.stop) == (RunState.succeeded, Reason.completed)
    assert target(Reason.killed, Intent.kill) == (RunState.stopped, Reason.kill_requested)
    assert target(Reason.disk_full, Intent.stop) == (RunState.stopped, Reason.stop_requested)


def test_retries_spend_the_budget_unless_they_are_free():
    def target(reason, used):
        return finish_target(reason, Intent.run, retries_used=used, max_retries=3, losses=1)[0]

    assert target(Reason.worker_lost, 2) is RunState.queued
    assert target(Reason.worker_lost, 3) is RunState.failed
    assert target(Reason.drained, 3) is RunState.queued


def test_losses_without_progress_are_a_crash_loop_unless_the_retry_is_free():
    def target(reason):
        return finish_target(
            reason, Intent.run, retries_used=0, max_retries=9, losses=CRASH_LOOP_LOSSES
        )

    assert target(Reason.crashed) == (RunState.failed, Reason.crash_loop)
    assert target(Reason.drained) == (RunState.queued, Reason.drained)


def test_the_policy_that_is_given_takes_the_place_of_the_reasons_own():
    """A rung of the memory ladder is tried, whatever the budget; past the last one nothing is."""

    def target(policy, intent=Intent.run):
        spent = {"retries_used": 3, "max_retries": 3, "losses": CRASH_LOOP_LOSSES}
        return finish_target(Reason.host_oom, intent, policy=policy, **spent)

    assert target(FREE_RETRY) == (RunState.queued, Reason.host_oom)
    assert target(FREE_RETRY, Intent.pause)[0] is RunState.paused
    assert target(FREE_RETRY, Intent.stop)[0] is RunState.stopped
    assert target(FAIL) == (RunState.failed, Reason.host_oom)
    assert target(None) == (RunState.failed, Reason.crash_loop)


def test_a_pause_keeps_the_run_but_not_past_a_failure():
    def target(reason):
        return finish_target(reason, Intent.pause, retries_used=0, max_retries=3, losses=0)[0]

    assert target(Reason.interrupted) is RunState.paused
    assert target(Reason.worker_lost) is RunState.paused
    assert target(Reason.data_error) is RunState.failed


@pytest.mark.parametrize(
    ("state", "intent", "status"),
    [
        (RunState.running, Intent.stop, "stopping"),
        (RunState.running, Intent.kill, "killing"),
        (RunState.running, Intent.pause, "pausing"),
        (RunState.running, Intent.run, "running"),
        (RunState.queued, Intent.run, "queued"),
        (RunState.paused, Intent.pause, "paused"),
        (RunState.failed, Intent.run, "failed"),
    ],
)
def test_the_word_shown_to_people(state, intent, status):
    shown = derive_status(
        state,
        intent,
        phase="training",
        waits_for_parent=False,
        waits_for_memory=False,
        retrying=False,
    )
    assert shown == status


def test_a_queued_run_says_what_it_waits_for():
    def shown(**waits):
        return derive_status(RunState.queued, Intent.run, phase=None, **waits)

    assert (
        shown(waits_for_parent=True, waits_for_memory=True, retrying=True) == "waiting_for_parent"
    )
    memory = shown(waits_for_parent=False, waits_for_memory=True, retrying=True)
    assert memory == "waiting_for_memory"
    assert shown(waits_for_parent=False, waits_for_memory=False, retrying=True) == "retrying"
