"""Runs that make way for one of higher priority: which, for whom, and when none does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from app.lifecycle import Intent, Reason, RunState
from app.planning.requirements import Owner, Requirements, SlotOffer
from app.spec.run import SPEC_VERSION
from app.store.records import Beat, Finish, Lease, NewCheckpoint, RunRecord
from app.store.runs.preemption import SETTLE_SECONDS, Preemptible, Preemption
from tests.store.conftest import World
from tests.store.runs.test_claims import GIB, have
from tests.store.runs.test_several_gpus import gpu

NEWS = Finish(Reason.preempted, "Preempted.")


class Box:
    """A worker with GPUs, the runs that hold them, and which of these may be preempted."""

    def __init__(self, world: World, *gpus: SlotOffer) -> None:
        self.world = world
        self.gpus = list(gpus) or [gpu(0)]
        self.leases: dict[int, Lease] = {}

    @property
    def offers(self) -> list[SlotOffer]:
        held = {name for lease in self.leases.values() for name in lease.slots}
        return [replace(one, is_taken=one.name in held) for one in self.gpus]

    def run(self, **changes: Any) -> int:
        """Submit a run, which is claimed at once."""
        run_id = self.wait(**changes)
        assert self.claim() == run_id
        return run_id

    def wait(self, **changes: Any) -> int:
        """Submit a run that waits; a second later than the one before."""
        self.world.clock.now += 1.0
        return self.world.submit(**{"device": "cuda", **changes}).id

    def claim(self) -> int | None:
        lease = self.world.claim(*self.offers)
        if lease is None:
            return None
        self.leases[lease.run_id] = lease
        return lease.run_id

    def held(self, host_bytes: int = 0) -> list[Preemptible]:
        by_name = {one.name: one for one in self.gpus}
        return [
            Preemptible(run_id, tuple(by_name[name] for name in lease.slots), host_bytes)
            for run_id, lease in self.leases.items()
        ]

    def preempt(self, *spared: int, host_bytes: int = 0) -> list[Preemption]:
        """`spared`: of runs that do not allow it."""
        held = [one for one in self.held(host_bytes) if one.run_id not in spared]
        return self.world.store.leases.preempt(self.world.worker, self.offers, held)

    def victims(self, *spared: int) -> set[int]:
        return {one.run_id for one in self.preempt(*spared)}

    def end(self, run_id: int, finish: Finish = NEWS) -> RunRecord:
        return self.world.store.leases.finish(self.leases.pop(run_id).token, finish)

    def save(self, run_id: int, step: int) -> None:
        new = NewCheckpoint(step, 1, f"runs/{run_id}/step-{step}", 1, {}, 1.0)
        self.world.store.leases.beat(self.leases[run_id].token, Beat(checkpoints=[new]))

    def get(self, run_id: int) -> RunRecord:
        return self.world.store.runs.get(run_id)


@pytest.fixture
def box(world: World) -> Box:
    return Box(world)


def why(run: RunRecord) -> str | None:
    return None if run.waiting is None else run.waiting.why


def test_a_run_makes_place_for_one_of_higher_priority_and_goes_on_afterwards(box: Box) -> None:
    low = box.run(priority=-1)
    behind, high = box.wait(priority=-1), box.wait(priority=5)
    assert box.claim() is None
    assert box.preempt() == [Preemption(low, high)]
    now = box.get(low)
    assert (now.state, now.intent) == (RunState.running, Intent.run)
    assert now.message == (
        f"Run {high} of priority 5 needs its slot, and this one has priority -1: it saves, and "
        "goes back to the queue."
    )
    told = box.world.store.events.list(low)[-1]
    assert (told.kind, told.data["message"]) == ("state", now.message)
    assert why(box.get(high)) == f"Run {low}, of a lower priority, is giving up its slot for it."
    after = box.end(low)
    assert (after.state, after.reason, after.message) == (RunState.queued, Reason.preempted,
                                                          "Preempted.")  # fmt: skip
    assert (after.retry_at, after.retries_used, after.losses) == (None, 0, 0)
    assert why(box.get(high)) is None
    assert [run.id for run in box.world.store.runs.queue().data] == [high, low, behind]
    assert box.claim() == high
    box.end(high, Finish(Reason.completed, ""))
    assert box.claim() == low
    assert (box.get(low).attempt, box.get(low).message) == (2, None)


@pytest.mark.parametrize("priority", [-2, -1])
def test_equal_and_lower_priorities_wait_for_their_turn(box: Box, priority: int) -> None:
    box.run(priority=-1)
    box.wait(priority=priority)
    assert box.preempt() == []


def test_a_run_that_does_not_allow_it_is_left_alone(box: Box) -> None:
    low = box.run()
    box.wait(priority=5)
    assert box.preempt(low) == []


def pause(box: Box, high: int) -> None:
    box.world.store.runs.set_intent(high, Intent.pause)


def stop(box: Box, high: int) -> None:
    box.world.store.runs.set_intent(high, Intent.stop)


def stop_the_other(box: Box, high: int) -> None:
    box.world.store.runs.set_intent(min(box.leases), Intent.stop)


def free_one_here(box: Box, high: int) -> None:
    box.gpus.append(gpu(1))


def free_one_elsewhere(box: Box, high: int) -> None:
    """As its worker has told; the run will be taken there."""
    other = box.world.register_worker("other")
    me, box.world.worker = box.world.worker, other
    have(box.world, (gpu(0), None))
    box.world.worker = me


@pytest.mark.parametrize("happen", [pause, stop, stop_the_other, free_one_here, free_one_elsewhere])
def test_nobody_goes_where_that_is_not_needed(box: Box, happen: Callable[[Box, int], None]) -> None:
    box.run()
    happen(box, box.wait(priority=5))
    assert box.preempt() == []


def test_a_slot_of_another_worker_that_is_blocked_or_taken_is_none(box: Box) -> None:
    low = box.run()
    box.wait(priority=5)
    me, box.world.worker = box.world.worker, box.world.register_worker("other")
    have(box.world, (gpu(0), 7), (replace(gpu(1), blocked="It is in use by others."), None))
    box.world.worker = me
    assert box.victims() == {low}


def test_a_run_that_is_tried_again_later_is_not_waited_for(box: Box) -> None:
    high = box.run(priority=5)
    box.end(high, Finish(Reason.crashed, "", retry_delay_seconds=9.0))
    low = box.run()
    assert box.preempt() == []
    box.world.clock.now += 9.0
    assert box.preempt() == [Preemption(low, high)]


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({"requirements": Requirements(device_bytes=24 * GIB)}, True),
        ({"requirements": Requirements(device_bytes=24 * GIB + 1)}, False),
        ({"requirements": Requirements(capability=86)}, True),
        ({"requirements": Requirements(capability=90)}, False),
        ({"gpus": 2}, False),
        ({"device": "cpu"}, False),
        ({"spec_version": SPEC_VERSION + 1}, False),
        ({"recipe_version": "none"}, False),
        ({"owner": Owner("elsewhere", 7)}, False),
    ],
    ids=str,
)
def test_nobody_goes_for_a_run_that_the_slot_would_not_fit(
    world: World, change: dict[str, Any], fits: bool
) -> None:
    """Beside the GPU there is a slot for the CPU, which another run has."""
    box = Box(world, gpu(0), SlotOffer("cpu-0-0", "cpu", "cpu"))
    low, other = box.run(), box.run(device="cpu")
    box.wait(priority=5, **change)
    assert box.victims(other) == ({low} if fits else set())


@pytest.mark.parametrize("needs", [3 * GIB, 3 * GIB + 1])
def test_what_it_has_of_the_hosts_memory_is_given_back_too(world: World, needs: int) -> None:
    box = Box(world, replace(gpu(0), host_free_bytes=GIB))
    low = box.run()
    high = box.wait(priority=5, requirements=Requirements(host_bytes=needs))
    found = box.preempt(host_bytes=2 * GIB)
    assert found == ([Preemption(low, high)] if needs == 3 * GIB else [])


class TestWhoGoes:
    @pytest.fixture
    def box(self, world: World) -> Box:
        return Box(world, gpu(0, 8), gpu(1, 24), gpu(2, 24))

    def test_the_lowest_priority_and_of_these_the_one_that_began_last(self, box: Box) -> None:
        for priority in (0, 0, 3):
            box.run(priority=priority)
        box.wait(priority=5)
        assert box.victims() == {2}

    def test_only_one_whose_slot_fits(self, box: Box) -> None:
        small = box.run(requirements=Requirements(device_bytes=1))
        large = box.run(priority=1)
        box.run(priority=2)
        assert [box.leases[run].slots for run in (small, large)] == [("gpu-0",), ("gpu-1",)]
        high = box.wait(priority=5, requirements=Requirements(device_bytes=20 * GIB))
        assert box.preempt() == [Preemption(large, high)]

    def test_the_first_in_the_queue_that_it_helps(self, box: Box) -> None:
        """Not one ahead that would have to wait all the same."""
        for _ in range(3):
            box.run()
        box.wait(priority=9, requirements=Requirements(device_bytes=80 * GIB))
        first = box.wait(priority=5)
        box.wait(priority=5)
        assert [found.needed_by for found in box.preempt()] == [first]


class TestOneAtATime:
    def test_no_second_run_goes_for_the_same_one(self, world: World) -> None:
        box = Box(world, gpu(0), gpu(1))
        one, two = box.run(), box.run()
        high = box.wait(priority=5)
        assert box.preempt() == [Preemption(two, high)]
        assert box.preempt() == [Preemption(two, high)], "its agent may not have heard"
        assert box.victims(two) == set()
        box.end(two)
        # Its slot is not offered yet, as long as the driver tells nothing new of it.
        box.gpus.pop()
        assert box.preempt() == []
        world.clock.now += SETTLE_SECONDS
        assert box.preempt() == [Preemption(one, high)], "somebody else has it by now"

    def test_each_waiting_run_may_have_one(self, world: World) -> None:
        box = Box(world, gpu(0), gpu(1))
        one, two = box.run(), box.run()
        first, second = box.wait(priority=5), box.wait(priority=5)
        assert box.preempt() == [Preemption(two, first)]
        assert box.preempt() == [Preemption(two, first), Preemption(one, second)]

    def test_of_two_workers_one_gives_its_slot(self, world: World) -> None:
        """Both ask at the same moment."""
        boxes = [Box(world), Box(world)]
        for box in boxes:
            box.run()
        high = boxes[0].wait(priority=5)
        with ThreadPoolExecutor(2) as pool:
            found = [one for told in pool.map(Box.preempt, boxes) for one in told]
        assert [one.needed_by for one in found] == [high]


class TestNoThrashing:
    def again(self, box: Box) -> tuple[int, int]:
        """A run that was preempted once and has been claimed again, and one that waits."""
        low = box.run()
        box.save(low, 10)  # by the attempt that is preempted: no progress since
        high = box.wait(priority=5)
        assert box.victims() == {low}
        box.end(low)
        assert box.claim() == high
        box.end(high, Finish(Reason.completed, ""))
        assert box.claim() == low
        return low, box.wait(priority=5)

    def test_it_is_left_alone_until_it_has_saved_again(self, box: Box) -> None:
        low, high = self.again(box)
        assert box.preempt() == []
        box.save(low, 20)
        assert box.preempt() == [Preemption(low, high)]

    def test_it_does_not_go_twice_for_a_run_that_has_not_started_since(self, box: Box) -> None:
        low = box.run()
        high = box.wait(priority=5)
        assert box.victims() == {low}
        box.end(low)
        pause(box, high)  # or what it lacks is still not there
        assert box.claim() == low
        box.world.store.runs.resume(high)
        box.save(low, 20)
        box.world.clock.now += SETTLE_SECONDS
        assert box.preempt() == []
        other = box.wait(priority=5)
        assert box.preempt() == [Preemption(low, other)]

    def test_what_an_attempt_between_has_saved_counts(self, box: Box) -> None:
        low, high = self.again(box)
        box.save(low, 20)
        pause(box, high)
        box.end(low, Finish(Reason.drained, ""))
        assert box.claim() == low
        box.world.store.runs.resume(high)
        assert box.preempt() == [Preemption(low, high)]


def test_a_script_goes_once_it_has_a_whole_checkpoint(box: Box) -> None:
    low = box.run(recipe="script", dataset=None, spec={"recipe": {"environment": None}})
    high = box.wait(priority=5)
    assert box.preempt() == []
    box.save(low, 3)
    assert box.preempt() == [Preemption(low, high)]


@pytest.mark.parametrize(
    ("intent", "state", "reason"),
    [
        (Intent.pause, RunState.paused, Reason.pause_requested),
        (Intent.stop, RunState.stopped, Reason.stop_requested),
        (Intent.kill, RunState.stopped, Reason.kill_requested),
    ],
)
def test_what_its_user_wants_meanwhile_goes_first(
    box: Box, intent: Intent, state: RunState, reason: Reason
) -> None:
    low = box.run()
    box.wait(priority=5)
    box.preempt()
    box.world.store.runs.set_intent(low, intent)
    run = box.end(low)
    assert (run.state, run.reason) == (state, reason)


class TestOfSeveralGpus:
    @pytest.fixture
    def box(self, world: World) -> Box:
        return Box(world, gpu(0), gpu(1), gpu(2))

    def test_as_many_go_as_it_needs(self, box: Box) -> None:
        one, two, three = box.run(priority=1), box.run(), box.run(priority=2)
        high = box.wait(priority=5, gpus=2)
        assert {found.needed_by for found in box.preempt()} == {high}
        assert {run for run in (one, two, three) if "needs its slot" in
                (box.get(run).message or "")} == {one, two}  # fmt: skip
        box.end(one)
        assert box.claim() is None, "the idle one is kept"
        box.end(two)
        assert box.claim() == high

    def test_one_goes_where_another_gpu_is_idle(self, box: Box) -> None:
        box.run(priority=1)
        two = box.run()
        high = box.wait(priority=5, gpus=2)
        assert box.preempt() == [Preemption(two, high)]

    def test_none_goes_where_all_would_not_be_enough(self, box: Box) -> None:
        spared = box.run(gpus=2)
        box.run()
        box.wait(priority=5, gpus=2)
        assert box.preempt(spared) == []

    def test_one_of_several_goes_as_a_whole(self, box: Box) -> None:
        several = box.run(gpus=3)
        high = box.wait(priority=5)
        assert box.preempt() == [Preemption(several, high)]

    def test_none_goes_whose_slot_would_be_kept_for_another_run(self, box: Box) -> None:
        """One ahead in the queue waits for it, and for the GPUs of a run that does not go."""
        spared = box.run(gpus=2)
        box.run()
        box.wait(priority=9, gpus=3)
        box.wait(priority=5)
        assert box.preempt(spared) == []

    def test_none_goes_of_equal_priority_beside_one_that_is_lower(self, box: Box) -> None:
        box.run(priority=5, gpus=2)
        low = box.run()
        box.wait(priority=5, gpus=2)
        assert box.preempt() == []
        box.wait(priority=6)
        assert box.victims() == {low}
