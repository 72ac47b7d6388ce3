"""A disk that does not answer holds up what needs it, and no other run.

A FIFO stands for it: to open one for reading blocks in the kernel until somebody writes.
"""

import os
import threading
from contextlib import contextmanager

import pytest

from app.lifecycle import Intent, Reason, RunState
from app.store.artifact_root import MARKER
from tests.worker.eventually import eventually
from worker.agent.errand import Errand

SLOW = {"steps": 10**6, "pace": 0.02}
LONGER_THAN_A_LEASE = "4"  # of a farm's agent


@contextmanager
def hanging(path):
    """In place of a file, one that cannot be read until the block has ended."""
    kept = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    try:
        yield
    finally:
        path.rename(path.with_suffix(".fifo"))
        path.write_bytes(kept)
        release(path.with_suffix(".fifo"))


def release(fifo):
    """Let those go who wait for it; nobody may."""
    for _ in range(100):
        try:
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return


def beats(farm, run_id):
    return {holder.run_id: holder.beat for holder in farm.store.leases.holders()}[run_id]


def wait_for_beats(farm, run_id, number):
    end = beats(farm, run_id) + number
    eventually(lambda: beats(farm, run_id) >= end, f"run {run_id} goes on being beaten")


def waiting(farm, run_id):
    (worker,) = farm.store.workers.list(alive_only=True)
    return {slot["run_id"]: slot["waiting"] for slot in worker.slots}.get(run_id) or ""


def says_away(farm):
    (worker,) = farm.store.workers.list(alive_only=True)
    return worker.facts["artifacts_away"]


@pytest.fixture
def two_slots(make_farm):
    farm = make_farm()
    farm.start_agent(STOKER_SLOTS="2")
    return farm


def test_what_earlier_attempts_left_is_looked_at_beside_the_other_runs(make_farm, tmp_path):
    farm, opened = make_farm(), tmp_path / "opened"
    opened.touch()
    farm.start_agent(STOKER_SLOTS="2", MANIFEST_OPENS=str(opened))
    other, run_id = farm.submit(**SLOW), farm.submit(**SLOW)
    farm.wait_for_step(other, 3)
    farm.wait_for_step(run_id, 6)
    farm.want(run_id, Intent.pause)
    assert farm.wait_for_end(run_id).state is RunState.paused
    with hanging(opened):
        farm.store.runs.resume(run_id)
        farm.wait_for_attempt(run_id, 2)
        eventually(lambda: "being looked at" in waiting(farm, run_id), "it is said")
        farm.wait_for_step(other, farm.step(other) + 50)
        wait_for_beats(farm, run_id, 20)
        assert not farm.folder(run_id, 2).exists()
    farm.wait_for_step(run_id, 6)
    assert farm.run(run_id).attempt == 2
    assert farm.run(other).attempt == 1


def test_a_marker_that_cannot_be_read_holds_up_claims_and_no_run(two_slots):
    farm = two_slots
    run_id = farm.submit(**SLOW)
    farm.wait_for_step(run_id, 3)
    with hanging(farm.settings.artifact_root / MARKER):
        eventually(lambda: "does not answer" in (says_away(farm) or ""), "it is said")
        queued = farm.submit(steps=3)
        wait_for_beats(farm, run_id, 5)
        assert farm.run(queued).state is RunState.queued
    assert farm.wait_for_end(queued).state is RunState.succeeded
    assert farm.run(run_id).attempt == 1


def test_a_root_that_is_slow_is_not_away(make_farm, tmp_path):
    """A trainer that always fails was tried again for ever, and for nothing."""
    farm, slow = make_farm(), tmp_path / "slow"
    farm.start_agent(ROOT_SLOW_WHILE=str(slow))
    crash = {"20": "crash"}
    run_id = farm.submit(steps=30, pace=0.05, at=crash, always=True, policy={"max_retries": 0})
    farm.wait_for_step(run_id, 3)
    slow.touch()
    run = farm.wait_for_end(run_id)
    assert (run.state, run.reason, run.attempt) == (RunState.failed, Reason.crashed, 1)
    assert "fails on purpose" in run.message


def test_under_a_root_that_is_always_slow_runs_start_and_what_is_not_needed_goes(
    make_farm, tmp_path
):
    farm, slow = make_farm(), tmp_path / "slow"
    slow.touch()
    farm.start_agent(ROOT_SLOW_WHILE=str(slow))
    run_id = farm.submit(steps=50, pace=0.1, checkpoint={"keep_last": 1, "keep_best": 0})
    eventually(lambda: saved(farm, run_id)[1:] == [] and farm.step(run_id) > 12, "old ones go")
    run = farm.wait_for_end(run_id)
    assert (run.state, run.attempt) == (RunState.succeeded, 1)
    farm.store.runs.delete(run_id)
    eventually(lambda: not farm.folder(run_id).parent.exists(), "a deleted run's artifacts go")


