"""The guard at claim: what cannot train here goes elsewhere, waits, or fails with the reason."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.case import Case
from app.guard.facts import Facts
from app.guard.plan import make_plan
from app.guard.presets.catalog import load_catalog
from app.lifecycle import Reason
from app.planning.profile import Profile
from app.service.inventory import dataset_facts
from app.service.profiles import keys_of
from app.settings import Settings
from app.spec.stored import read_stored
from tests.guard.world import point
from tests.worker.start.test_preparation import WAVES, lease
from worker.start.claim_guard import ClaimPlace, facts_of, guard_claim, new_findings
from worker.start.preparation import NotFit, NotHere
from worker.telemetry.gpus import GpuSample

PLAIN: dict[str, Any] = {"kind": "sequence", "residual": "none", "highway": 0}
SPEC: dict[str, Any] = {"recipe": PLAIN, "data": {"dataset": "waves"}}
LOADER = {"kind": "chunked", "residency": "stream", "chunk_size": "4KiB"}
SLOW = {**SPEC, "data": {**SPEC["data"], "loader": LOADER}}
CPU = ClaimPlace(None, 1)
READY = replace(
    WAVES,
    samples=1000,
    fields={
        "features": {"shape": [36, 4], "dtype": "float32", "nonfinite_count": 0},
        "targets": {"shape": [6], "dtype": "float32", "nonfinite_count": 0},
    },
)


@pytest.fixture
def settings(tmp_path):
    made = Settings(home=tmp_path, artifact_root=tmp_path, guard="enforce")
    made.artifact_root.mkdir(exist_ok=True)
    return made


def gpu(model: str, memory_gib: int, capability: tuple[int, int]) -> GpuSample:
    return GpuSample(
        index="0", uuid="GPU-1", model=model, driver="1", utilization=None, sm_active=None,
        memory_used_bytes=2**28, memory_total_bytes=memory_gib * 2**30, power_watts=None,
        temperature_celsius=None, energy_joules=None, capability=capability, processes=(),
    )  # fmt: skip


SLOTS = (
    CPU,
    ClaimPlace(gpu("TITAN Xp", 12, (6, 1)), 1),
    ClaimPlace(gpu("RTX 2080", 8, (7, 5)), 1),
    ClaimPlace(gpu("A100", 80, (8, 0)), 1),
    ClaimPlace(gpu("RTX 4090", 24, (8, 9)), 1),
    ClaimPlace(gpu("RTX 5090", 32, (12, 0)), 1),
)


def slot_name(place: ClaimPlace) -> str:
    return place.gpu.model if place.gpu is not None else "cpu"


def guarded(settings, spec, dataset=READY, place=CPU, *points):
    """`points`: of runs like it, on any device."""
    claimed = replace(lease(1), spec=spec, datasets={dataset.name: dataset})
    facts = facts_of(settings, claimed, place)
    if points:
        keys = keys_of(Case(read_stored(claimed.spec), facts))
        facts = replace(facts, profiles=dict.fromkeys(keys, Profile(points)))
    return guard_claim(settings, claimed, read_stored(claimed.spec), facts, known=[])


def test_a_run_whose_dataset_is_inspected_again_waits_and_does_not_fail(settings):
    with pytest.raises(NotHere, match="'waves' is being inspected again") as refused:
        guarded(settings, SPEC, replace(READY, state="inspecting"))
    assert refused.value.reason is Reason.slot_busy


@pytest.mark.parametrize("place", SLOTS, ids=slot_name)
@pytest.mark.parametrize(
    "change", [{}, {"preset": "cpu"}, {"runtime": {"device": "cuda"}}], ids=str
)
def test_what_was_planned_while_no_worker_was_there_starts_on_every_slot(settings, change, place):
    """Nothing of it may have been fixed for a device that nobody had."""
    facts = Facts({"waves": dataset_facts(READY)})
    plan = make_plan({**SPEC, **change}, facts, load_catalog(settings.presets_dir))
    assert [issue.code for issue in plan.issues] == ["speed.no_worker"]
    if place.gpu is None and "runtime" in change:
        return  # the store gives it to no such slot
    assert guarded(settings, plan.require_ok(), place=place) == []


def test_what_a_gpu_could_train_goes_back_to_wait_for_one(settings):
    with pytest.raises(NotHere, match="for a worker with a GPU"):
        guarded(settings, {**SPEC, "runtime": {"precision": "tf32"}})


# More than any host has, whatever the run does with it.
HUGE = {
    **SPEC,
    "recipe": {**PLAIN, "hidden_size": 4096, "patch": 1},
    "training": {"batch_size": 1_000_000},
}
MANY = replace(READY, samples=2_000_000)


TIGHT = {
    **SPEC,
    "recipe": {**PLAIN, "hidden_size": 1024, "patch": 1},
    "training": {"batch_size": 1024},
}


TAKEN = point(1024, 8 * 1024)


def test_what_is_refused_for_its_memory_needs_more_than_was_free_here(settings):
    """It is written with the run, so that it does not circle between the queue and this slot."""
    free = 2 * 2**30
    card = replace(gpu("RTX", 8, (8, 6)), memory_used_bytes=6 * 2**30)
    with pytest.raises(NotHere, match="The run would take") as refused:
        guarded(
            settings, {**TIGHT, "runtime": {"device": "cuda"}}, MANY, ClaimPlace(card, 1), TAKEN
        )
    needs = refused.value.needs
    assert needs.device_bytes is not None
    assert free < needs.device_bytes < 80 * 2**30
    assert (needs.host_bytes, needs.cpu_bytes, needs.disk_bytes) == (None, None, None)
    enough = replace(gpu("A100", 80, (8, 0)), memory_used_bytes=80 * 2**30 - needs.device_bytes)
    guarded(settings, {**TIGHT, "runtime": {"device": "cuda"}}, MANY, ClaimPlace(enough, 1), TAKEN)


def test_what_is_refused_for_small_chunks_needs_what_holds_a_batch(settings):
    """Chunks are small where little is free: without a need it would circle, as above."""
    features = {"shape": [360, 167], "dtype": "float32", "nonfinite_count": 0}
    wide = replace(READY, samples=51_779, fields={**(READY.fields or {}), "features": features})
    spec = {**SPEC, "training": {"batch_size": 4096}, "runtime": {"device": "cuda"}}
    card = replace(gpu("RTX", 8, (8, 6)), memory_used_bytes=0)
    with pytest.raises(NotHere, match=r"^Requeued.*A chunk holds") as refused:
        guarded(settings, spec, wide, ClaimPlace(card, 1), point(4096, 4_608))
    needed = refused.value.needs.device_bytes
    assert needed is not None
    assert 8 * 2**30 < needed < 80 * 2**30
    enough = replace(gpu("A100", 80, (8, 0)), memory_used_bytes=80 * 2**30 - needed)
    guarded(settings, spec, wide, ClaimPlace(enough, 1), point(4096, 4_608))


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("place", SLOTS[:2], ids=slot_name)
def test_what_does_not_fit_here_waits_with_the_reason_and_for_no_gpu_that_it_could_not_use(
    settings, device, place
):
    asked = {**HUGE, "runtime": {"device": device}}
    taken = point(1_000_000, 2**20)
    with pytest.raises(NotHere, match=r"^Requeued for a worker that") as refused:
        guarded(settings, asked, MANY, place, taken)
    assert refused.value.reason is Reason.slot_busy
    assert "The run would take" in refused.value.message
    assert "with a GPU" not in refused.value.message


def test_what_no_cpu_could_train_ends_where_a_cpu_is_asked_for(settings):
    with pytest.raises(NotFit, match="tf32 needs a CUDA device") as refused:
        guarded(settings, {**SPEC, "runtime": {"device": "cpu", "precision": "tf32"}})
    assert type(refused.value) is NotFit


@pytest.mark.parametrize(
    ("place", "found"),
    [(SLOTS[0], ["memory.preset_too_large"]), (SLOTS[1], ["memory.preset_too_large"]),
     (SLOTS[4], []), (SLOTS[3], [])],
    ids=lambda value: slot_name(value) if isinstance(value, ClaimPlace) else "",
)  # fmt: skip
def test_a_run_with_the_preset_of_another_device_starts_and_says_so(settings, place, found):
    issues = guarded(settings, {**SPEC, "preset": "rtx-24g"}, place=place)
    assert [issue.code for issue in issues] == found


def test_what_is_wrong_everywhere_ends_the_run_with_the_sentence(settings):
    with pytest.raises(NotFit, match="has no array 'nothing'") as refused:
        guarded(settings, {**SPEC, "data": {"dataset": "waves", "inputs": ["nothing"]}})
    assert type(refused.value) is NotFit
    assert refused.value.reason is Reason.spec_error


def test_a_site_that_only_warns_lets_a_slow_run_start_and_says_so(settings):
    lenient = settings.model_copy(update={"guard": "warn"})
    found = guarded(lenient, SLOW)
    assert [(issue.code, issue.severity) for issue in found] == [
        ("speed.chunk_below_batch", "warning")
    ]


def test_only_what_was_not_said_at_submission_becomes_an_event(settings):
    lenient = settings.model_copy(update={"guard": "warn"})
    found = guarded(lenient, SLOW)
    (event,) = new_findings(found, [])
    assert (event.kind, event.data["code"]) == ("issue", "speed.chunk_below_batch")
    assert new_findings(found, [found[0].model_dump(mode="json")]) == []


def test_the_facts_are_those_of_this_host_and_of_the_slot(settings):
    claimed = replace(lease(1), spec=SPEC, datasets={READY.name: READY})
    card, cpu = facts_of(settings, claimed, ClaimPlace(gpu("RTX", 8, (7, 5)), 2)).devices
    assert (card.kind, card.bf16, card.free_memory_bytes) == ("cuda", False, 2**33 - 2**28)
    assert cpu.kind == "cpu"
    assert card.host.slots == 2
    assert card.host.disk_free_bytes
    assert card.host.available_bytes


def test_what_was_waived_for_the_parent_at_submission_is_no_error_here(settings):
    lenient = settings.model_copy(update={"guard": "warn"})
    (slow,) = [issue.model_dump(mode="json") for issue in guarded(lenient, SLOW)]
    claimed = replace(lease(1), spec=SLOW, datasets={READY.name: READY})
    spec = read_stored(claimed.spec)
    waived = [{**slow, "waived_by": "parent"}]
    facts = facts_of(settings, claimed, CPU)
    (found,) = guard_claim(settings, claimed, spec, facts, waived)
    assert found.code == slow["code"]
    assert new_findings([found], waived) == []
    with pytest.raises(NotFit):
        guard_claim(settings, claimed, spec, facts, [{**slow, "waived_by": "site"}])


@pytest.mark.parametrize(("residency", "starts"), [("auto", True), ("stream", False)])
def test_a_full_order_that_was_settled_for_data_on_the_device_is_read_here_too(
    settings, residency, starts
):
    """Slowly, which is said; where a stream was asked for, the same is an error as ever."""
    squeezed = {
        "shape": [360, 15], "dtype": "float32", "nonfinite_count": 0, "storage": "chunked",
        "chunks": [64, 360, 15], "compression": "gzip",
    }  # fmt: skip
    fields = {"features": squeezed, "targets": {**squeezed, "shape": [36], "chunks": [64, 36]}}
    probe = {"bytes_per_second": 2e6}
    large = replace(READY, samples=60_000_000, fields=fields, read_probe=probe)
    loader = {"kind": "chunked", "residency": residency, "shuffle": "full", "chunk_size": "64MiB"}
    spec = {**SPEC, "data": {"dataset": "waves", "loader": loader}}
    if not starts:
        with pytest.raises(NotHere, match="would read the file about"):
            guarded(settings, spec, large)
        return
    (issue,) = [one for one in guarded(settings, spec, large) if one.code.startswith("speed.")]
    assert (issue.code, issue.severity) == ("speed.random_reads_of_chunks", "warning")
    assert "times over" in issue.message
    assert "At the 1.9 MiB a second that its inspection read, an epoch waits" in issue.why
