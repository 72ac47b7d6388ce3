"""Runs of several GPUs: all slots or none, and idle ones are kept for the run whose turn it is."""

from dataclasses import replace

import pytest

from app.lifecycle import Intent, Reason
from app.planning.requirements import Requirements, SlotOffer
from app.store.records import Finish
from tests.store.conftest import World
from tests.store.runs.test_claims import GIB, have


def gpu(number: int, gib: float = 24, *, taken: bool = False) -> SlotOffer:
    return SlotOffer(
        name=f"gpu-{number}",
        device_kind="cuda",
        device_id=f"cuda:{number}",
        free_bytes=int(gib * GIB),
        capability=86,
        is_taken=taken,
    )


def taken(*numbers: int, of: int = 3) -> list[SlotOffer]:
    return [gpu(number, taken=number in numbers) for number in range(of)]


def of_several(world: World, gpus: int = 2, **changes: object) -> int:
    return world.submit(device="cuda", gpus=gpus, **changes).id


def claimed(world: World, offers: list[SlotOffer]) -> tuple[int, tuple[str, ...]] | None:
    lease = world.claim(*offers)
    return None if lease is None else (lease.run_id, lease.slots)


def test_all_are_held_by_one_lease(world: World) -> None:
    run_id = of_several(world)
    lease = world.claim(*taken())
    assert lease is not None
    assert lease.slots == ("gpu-0", "gpu-1")
    assert world.store.runs.get(run_id).devices == ["cuda:0", "cuda:1"]
    assert world.store.attempts.list(run_id)[0].devices == ["cuda:0", "cuda:1"]
    world.store.leases.finish(lease.token, Finish(Reason.completed, ""))
    assert world.store.runs.get(run_id).devices == ["cuda:0", "cuda:1"], "they stay in its history"


@pytest.mark.parametrize("offers", [taken(1, 2), taken(0, 1), taken(of=1)], ids=str)
def test_one_idle_gpu_is_not_enough(world: World, offers: list[SlotOffer]) -> None:
    of_several(world)
    assert world.claim(*offers) is None


def test_of_two_runs_of_two_on_three_gpus_the_first_starts_and_then_the_second(
    world: World,
) -> None:
    first, second = of_several(world), of_several(world)
    assert claimed(world, taken()) == (first, ("gpu-0", "gpu-1"))
    assert world.claim(*taken(0, 1)) is None
    assert claimed(world, taken(1)) == (second, ("gpu-0", "gpu-2"))


def test_runs_of_one_gpu_do_not_overtake_it_for_ever(world: World) -> None:
    """Those behind it leave it what gets free; those ahead of it do not."""
    several = of_several(world)
    behind = of_several(world, 1)
    ahead = of_several(world, 1, priority=1)
    assert claimed(world, taken(0, 1)) == (ahead, ("gpu-2",))
    assert world.claim(*taken(0, 1)) is None
    assert claimed(world, taken(0)) == (several, ("gpu-1", "gpu-2"))
    assert claimed(world, taken(0, 1)) == (behind, ("gpu-2",))


def test_what_cannot_be_had_here_keeps_nothing_back(world: World) -> None:
    """More GPUs than the worker has, larger ones, or more memory than the host has; or a run that
    is not to start.
    """
    of_several(world, 4)
    of_several(world, requirements=Requirements(device_bytes=25 * GIB))
    of_several(world, requirements=Requirements(host_bytes=GIB))
    world.store.runs.set_intent(of_several(world), Intent.pause)
    single = of_several(world, 1)
    offers = [replace(offer, host_free_bytes=1, host_bytes=GIB - 1) for offer in taken(0, 1)]
    assert claimed(world, offers) == (single, ("gpu-2",))


@pytest.mark.parametrize("total", [GIB, None])
@pytest.mark.parametrize("holder", ["a GPU's", "the CPU's"])
def test_memory_of_the_host_that_runs_hold_is_given_back_too(
    world: World, total: int | None, holder: str
) -> None:
    """By those without a GPU as well. Once no run holds any, nothing is kept for more of it."""
    of_several(world, requirements=Requirements(host_bytes=GIB))
    single = of_several(world, 1)
    on_gpu = holder == "a GPU's"
    slots = [*taken(*([0] if on_gpu else [])), SlotOffer("cpu-0-0", "cpu", "cpu")]
    slots[-1] = replace(slots[-1], is_taken=not on_gpu)
    offers = [replace(slot, host_free_bytes=1, host_bytes=total) for slot in slots]
    assert world.claim(*offers) is None
    over = [replace(offer, is_taken=False) for offer in offers]
    assert claimed(world, over) == (single, ("gpu-0",))


