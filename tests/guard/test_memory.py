"""The memory plan: exact where it can be, near what was measured, and with room for what is."""

import json
import shutil
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import torch

from app.guard import case as guard_case
from app.guard.case import Case
from app.guard.facts import Facts, UnknownFact
from app.guard.memory.budget import PHASES
from app.guard.memory.fitting import fitting, fitting_batch
from app.guard.memory.items import CUDA_CONTEXT_BYTES
from app.guard.memory.memory_plan import MemoryPlan, memory_plan
from app.guard.memory.workload import Workload
from app.planning.imports import IMPORTS
from app.planning.residency import memory_for_data
from app.spec.layers import overlay
from app.spec.run import RunSpec
from app.store.telemetry.measured_memory import compared
from benchmarks.memory import process_memory
from benchmarks.memory.memory_cases import (
    BUILD,
    CASES,
    MemoryCase,
    RaggedShape,
    facts_of,
    loader,
    planned,
    profiles_of,
    train,
)
from benchmarks.memory.memory_cases import spec_of as spec_of_case
from tests.guard.changes import with_host
from tests.guard.world import (
    CPU,
    FIELDS,
    GIB,
    REQUEST,
    RTX,
    as_measured,
    codes,
    plan_of,
    point,
    weather,
    world,
)
from tests.trainer_data.factories import entry, preparing
from worker.trainer.data.dataset import open_data
from worker.trainer.data.feed.stream import Streamed
from worker.trainer.data.feed.transfer import Slot
from worker.trainer.data.layouts.padded import DeviceValues

OF_DATA = ("memory.over_budget", "memory.resident_does_not_fit")


def spec_of(**change: Any) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps(overlay(REQUEST, change)))


def test_weights_are_those_that_the_recipe_tells():
    """That it tells the truth is the recipe's own test."""
    spec = spec_of()
    case = Case(spec, world())
    told = spec.recipe.num_parameters(spec.data, case.recipe_arrays)
    items = case.memory.as_json()["host"]["items"]
    assert told is not None
    assert items["weights"] == items["gradients"] == 4 * told


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [({"kind": "adamw"}, 2), ({"kind": "sgd"}, 1), ({"kind": "sgd", "momentum": 0.0}, 0)],
)
def test_the_optimizer_has_so_many_moments_of_every_weight(optimizer, moments):
    items = Case(spec_of(optimizer=optimizer), world()).memory.as_json()["host"]["items"]
    assert items.get("optimizer", 0) == moments * items["gradients"]


@pytest.mark.parametrize(
    "averaging", [{"kind": "swa", "start_epoch": 3, "lr": 1e-3}, {"kind": "ema"}]
)
def test_averaged_weights_are_a_second_copy_also_in_a_checkpoint(averaging):
    plain, found = (
        Case(spec, world()).memory.as_json()["host"]["items"]
        for spec in (spec_of(), spec_of(averaging=averaging))
    )
    assert found["average"] == found["weights"] == plain["weights"]
    assert found["checkpoint_snapshot"] == plain["checkpoint_snapshot"] + found["average"]
    assert "average" not in plain


def test_the_peak_is_that_of_one_phase_and_not_of_all_together():
    host = Case(spec_of(), world()).memory.host
    assert host.peak_bytes == max(host.peaks.values()) < sum(item.bytes for item in host.items)


def test_on_a_gpu_model_and_data_are_on_the_device_and_the_staging_on_the_host():
    plan = Case(spec_of(), world(devices=(RTX,))).memory
    assert plan.device is not None
    assert plan.device.available_bytes == RTX.free_memory_bytes
    assert {"weights", "context", "resident_data"} <= {item.name for item in plan.device.items}
    assert "staging" in {item.name for item in plan.host.items}
    assert any("not measured on a GPU" in line for line in plan.assumed)


def test_a_stop_copies_a_gpus_state_beside_a_best_one_that_waits():
    """On a CPU it is written from where it lies."""
    specs = [spec_of(checkpoint={"keep_best": kept}) for kept in (1, 0)]
    found, none = (Case(spec, world(devices=(RTX,))).memory.host for spec in specs)
    (copy,) = (item.bytes for item in none.items if item.name == "checkpoint_snapshot")
    more = {phase: found.peaks[phase] - none.peaks[phase] for phase in PHASES}
    assert more == {**dict.fromkeys(PHASES, 0), "checkpointing": copy}
    assert "waiting_best" not in Case(spec_of(), world()).memory.as_json()["host"]["items"]