def test_a_log_that_cannot_be_read_holds_up_neither_the_other_run_nor_the_lease(two_slots):
    farm = two_slots
    run_id, other = farm.submit(**SLOW), farm.submit(**SLOW)
    farm.wait_for_step(run_id, 3)
    with hanging(farm.folder(run_id) / "trainer.log"):
        farm.wait_for_step(other, farm.step(other) + 50)
        wait_for_beats(farm, run_id, 20)
    farm.wait_for_step(run_id, farm.step(run_id) + 20)
    farm.want(run_id, Intent.stop)
    assert farm.wait_for_end(run_id).state is RunState.stopped
    assert farm.run(run_id).attempt == farm.run(other).attempt == 1


def test_a_disk_that_goes_between_two_beats_holds_up_nobody(two_slots):
    farm = two_slots
    hangs, other = farm.submit(at={"3": "hang"}), farm.submit(**SLOW)
    farm.wait_for_step(hangs, 3)
    farm.wait_for_step(other, 3)
    with hanging(farm.settings.artifact_root / MARKER), hanging(farm.folder(hangs) / "pulse"):
        wait_for_beats(farm, other, 20)
        wait_for_beats(farm, hangs, 5)
    farm.wait_for_step(other, farm.step(other) + 5)
    assert (farm.run(hangs).attempt, farm.run(other).attempt) == (1, 1)


def test_a_call_waits_for_the_thread_that_this_host_has_no_room_for():
    """A stack as large as the address space stands for the shortage."""
    usual = threading.stack_size(2**46)
    try:
        errand = Errand(lambda: "done")
        assert not errand.is_done()
    finally:
        threading.stack_size(usual)
    assert errand.is_done(60.0)
    assert errand.result() == "done"


@pytest.fixture
def slow_removal(make_farm, tmp_path):
    """A farm that removes no checkpoint until the second call."""
    farm, fifo = make_farm(), tmp_path / "disk"
    os.mkfifo(fifo)
    farm.start_agent(REMOVAL_OPENS=str(fifo), REMOVAL_SECONDS=LONGER_THAN_A_LEASE)

    def answer():
        fifo.rename(tmp_path / "before")
        fifo.touch()
        release(tmp_path / "before")

    yield farm, answer
    if not (tmp_path / "before").exists():
        answer()


def saved(farm, run_id):
    return [c.step for c in farm.store.checkpoints.list(run_id) if c.state == "saved"]


KEEPS_ONE = {"keep_last": 1, "keep_best": 0}


def test_a_run_keeps_its_lease_while_its_end_waits_for_a_removal(slow_removal):
    farm, _ = slow_removal
    run = farm.wait_for_end(farm.submit(steps=20, pace=0.05, checkpoint=KEEPS_ONE))
    assert (run.state, run.attempt) == (RunState.succeeded, 1)


def test_what_became_too_many_during_a_removal_goes_after_it(slow_removal):
    farm, answer = slow_removal
    run_id = farm.submit(steps=50, pace=0.1, at={"22": "hang"}, checkpoint=KEEPS_ONE)
    eventually(lambda: saved(farm, run_id) == [20, 15, 10], "the first removal lasts")
    answer()
    eventually(lambda: saved(farm, run_id) == [20], "the others go as well")


def test_old_checkpoints_are_removed_beside_the_other_runs(make_farm, tmp_path):
    farm = make_farm()
    fifo = tmp_path / "disk"
    os.mkfifo(fifo)
    given = {"REMOVAL_OPENS": str(fifo), "REMOVAL_SECONDS": LONGER_THAN_A_LEASE}
    farm.start_agent(STOKER_SLOTS="2", **given)
    keeps = {"keep_last": 1, "keep_best": 0}
    saves, other = farm.submit(**SLOW, checkpoint=keeps), farm.submit(**SLOW)

    def removing():
        return [c for c in farm.store.checkpoints.list(saves) if c.state == "removing"]

    eventually(removing, "a removal is under way")
    farm.wait_for_step(other, farm.step(other) + 50)
    wait_for_beats(farm, saves, 20)
    farm.want(saves, Intent.stop)
    assert farm.wait_for_end(saves).state is RunState.stopped, "an end waits for a while only"

    assert farm.run(other).attempt == 1
    release(fifo)