def test_a_gpu_that_is_too_small_for_it_is_not_kept_for_it(world: World) -> None:
    of_several(world, requirements=Requirements(device_bytes=20 * GIB))
    single = of_several(world, 1)
    offers = [gpu(0, 24, taken=True), gpu(1, 24), gpu(2, 8)]
    assert claimed(world, offers) == (single, ("gpu-2",))
    of_several(world, 1)
    assert world.claim(*offers[:2]) is None


def test_a_run_on_the_cpu_goes_by(world: World) -> None:
    of_several(world)
    light = world.submit(device="cpu", gpus=0)
    offers = [*taken(0, 1), SlotOffer("cpu-0-0", "cpu", "cpu")]
    assert claimed(world, offers) == (light.id, ("cpu-0-0",))


def test_it_takes_the_smallest_that_are_large_enough(world: World) -> None:
    offers = [gpu(0, 80), gpu(1, 8), gpu(2, 24), gpu(3, 40)]
    needs = Requirements(device_bytes=20 * GIB)
    run_id = of_several(world, requirements=needs)
    assert claimed(world, offers) == (run_id, ("gpu-2", "gpu-3"))
    run_id = of_several(world)
    assert claimed(world, offers) == (run_id, ("gpu-3", "gpu-0")), "of which nothing is known"


# --- what is told ---------------------------------------------------------------------------


def why(world: World, run_id: int) -> str | None:
    waiting = world.store.runs.get(run_id).waiting
    return None if waiting is None else waiting.why


def test_a_run_says_how_many_are_idle_and_those_behind_for_whom_they_are_kept(
    world: World,
) -> None:
    run_id, behind = of_several(world), of_several(world, 1)
    have(world, (gpu(0), 7), (gpu(1), None), (gpu(2), 8))
    assert why(world, run_id) == (
        "It needs 2 GPUs of one worker at once; of the 3 of worker agent 1 is idle. Once it is "
        "first in the queue, idle ones are kept for it until they suffice."
    )
    assert why(world, behind) == (
        f"An idle GPU is kept for run {run_id}, which is ahead in the queue and needs 2 at once."
    )
    have(world, (gpu(0), 7), (gpu(1), 9), (gpu(2), 8))
    assert (why(world, run_id), why(world, behind)) == (None, None), "they wait for their turn"
    have(world, (gpu(0), 7), (gpu(1), None), (gpu(2), None))
    assert why(world, run_id) is None


def test_idle_gpus_are_kept_for_a_run_that_is_tried_again_once_its_time_has_come(
    world: World,
) -> None:
    run_id, behind = of_several(world), of_several(world, 1)
    lease = world.claim(*taken())
    assert lease is not None
    crashed = Finish(Reason.crashed, "", retry_delay_seconds=5.0)
    world.store.leases.finish(lease.token, crashed)
    have(world, (gpu(0), 7), (gpu(1), None))
    assert why(world, behind) is None
    world.clock.now += 5.0
    told = f"An idle GPU is kept for run {run_id}, which is ahead in the queue and needs 2 at once."
    assert why(world, behind) == told
    (last,) = [run for run in world.store.runs.queue().data if run.id == behind]
    assert last.waiting is not None
    assert last.waiting.why == told
    assert world.claim(*taken(0, of=2)) is None, "as it is told"


def test_a_run_is_not_told_that_gpus_are_kept_for_itself(world: World) -> None:
    run_id = of_several(world, requirements=Requirements(host_bytes=2 * GIB))
    behind = of_several(world, 1)
    slots = [(replace(gpu(number), host_free_bytes=GIB), None) for number in (0, 1)]
    have(world, *slots, (gpu(2), 8), host_memory_bytes=64 * GIB)
    assert why(world, run_id) == (
        "It needs 2.00 GiB of host memory beside the GPU; the nearest idle place, RTX (cuda:0) of "
        "worker agent and RTX (cuda:1) of worker agent, has 1.00 GiB free. It starts as soon as a "
        "slot has enough."
    )
    assert f"kept for run {run_id}" in (why(world, behind) or "")


def test_more_than_any_worker_has_is_told(world: World) -> None:
    run_id = of_several(world, 4)
    have(world, (gpu(0), 7), (gpu(1), 8))
    told = "It needs 4 GPUs of one worker, and none has more than 2. It starts when a worker has."
    assert why(world, run_id) == told


def test_gpus_of_two_workers_are_no_two_of_one(world: World) -> None:
    run_id = of_several(world)
    have(world, (gpu(0), None))
    world.worker = world.register_worker("other")
    have(world, (gpu(0), None))
    assert "none has more than 1" in (why(world, run_id) or "")


def test_a_gpu_that_others_use_keeps_nothing_back(world: World) -> None:
    """Nobody knows when it is given back."""
    foreign = replace(gpu(0), blocked="GPU 0 is in use by python (pid 7); the slot waits.")
    run_id, behind = of_several(world), of_several(world, 1)
    have(world, (foreign, None), (gpu(1), None))
    assert why(world, run_id) == foreign.blocked
    assert why(world, behind) is None