@pytest.mark.parametrize("below", [1, IMPORTS["cpu"].trainer - 1])
def test_what_the_imports_take_is_not_free(below):
    """The plan is of bytes above them, so it has to fit into what they leave."""
    change = {
        "recipe": {"hidden_size": 2048},
        "training": {"batch_size": 32},
        "data": {
            "loader": {
                "kind": "chunked", "residency": "stream", "chunk_size": "8MiB", "shuffle": "full"
            }
        },
    }  # fmt: skip
    known = as_measured(change, with_host(available_bytes=4 * GIB), point(32, 900))
    least = Case(spec_of(**change), known).memory.host.least_bytes

    def there(available_bytes: int) -> Facts:
        return replace(with_host(available_bytes=available_bytes), profiles=known.profiles)

    fits = there(least + IMPORTS["cpu"].trainer)
    assert Case(spec_of(**change), fits).memory.fits
    short = there(least + IMPORTS["cpu"].trainer - below)
    assert "memory.over_budget" in codes(plan_of(change, short))


def test_of_the_host_of_a_gpu_the_imports_are_taken_off_too():
    host = Case(spec_of(), world(devices=(RTX,))).memory.host
    assert host.available_bytes == (RTX.host.available_bytes or 0) - IMPORTS["cpu"].trainer


@pytest.mark.parametrize("residency", ["auto", "resident"])
@pytest.mark.parametrize("mib", [100, 756])
def test_a_host_with_nothing_left_is_said_to_have_only_so_much_free(residency, mib):
    asked = {"data": {"loader": {"kind": "chunked", "residency": residency}}}
    plan = plan_of(asked, with_host(available_bytes=mib * 2**20))
    (of_data,) = [
        issue for issue in plan.errors if issue.code in OF_DATA and issue.loc[0] == "data"
    ]
    assert of_data.message == f"The host has only {mib}.0 MiB available."
    assert not of_data.fix


