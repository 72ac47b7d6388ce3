"""A run goes where it fits: needs are matched with offers, and told while it waits."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.lifecycle import Intent, Reason
from app.planning.requirements import Requirements, SlotOffer, why_waiting
from app.spec.run import SPEC_VERSION
from app.store.offers import offers_of
from app.store.records import Document, Finish, RunFilter
from tests.store.conftest import World

GIB = 2**30


def gpu(gib: float, **changes: Any) -> SlotOffer:
    """A GPU with so much memory free, on a host with 64 GiB free."""
    made = SlotOffer(
        name=f"gpu-{gib}",
        device_kind="cuda",
        device_id="cuda:0",
        free_bytes=int(gib * GIB),
        capability=86,
        host_free_bytes=64 * GIB,
        disk_free_bytes=500 * GIB,
    )
    return replace(made, **changes)


def cpu(host_gib: float, **changes: Any) -> SlotOffer:
    made = SlotOffer("cpu-0-0", "cpu", "cpu", host_free_bytes=int(host_gib * GIB))
    return replace(made, **changes)


SMALL, LARGE = gpu(8), gpu(24)


def slot_of(world: World, *offers: SlotOffer) -> str | None:
    lease = world.claim(*offers)
    return None if lease is None else lease.slots[0]


@pytest.mark.parametrize("order", [(SMALL, LARGE), (LARGE, SMALL)], ids=["small", "large"])
def test_of_two_idle_cards_a_run_goes_to_the_one_that_fits(
    world: World, order: tuple[SlotOffer, ...]
) -> None:
    world.submit(device="cuda", requirements=Requirements(device_bytes=20 * GIB))
    assert slot_of(world, *order) == LARGE.name
    world.submit(device="cuda", requirements=Requirements(device_bytes=4 * GIB))
    assert slot_of(world, *order) == SMALL.name  # so that the large one stays free for others
    world.submit(device="cuda")
    assert slot_of(world, *order) == LARGE.name  # of which nothing is known


def test_what_fits_no_idle_slot_stays_in_the_queue_and_lets_others_pass(world: World) -> None:
    large = world.submit(device="cuda", requirements=Requirements(device_bytes=20 * GIB))
    behind = world.submit(device="cuda", requirements=Requirements(device_bytes=4 * GIB))
    lease = world.claim(SMALL)
    assert lease is not None
    assert lease.run_id == behind.id
    assert world.claim(SMALL) is None
    again = world.claim(LARGE)
    assert again is not None
    assert again.run_id == large.id


MATCHES: list[tuple[str, Requirements, SlotOffer, bool]] = [
    ("cuda", Requirements(device_bytes=8 * GIB), SMALL, True),
    ("cuda", Requirements(device_bytes=8 * GIB + 1), SMALL, False),
    ("cuda", Requirements(device_bytes=80 * GIB), gpu(8, free_bytes=None), True),
    ("cuda", Requirements(capability=86), SMALL, True),
    ("cuda", Requirements(capability=90), SMALL, False),
    ("cuda", Requirements(capability=90), gpu(8, capability=None), True),
    ("cuda", Requirements(host_bytes=64 * GIB), SMALL, True),
    ("cuda", Requirements(host_bytes=65 * GIB), SMALL, False),
    ("cuda", Requirements(disk_bytes=501 * GIB), SMALL, False),
    ("cuda", Requirements(cpu_bytes=65 * GIB), SMALL, True),  # it does not train on the CPU
    ("auto", Requirements(device_bytes=9 * GIB, cpu_bytes=GIB), SMALL, False),
    ("auto", Requirements(device_bytes=9 * GIB, cpu_bytes=GIB), cpu(2), True),
    ("auto", Requirements(host_bytes=9 * GIB, cpu_bytes=GIB), cpu(2), True),
    ("auto", Requirements(cpu_bytes=3 * GIB), cpu(2), False),
    ("cpu", Requirements(cpu_bytes=3 * GIB), cpu(2), False),
    ("cpu", Requirements(device_bytes=80 * GIB, cpu_bytes=3 * GIB), SMALL, True),
    ("cpu", Requirements(cpu_bytes=65 * GIB), SMALL, False),
    ("cpu", Requirements(disk_bytes=2), cpu(2, disk_free_bytes=1), False),
    ("cpu", Requirements(), cpu(0), True),
]


@pytest.mark.parametrize(("device", "needs", "offer", "fits"), MATCHES, ids=str)
def test_a_claim_takes_what_the_slot_can_train(
    world: World, device: str, needs: Requirements, offer: SlotOffer, fits: bool
) -> None:
    world.submit(device=device, requirements=needs)
    assert (world.claim(offer) is not None) is fits


def test_the_lease_says_what_of_the_host_it_will_take(world: World) -> None:
    needs = Requirements(device_bytes=GIB, host_bytes=2 * GIB, cpu_bytes=3 * GIB)
    for offer, host in ((SMALL, 2 * GIB), (cpu(4), 3 * GIB)):
        world.submit(requirements=needs)
        lease = world.claim(offer)
        assert lease is not None
        assert lease.host_bytes == host


def test_an_older_worker_leaves_a_newer_spec_in_the_queue(world: World) -> None:
    run = world.submit(spec_version=SPEC_VERSION + 1)
    older = replace(cpu(8), spec_version=SPEC_VERSION, place="the CPU of worker old")
    assert world.claim(older) is None
    assert world.store.runs.get(run.id).state == "queued"
    lease = world.claim(older, replace(older, name="new", spec_version=SPEC_VERSION + 1))
    assert lease is not None
    assert (lease.run_id, *lease.slots) == (run.id, "new")


def test_what_an_attempt_has_found_it_needs_holds_for_the_next(world: World) -> None:
    """A need only rises; one that nobody has told of stays as it was."""
    run = world.submit(device="cuda", requirements=Requirements(host_bytes=4 * GIB))
    lease = world.claim(SMALL)
    assert lease is not None
    found = Requirements(device_bytes=8 * GIB + 1, host_bytes=GIB)
    world.store.leases.finish(lease.token, Finish(Reason.slot_busy, "too small", needs=found))
    assert world.claim(SMALL) is None
    assert world.claim(gpu(24, host_free_bytes=3 * GIB)) is None
    again = world.claim(LARGE)
    assert again is not None
    assert again.run_id == run.id


def test_a_pause_and_a_resume_keep_what_is_needed(world: World) -> None:
    run = world.submit(device="cuda", requirements=Requirements(device_bytes=20 * GIB))
    world.store.runs.set_intent(run.id, Intent.pause)
    world.store.runs.resume(run.id)
    assert world.claim(SMALL) is None
    assert world.claim(LARGE) is not None


# --- what is told ---------------------------------------------------------------------------


def have(world: World, *slots: tuple[SlotOffer, int | None], **facts: Any) -> None:
    """What the worker tells of itself: slots, and the run that is in each."""
    told, devices = [], []
    for index, (offer, run_id) in enumerate(slots):
        is_gpu = offer.device_kind == "cuda"
        device = f"cuda:{index}" if is_gpu else "cpu"
        told.append({"name": offer.name, "device": device, "run_id": run_id,
                     "waiting": offer.blocked})  # fmt: skip
        if is_gpu:
            free, capability = offer.free_bytes, offer.capability
            devices.append(
                {"kind": "cuda", "index": str(index), "name": "RTX", "total_memory_bytes": 32 * GIB,
                 "free_memory_bytes": free,
                 "capability": capability and [capability // 10, capability % 10]}
            )  # fmt: skip
    first = slots[0][0] if slots else SMALL
    facts = {
        "available_memory_bytes": first.host_free_bytes,
        "disk_free_bytes": first.disk_free_bytes,
        "spec_version": first.spec_version,
        **facts,
    }
    world.store.workers.beat(world.worker, "alive", told, devices, facts)


def statuses(world: World, run_id: int) -> list[str]:
    """Every status under which the run is found."""
    words = ("queued", "retrying", "waiting_for_memory", "waiting_for_parent")
    return [w for w in words if run_id in world.store.runs.find_ids(RunFilter(statuses=(w,)), 9)]


def test_a_run_that_no_idle_slot_fits_says_why(world: World) -> None:
    have(world, (SMALL, None), (LARGE, 7))
    run = world.submit(device="cuda", requirements=Requirements(device_bytes=20 * GIB))
    for told in (run, world.store.runs.get(run.id), world.store.runs.queue().data[0]):
        assert told.waiting is not None
        assert told.waiting.for_memory
        assert told.waiting.why == (
            "It needs 20.00 GiB of GPU memory; the nearest idle place, RTX (cuda:0) of worker "
            "agent, has 8.00 GiB free. It starts as soon as a slot has enough."
        )
    assert statuses(world, run.id) == ["waiting_for_memory"]
    have(world, (SMALL, None), (LARGE, None))
    assert world.store.runs.get(run.id).waiting is None
    assert statuses(world, run.id) == ["queued"]


@pytest.mark.parametrize(
    ("needs", "promise"),
    [
        (Requirements(host_bytes=90 * GIB), "It starts as soon as a slot has enough."),
        (Requirements(disk_bytes=9 * GIB), "It starts when that disk has space again, or another "
         "slot with enough is idle."),
        (Requirements(capability=80), "It starts when a slot with such a GPU is idle."),
        (Requirements(disk_bytes=9 * GIB, capability=80, host_bytes=90 * GIB),
         "It starts when a slot with such a GPU is idle."),
    ],
)  # fmt: skip
def test_nobody_is_promised_that_a_disk_or_a_gpu_is_given_back_by_a_run(needs, promise) -> None:
    here = replace(SMALL, capability=75, host_free_bytes=64 * GIB, disk_free_bytes=GIB)
    waiting = why_waiting("cuda", needs, 1, ("sequence", None), [here])
    assert waiting is not None
    assert waiting.why.endswith(promise)


def test_a_run_waits_for_a_worker_that_has_its_recipe_in_its_version(world: World) -> None:
    """Of an older Stoker's worker, which tells of no recipes, nothing is known."""
    run = world.submit(recipe="toy", recipe_version="0.2")
    for recipes, told in (
        ({"sequence": "1"}, "does not have it"),
        ({"toy": "0.1"}, "has version 0.1 of it"),
        ({}, "does not have it"),
    ):
        offer = cpu(8, recipes=recipes)
        have(world, (offer, None), recipes=recipes)
        assert world.claim(offer) is None
        waiting = world.store.runs.get(run.id).waiting
        assert waiting is not None
        assert not waiting.for_memory
        assert told in waiting.why
        assert "install version 0.2 of the package" in waiting.why
    lease = world.claim(cpu(8, recipes={"toy": "0.2"}))
    assert lease is not None
    assert lease.run_id == run.id


