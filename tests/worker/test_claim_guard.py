"""The guard at claim: what cannot train here goes elsewhere, waits, or fails with the reason."""

from dataclasses import replace

import pytest

from app.lifecycle import Reason
from app.settings import Settings
from tests.worker.test_preparation import WAVES, lease
from worker.claim_guard import Place, facts_of, guard_claim, new_findings
from worker.preparation import NotFit, NotHere, parse_spec
from worker.telemetry import GpuSample

SPEC = {"recipe": {"kind": "sequence"}, "data": {"dataset": "waves"}}
LOADER = {"kind": "chunked", "residency": "stream", "chunk_size": "4KiB"}
SLOW = {**SPEC, "data": {**SPEC["data"], "loader": LOADER}}
CPU = Place(None, 1)
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


def guarded(settings, spec, dataset=READY, place=CPU):
    claimed = replace(lease(1), spec=spec, dataset=dataset)
    return guard_claim(settings, claimed, parse_spec(claimed), place)


def test_a_run_whose_dataset_is_inspected_again_waits_and_does_not_fail(settings):
    with pytest.raises(NotHere, match="'waves' is being inspected again") as refused:
        guarded(settings, SPEC, replace(READY, state="inspecting"))
    assert refused.value.reason is Reason.slot_busy


def test_what_a_gpu_could_train_goes_back_to_wait_for_one(settings):
    with pytest.raises(NotHere, match="for a worker with a GPU"):
        guarded(settings, {**SPEC, "runtime": {"precision": "tf32"}})


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
    gpu = GpuSample(
        index="0", uuid="GPU-1", model="RTX", driver="1", utilization=None, sm_active=None,
        memory_used_bytes=2, memory_total_bytes=10, power_watts=None, temperature_celsius=None,
        energy_joules=None, capability=(7, 5), processes=(),
    )  # fmt: skip
    claimed = replace(lease(1), spec=SPEC, dataset=READY)
    card, cpu = facts_of(settings, claimed, Place(gpu, 2)).devices
    assert (card.kind, card.bf16, card.free_memory_bytes) == ("cuda", False, 8)
    assert cpu.kind == "cpu"
    assert card.host.slots == 2
    assert card.host.disk_free_bytes
    assert card.host.available_bytes