def test_a_gpu_with_nothing_left_is_said_to_have_only_so_much_free():
    plan = plan_of(facts=world(devices=(replace(RTX, free_memory_bytes=GIB // 2),)))
    (of_data,) = [
        issue for issue in plan.errors if issue.code in OF_DATA and issue.loc[0] == "data"
    ]
    assert of_data.message == "The NVIDIA RTX 4090 has only 512.0 MiB available."


def is_near(planned: int, measured: int) -> bool:
    """On any machine; `python -m benchmarks memory` looks how near."""
    return measured / 2 < planned < 2 * measured


@pytest.mark.slow
def test_the_imports_of_a_trainer_take_what_the_plan_says():
    assert is_near(IMPORTS[BUILD].trainer, process_memory.imports_of_a_trainer())


@pytest.mark.minutes
@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_compiler_takes_what_the_plan_says():
    assert is_near(IMPORTS[BUILD].compiler, process_memory.compiler())


@pytest.mark.parametrize("device", [CPU, RTX])
def test_a_compiled_run_plans_the_compiler_on_the_host(device):
    facts = world(devices=(device,))
    eager = Case(spec_of(), facts).memory
    plan = Case(spec_of(runtime={"compile": {"mode": "default"}}), facts).memory
    assert plan.host.peaks["training"] == eager.host.peaks["training"] + IMPORTS["cpu"].compiler
    if plan.device is not None and eager.device is not None:
        assert plan.device.peak_bytes == eager.device.peak_bytes


@pytest.mark.parametrize(
    ("facts", "missing"),
    [
        (Facts(), "device"),
        (replace(world(), datasets={}), "weather"),
        (with_host(available_bytes=None), "available memory"),
        (with_host(torch_build=None), "which PyTorch"),
        (world(devices=(replace(RTX, free_memory_bytes=None),)), "free memory"),
    ],
)
def test_a_missing_fact_is_named_and_the_plan_of_the_request_is_none(facts, missing):
    with pytest.raises(UnknownFact, match=missing):
        _ = Case(spec_of(), facts).memory
    assert plan_of(facts=facts).memory is None


def test_the_plan_of_a_request_is_json_with_its_memory():
    memory = plan_of().memory
    assert memory == json.loads(json.dumps(memory))
    assert memory is not None
    assert memory["host"]["least_bytes"] == max(memory["host"]["phases"].values())
    assert memory["residency"] == "resident"


def test_windows_that_are_kept_as_a_series_take_its_memory():
    steps = 50_359
    series = replace(FIELDS["features"], series_steps=steps)
    expanded = Case(spec_of(), world(weather(samples=50_000, size_bytes=10**9))).memory
    kept = Case(
        spec_of(), world(weather(samples=50_000, fields={**FIELDS, "features": series}))
    ).memory
    # Two parts hold the window between them twice; each sample has a start and its targets.
    needed = (steps + 360) * 15 * 4 + 50_000 * (8 + 36 * 4) + 40_000 * 8
    assert (kept.data.kind, kept.data.needed_bytes) == ("resident", needed)
    assert expanded.data.needed_bytes > 50 * needed
    assert kept.need.sample_bytes == expanded.need.sample_bytes


def bytes_of(slot: Slot) -> int:
    values = [one for one in slot.arrays if isinstance(one, DeviceValues)]
    apart = [tensor for one in values for tensor in (one.values, one.begins)]
    return sum(tensor.nbytes for tensor in (*slot.rows.values(), slot.places, *apart))


@pytest.mark.parametrize("chunk_size", ["2KiB", "16KiB", "1MiB"])
def test_a_plan_has_the_chunks_of_ragged_samples_that_the_trainer_makes(tmp_path, chunk_size):
    data = RaggedShape(1_000, 120, 3, "uint8")
    case = MemoryCase("ragged", data, {}, 16, loader(residency="stream", chunk_size=chunk_size))
    path = data.write(tmp_path)
    planned = Case(spec_of_case(case), facts_of(case, path)).memory
    found = open_data(
        spec_of_case(case), {data.name: entry(path)}, torch.device("cpu"), preparing(tmp_path)
    )
    described = found.describe()
    streams = [part for part in (found.train, found.validation) if isinstance(part, Streamed)]
    held = sum(bytes_of(slot) for part in streams for slot in part._slots)
    found.close()
    # Slots have whole batches of 16, and at times a byte for each sample more by rounding.
    assert 0.8 * planned.data.needed_bytes < held < 1.01 * planned.data.needed_bytes
    mean = (100 * 120 + 900 * 24) * 3 / 1_000
    assert planned.need.sample_bytes == described["sample_bytes"] == ceil(mean) + 16 + 36 * 4
    assert planned.data.chunk_samples == described["chunk_samples"]


def test_planned_and_measured_are_compared_where_the_model_was():
    on_cpu = Case(spec_of(), as_measured({}, world(), point(128, 300))).memory.as_json()
    found = compared(on_cpu, {"host_bytes": 10**8, "device_bytes": None})
    assert found["ratio"] == on_cpu["host"]["planned_bytes"] / 10**8
    on_rtx = as_measured({}, world(devices=(RTX,)), point(128, 300))
    on_gpu = Case(spec_of(), on_rtx).memory.as_json()
    items = on_gpu["device"]["items"]
    found = compared(on_gpu, {"host_bytes": 1, "device_bytes": 10**8})
    assert found["planned_bytes"] == on_gpu["device"]["planned_bytes"] - items["context"]
    assert compared(None, None)["ratio"] is None
    assert compared(on_cpu, {"host_bytes": 1, "device_bytes": 10**8})["planned_bytes"] is None
    for device in (CPU, RTX):  # what was not known then is no plan that could be compared
        unknown = Case(spec_of(), world(devices=(device,))).memory.as_json()
        found = compared(unknown, {"host_bytes": 10**8, "device_bytes": None})
        assert (found["planned_bytes"], found["ratio"]) == (None, None)


# Seven MiB for each sample.
LARGER = point(512, 3_600), point(128, 912)


def test_what_is_too_large_gets_the_largest_batch_that_fits_and_keeps_the_effective_one():
    change = {"recipe": {"hidden_size": 512, "patch": 1}, "training": {"batch_size": 512}}
    facts = as_measured(change, with_host(available_bytes=2 * GIB), *LARGER)
    issue = next(i for i in plan_of(change, facts).issues if i.code == "memory.over_budget")
    values = {op.path: op.value for op in issue.fix}
    batch = values["/training/batch_size"]
    steps = (
        values["/training"]["gradient_accumulation_steps"]
        if "/training" in values
        else (values["/training/gradient_accumulation_steps"])
    )
    assert batch * steps == 512
    larger = spec_of(recipe=change["recipe"], training={"batch_size": 2 * batch})
    host = Case(larger, facts).memory.host
    assert host.peak_bytes > 0.85 * (host.available_bytes or 0)


@pytest.mark.parametrize(
    ("recipe", "batch", "told"),
    [
        ({"hidden_size": 512, "patch": 1}, 509, "A batch of 128 does, but it would be another"),
        ({"hidden_size": 4096, "num_layers": 8}, 65_536, "one sample does not fit either."),
    ],
)
def test_a_batch_that_cannot_be_cut_has_no_fix_but_is_told_what_would_fit(recipe, batch, told):
    change = {"recipe": recipe, "training": {"batch_size": batch}}
    facts = as_measured(change, with_host(available_bytes=2 * GIB), *LARGER)
    issue = next(i for i in plan_of(change, facts).issues if i.code == "memory.over_budget")
    assert issue.fix == []
    assert told in issue.why


@pytest.mark.parametrize("batch", [509, 5_040, 65_536])
@pytest.mark.parametrize("hidden", [64, 512, 2_048, 16_384])
def test_few_plans_are_made_in_search_of_what_fits(batch, hidden, monkeypatch):
    """Halving: so many for 32 parts at the utmost, and as many for 16 powers of two."""
    plans: list[RunSpec] = []

    def counted(work: Workload, *rest: Any) -> MemoryPlan:
        plans.append(work.spec)
        return memory_plan(work, *rest)

    monkeypatch.setattr(guard_case, "memory_plan", counted)
    change = {"recipe": {"hidden_size": hidden, "patch": 1}, "training": {"batch_size": batch}}
    facts = as_measured(change, with_host(available_bytes=2 * GIB), *LARGER)
    case = Case(spec_of(**change), facts)
    values = fitting(case)
    assert len(plans) <= 20
    if values:
        assert case.with_values(values).memory.fits
        whole = values["/training/batch_size"] * values["/training/gradient_accumulation_steps"]
        assert whole == batch
    else:
        fitting_batch(case)
        assert len(plans) <= 24


def test_data_makes_room_before_the_batch_does():
    change = {
        "recipe": {"hidden_size": 1024},
        "training": {"batch_size": 32},
        "data": {"loader": {"kind": "chunked", "residency": "resident"}},
    }
    data = weather(samples=40_000, size_bytes=870_000_000)
    peak = Case(spec_of(**change), world(data)).memory.host.peak_bytes
    facts = replace(with_host(available_bytes=int(0.98 * peak)), datasets={"weather": data})
    issue = next(i for i in plan_of(change, facts).issues if i.code == "memory.over_budget")
    assert {op.path for op in issue.fix} == {
        "/data/loader/residency", "/data/loader/chunk_size",
    }  # fmt: skip


# Of each, most of the memory is of another kind: data, processes, weights, activations.
TRAINED = (
    "LSTM, resident 420 MiB",
    pytest.param("PyTorch's loader, 2 processes 4 ahead", marks=pytest.mark.minutes),
    "LSTM, 25 million weights, AdamW",
    "GRU, every step, batch 256",
)


@pytest.mark.minutes
@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_plan_by_a_run_is_near_the_peak_of_that_training(name: str, tmp_path: Path):
    """Another of the same spec has the same; `python -m benchmarks memory` trains it anew."""
    (case,) = [case for case in CASES if case.name == name]
    trained = train(case, tmp_path)
    plan = planned(case, case.data.write(tmp_path), profiles_of(trained.measured))
    found = compared(plan, trained.peak)
    assert is_near(found["planned_bytes"], found["measured_bytes"])


def test_the_reference_table_stays_on_a_card_of_16_gb_and_the_trainer_is_told_the_same():
    """51,779 windows of 360 × 167: 12.45 GB of the 15.4 GiB that are free."""
    features = replace(FIELDS["features"], shape=(360, 167))
    table = weather(
        samples=51_779, size_bytes=12_450_000_000, fields={**FIELDS, "features": features}
    )
    card = replace(RTX, total_memory_bytes=16 * GIB, free_memory_bytes=int(15.4 * GIB))
    unknown = world(table, devices=(card,))
    # Until a like run was measured half of the card is kept for what it may take.
    assert Case(spec_of(), unknown).memory.data.kind == "stream"
    facts = as_measured({}, unknown, point(128, 1_000))
    plan = Case(spec_of(), facts).memory
    assert plan.device is not None
    assert plan.fits
    assert plan.data.kind == "resident"
    assert 12 * GIB < plan.device.peak_bytes < 15.4 * GIB
    # The trainer measures what is free once its context is there.
    free = int(15.4 * GIB) - CUDA_CONTEXT_BYTES
    assert memory_for_data(free, plan.beside_bytes, on_gpu=True) == plan.data_memory
    wide = Case(spec_of(), as_measured({}, unknown, point(128, 4_000))).memory
    assert wide.data.kind == "stream"