def test_a_run_that_waits_for_its_turn_waits_for_no_memory(world: World) -> None:
    run = world.submit(device="cuda", requirements=Requirements(device_bytes=20 * GIB))
    for slots in ([], [(SMALL, 7), (LARGE, 8)]):
        have(world, *slots)
        assert world.store.runs.get(run.id).waiting is None
        assert statuses(world, run.id) == ["queued"]


def test_a_run_that_needs_a_gpu_says_that_there_is_none(world: World) -> None:
    run = world.submit(device="cuda")
    have(world, (cpu(1), 7))
    waiting = world.store.runs.get(run.id).waiting
    assert waiting is not None
    assert waiting.why == "It needs a GPU, and no worker has any. It starts when a worker has."
    assert statuses(world, run.id) == ["queued"]


def test_a_card_that_somebody_else_holds_is_named(world: World) -> None:
    held = replace(SMALL, blocked="GPU 0 is in use by python (pid 7); the slot waits.")
    have(world, (held, None))
    fitting = world.submit(device="cuda", requirements=Requirements(device_bytes=GIB))
    short = world.submit(device="cuda", requirements=Requirements(device_bytes=9 * GIB))
    found = [world.store.runs.get(run.id).waiting for run in (fitting, short)]
    assert [one and one.for_memory for one in found] == [False, True]
    assert all(one and "python (pid 7)" in one.why for one in found)
    assert statuses(world, fitting.id) == ["queued"]
    assert statuses(world, short.id) == ["waiting_for_memory"]


def test_a_run_waits_for_artifacts_that_are_away_also_where_every_slot_is_busy(
    world: World,
) -> None:
    away = {"artifacts_away": "The artifact root /mnt/runs may not be mounted."}
    run = world.submit(device="cuda", requirements=Requirements(device_bytes=20 * GIB))
    have(world, (SMALL, 7), (LARGE, 8), **away)
    told = world.store.runs.get(run.id).waiting
    assert told is not None
    assert (told.for_memory, told.why) == (False, away["artifacts_away"])
    assert statuses(world, run.id) == ["queued"]
    world.register_worker("another, whose slots are busy")
    assert world.store.runs.get(run.id).waiting is None, "its turn comes there"


def test_what_others_will_not_give_back_is_no_memory_to_wait_for(world: World) -> None:
    have(world, (SMALL, None))
    newer = world.submit(spec_version=SPEC_VERSION + 1)
    modern = world.submit(device="cuda", requirements=Requirements(capability=90))
    told = [world.store.runs.get(run.id).waiting for run in (newer, modern)]
    assert [one and one.for_memory for one in told] == [False, False]
    assert told[0] is not None
    assert told[1] is not None
    assert "upgrade Stoker there" in told[0].why
    assert "9.0 compute capability" in told[1].why
    assert statuses(world, newer.id) == statuses(world, modern.id) == ["queued"]


def test_a_run_of_before_there_were_requirements_goes_anywhere(world: World) -> None:
    """Its needs are null, and its spec is of the first version, as is a worker that says none."""
    slots = [{"name": "a", "device": "cuda:0", "run_id": None, "waiting": None}]
    [offer] = offers_of("w", slots, [{"kind": "cuda", "index": "0"}], {})
    assert (offer.free_bytes, offer.host_free_bytes, offer.spec_version) == (None, None, 1)
    world.submit(device="cuda", requirements=Requirements(device_bytes=GIB), spec_version=1)
    assert world.claim(offer) is not None


def test_a_spec_with_a_gap_is_left_by_a_worker_that_would_train_without(world: World) -> None:
    """Such a worker knows version 1; what is submitted now is of a later one."""
    run = world.submit()
    assert world.claim(replace(cpu(8), spec_version=1)) is None
    lease = world.claim(replace(cpu(8), spec_version=SPEC_VERSION))
    assert lease is not None
    assert lease.run_id == run.id


NEED = st.one_of(st.none(), st.sampled_from([0, 1, 5, 8, 9, 80, 2**30]))
NEEDS = st.builds(Requirements, NEED, NEED, NEED, NEED, NEED)
OFFERS = st.lists(
    st.builds(
        SlotOffer,
        name=st.just("slot"),
        device_kind=st.sampled_from(["cpu", "cuda"]),
        device_id=st.just("x"),
        free_bytes=NEED,
        capability=NEED,
        host_free_bytes=NEED,
        disk_free_bytes=NEED,
        spec_version=st.sampled_from([1, 2]),
        recipes=st.sampled_from([{}, {"sequence": "1"}, {"sequence": "2"}, {"other": "1"}]),
    ),
    min_size=1,
    max_size=3,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    needs=NEEDS,
    offers=OFFERS,
    device=st.sampled_from(["auto", "cpu", "cuda"]),
    version=st.sampled_from([1, 2]),
    recipe=st.sampled_from([None, "1", "2"]),
    gpus=st.sampled_from([1, 1, 2, 3]),
)
def test_the_sentence_and_the_statement_are_of_one_mind(
    world: World,
    needs: Requirements,
    offers: list[SlotOffer],
    device: str,
    version: int,
    recipe: str | None,
    gpus: int,
) -> None:
    """A run is claimed exactly where nothing is said against it."""
    device = device if gpus == 1 else "cuda"
    run = world.submit(
        device=device, requirements=needs, spec_version=version, recipe_version=recipe, gpus=gpus
    )
    told = why_waiting(device, needs, version, ("sequence", recipe), offers, None, gpus)
    has_kind = device != "cuda" or any(offer.device_kind == "cuda" for offer in offers)
    has_kind &= device != "auto" or bool(offers)
    lease = world.claim(*offers)
    assert (lease is not None) == (told is None and has_kind)
    if lease is None:
        world.store.runs.set_intent(run.id, Intent.kill)
    else:
        world.store.leases.finish(lease.token, Finish(Reason.completed, ""))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    needs=NEEDS,
    slots=st.lists(st.tuples(NEED, st.booleans()), max_size=3),
    host=NEED,
    device=st.sampled_from(["auto", "cpu", "cuda"]),
    version=st.sampled_from([1, 2]),
    gpus=st.sampled_from([1, 1, 2, 3]),
)
def test_a_run_is_found_by_the_status_that_it_shows(
    world: World,
    needs: Requirements,
    slots: list[tuple[int | None, bool]],
    host: int | None,
    device: str,
    version: int,
    gpus: int,
) -> None:
    device = device if gpus == 1 else "cuda"
    offered = [
        (SlotOffer(f"{n}", "cuda" if is_gpu else "cpu", "x", free, 80), None)
        for n, (free, is_gpu) in enumerate(slots)
    ]
    facts: Document = {"available_memory_bytes": host, "disk_free_bytes": 5, "spec_version": 1}
    have(world, *offered, **facts)
    run = world.submit(device=device, requirements=needs, spec_version=version, gpus=gpus)
    waiting = world.store.runs.get(run.id).waiting
    is_short = waiting is not None and waiting.for_memory
    assert statuses(world, run.id) == ["waiting_for_memory" if is_short else "queued"]
    world.store.runs.set_intent(run.id, Intent.kill)
