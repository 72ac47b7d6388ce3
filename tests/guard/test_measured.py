"""Plans by what like runs were measured to take: near them, and never of another model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.guard.case import Case
from app.guard.facts import Facts
from app.guard.memory.items import CUDA_CONTEXT_BYTES, LEAST_SPREAD_BYTES
from app.guard.memory.measuring import Taken, measured
from app.guard.memory.memory_plan import MemoryPlan
from app.guard.memory.profile_key import profile_key
from app.planning.imports import IMPORTS
from app.planning.ladder import Use
from app.planning.profile import Point, Profile
from app.planning.residency import memory_for_data
from app.service.profiles import keys_of
from app.spec.layers import overlay
from app.spec.run import RunSpec
from benchmarks.memory.memory_cases import SMALL, MemoryCase, planned, probed, profiles_of, train
from tests.guard.changes import with_host
from tests.guard.world import (
    A100,
    CPU,
    FIELDS,
    GIB,
    REQUEST,
    RTX,
    as_measured,
    plan_of,
    point,
    weather,
    world,
)

MIB = 2**20
ASKED = {"training": {"batch_size": 128}}


def spec_of(change: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate_json(json.dumps(overlay(REQUEST, change)))


def plan(facts: Facts, change: dict[str, Any] | None = None) -> MemoryPlan:
    return Case(spec_of(overlay(ASKED, change or {})), facts).memory


def items(found: MemoryPlan) -> dict[str, int]:
    return {item.name: item.bytes for item in found.with_model.items}


@pytest.mark.parametrize("device", [CPU, RTX])
def test_a_step_takes_what_was_measured_and_the_plan_says_who_and_when(device):
    found = plan(as_measured(ASKED, world(devices=(device,)), point(128, 760, 400)))
    taken = items(found)
    assert (taken["activations"], taken["evaluation"]) == (760 * MIB, 400 * MIB)
    assert found.unknown == ()
    assert "run 7 on 2023-11-14 measured it" in " ".join(found.assumed)
    told = found.as_json()["measured"]
    assert (told["runs"], told["batch_sizes"], told["worker"]) == ([7], [128], "box")


def test_more_is_planned_than_measured_and_only_what_was_measured_refuses():
    """Like runs do not take quite the same; a probe makes few steps."""
    facts = as_measured(ASKED, world(), point(128, 760))
    by_run, by_probe = (
        items(plan(as_measured(ASKED, world(), replace(p, run_id=run))))
        for p, run in ((point(128, 760), 7), (point(128, 760), None))
    )
    model = sum(by_run[name] for name in ("weights", "gradients", "optimizer"))
    assert by_run["activations_spread"] == (760 * MIB + model) // 10
    assert by_probe["activations_spread"] == (760 * MIB + model) // 4
    small = items(plan(as_measured(ASKED, world(), point(128, 20))))
    assert small["activations_spread"] == LEAST_SPREAD_BYTES
    host = plan(facts).host
    assert host.peak_bytes - host.least_bytes == by_run["activations_spread"]
    between = host.least_bytes + 1 + IMPORTS["cpu"].trainer
    tight = with_host(available_bytes=between)
    assert plan(replace(tight, profiles=facts.profiles)).fits
    assert not plan(replace(with_host(available_bytes=between - 2), profiles=facts.profiles)).fits


def test_what_nobody_has_measured_is_said_and_refuses_nothing():
    found = plan(world())
    assert found.unknown == ("activations", "evaluation")
    assert "stoker plan --probe" in " ".join(found.assumed)
    told = found.as_json()
    assert (told["measured"], told["host"]["planned_bytes"]) == (None, None)
    assert told["host"]["least_bytes"] == max(told["host"]["phases"].values())
    assert plan_of({}, with_host(available_bytes=2 * GIB)).errors == []


def test_while_it_is_not_known_half_of_what_is_exact_leaves_is_kept_for_it():
    found = plan(world(devices=(RTX,)))
    free = (RTX.free_memory_bytes or 0) - CUDA_CONTEXT_BYTES
    exact = found.beside.least_bytes
    assert found.beside_bytes == exact + (free - exact) // 2
    assert found.data_memory == memory_for_data(free, found.beside_bytes, on_gpu=True)
    known = plan(as_measured(ASKED, world(devices=(RTX,)), point(128, 760)))
    assert known.beside_bytes == known.beside.peak_bytes < found.beside_bytes


def test_an_evaluation_that_was_never_made_takes_no_more_than_a_training_step():
    alone = Point(128, 760 * MIB, host_bytes=0, run_id=7, worker="box")
    found = plan(as_measured(ASKED, world(), alone))
    assert found.unknown == ()
    assert items(found)["evaluation"] == 760 * MIB
    assert next(i for i in found.host.items if i.name == "evaluation").least == 0


def test_a_models_size_that_its_recipe_does_not_tell_is_that_which_was_built():
    facts = as_measured(ASKED, world(), point(128, 760, parameters=1_000))
    case = Case(spec_of(ASKED), facts)
    case.__dict__["parameters"] = None  # as of a recipe that cannot tell
    assert items(case.memory)["weights"] == 4_000
    unknown = Case(spec_of(ASKED), world())
    unknown.__dict__["parameters"] = None
    assert unknown.memory.unknown == ("weights", "activations", "evaluation")


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"hidden_size": 96}},
        {"recipe": {"dropout": 0.1}},
        {"optimizer": {"kind": "adam"}},
        {"training": {"clip_grad_norm": None}},
        {"runtime": {"threads": 3}},
        {"runtime": {"compile": {"mode": "default"}}},
        {"runtime": {"precision": "bf16-mixed"}},
        {"data": {"inputs": ["wide"]}},
    ],
    ids=str,
)
def test_a_measurement_tells_nothing_of_another_model(change):
    wide = replace(FIELDS["features"], shape=(180, 30))
    facts = world(weather(fields={**FIELDS, "wide": wide}))
    facts = as_measured(ASKED, facts, point(128, 760))
    assert plan(facts).profile is not None
    assert plan(facts, change).profile is None


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"batch_size": 64, "gradient_accumulation_steps": 2, "epochs": 9}},
        {"data": {"loader": {"kind": "chunked", "residency": "stream"}}},
        {"data": {"loader": {"kind": "dataloader", "num_workers": 2}}},
        {"optimizer": {"kind": "adamw", "lr": 0.1}},
        {"loss_weights": {"loss": 2.0}},
    ],
    ids=str,
)
def test_it_tells_of_other_batches_and_of_data_that_is_kept_in_another_way(change):
    facts = as_measured(ASKED, world(), point(128, 760))
    assert plan(facts, change).profile is not None


def test_each_device_has_a_profile_of_its_own():
    case = Case(spec_of(ASKED), world(devices=(RTX, A100)))
    keys = {key.device for key in keys_of(case)}
    assert keys == {RTX.name, A100.name, "cpu"}
    other = replace(RTX, host=replace(RTX.host, torch_build="cuda"))
    assert profile_key(case.workload, other) != profile_key(case.workload, RTX)


def test_a_fix_is_reckoned_with_what_was_measured():
    facts = with_host(available_bytes=2 * GIB + IMPORTS["cpu"].trainer)
    points = point(128, 3_000), point(16, 640)
    plan = plan_of(ASKED, as_measured(ASKED, facts, *points))
    (issue,) = [i for i in plan.issues if i.code == "memory.over_budget"]
    # 303 MiB, and 21 for each sample, beside the data; a tenth more is planned.
    assert {op.path: op.value for op in issue.fix} == {
        "/training/batch_size": 32, "/training/gradient_accumulation_steps": 4,
    }  # fmt: skip


def test_a_probe_that_ran_out_of_memory_is_a_finding_whatever_is_free():
    ran_out = Point(128, GIB, ran_out="training", worker="box")
    plan = plan_of(ASKED, as_measured(ASKED, world(), ran_out))
    (issue,) = [i for i in plan.issues if i.code == "memory.over_budget"]
    assert issue.message == (
        "A probe on box made a step with a batch of 128 and ran out of memory."
    )
    assert {op.path: op.value for op in issue.fix}["/training/batch_size"] == 64
    by_run = plan_of(ASKED, as_measured(ASKED, world(), replace(ran_out, run_id=3)))
    assert by_run.errors == []  # as much is free here


def taken(**more: Any) -> Taken:
    """Of an attempt that kept 83 MiB on the host, and took 900 at its peak."""
    totals = {"train_iterations": 200, "train_samples": 25_600, "eval_samples": 804}
    seconds = {"compute": 2.0, "sync": 0.5, "data_wait": 1.0, "h2d": 0.0}
    peak = {
        "host_bytes": 900 * MIB,
        "device_bytes": None,
        "phases": {"building": 100 * MIB, "training": 900 * MIB, "evaluating": 500 * MIB},
    }
    values = {
        "applied": {"gradient_accumulation_steps": 1, "parameters": 45_000},
        "use": Use("cpu", "resident", 83 * MIB, 21_000, 2, 128, 128, 0),
        "progress": {"peak_memory": peak, "totals": totals, "phase_seconds": seconds},
        "saved": 2,
        "is_done": True,
    }
    return Taken(**{**values, **more})


def test_what_a_run_took_plans_the_next_one_at_its_peak():
    case = Case(spec_of(ASKED), world())
    found = measured(case, taken())
    assert found is not None
    (one,) = found.points
    assert (one.batch_size, one.evaluation_batch_size, one.parameters) == (128, 128, 45_000)
    assert one.samples_per_second == 25_600 / 2.5
    known = Case(case.spec, replace(world(), profiles={found.key: Profile((one,))})).memory
    assert known.host.least_bytes == pytest.approx(900 * MIB, abs=MIB)
    # An evaluation has the copy of the state beside it, as the training had.
    phases = {i.name: i.bytes for i in known.host.items}
    assert phases["evaluation"] < phases["activations"]


def test_a_copy_of_the_state_is_taken_off_only_where_there_was_one():
    case = Case(spec_of(overlay(ASKED, {"recipe": {"hidden_size": 1024}})), world())
    with_copy, without = (measured(case, taken(saved=n)) for n in (2, 1))
    assert with_copy is not None
    assert without is not None
    state = next(i.bytes for i in case.memory.host.items if i.name == "checkpoint_snapshot")
    taken_more = (without.points[0].training_bytes or 0) - (with_copy.points[0].training_bytes or 0)
    assert taken_more == state


def test_a_run_that_made_few_steps_tells_nothing_but_that_it_ran_out():
    case = Case(spec_of(ASKED), world())
    progress = {
        **taken().progress,
        "totals": {"train_iterations": 3, "train_samples": 384, "eval_samples": 0},
    }
    few = taken(progress=progress, is_done=False)
    assert measured(case, few) is None
    ran_out = measured(case, replace(few, ran_out="training", wanted_bytes=64 * MIB))
    assert ran_out is not None
    (one,) = ran_out.points
    (whole,) = (measured(case, taken()) or ran_out).points
    assert (one.ran_out, one.training_bytes) == ("training", (whole.training_bytes or 0) + 64 * MIB)
    assert one.samples_per_second is None


def test_on_a_rung_of_the_ladder_the_batch_is_what_was_computed_at_once():
    case = Case(spec_of(ASKED), world())
    use = replace(taken().use, batch=32, evaluation_batch=32)
    applied = {"gradient_accumulation_steps": 4, "parameters": 45_000}
    found = measured(case, taken(use=use, applied=applied))
    assert found is not None
    assert found.key == profile_key(case.workload, CPU)
    assert (found.points[0].batch_size, found.points[0].accumulated) == (32, True)


def test_on_a_gpu_the_context_is_not_pytorchs_and_the_host_is_measured_beside():
    facts = world(devices=(RTX,))
    case = Case(spec_of(ASKED), facts)
    peak = {
        "host_bytes": 1_500 * MIB,
        "device_bytes": 900 * MIB,
        "phases": {"training": 900 * MIB, "evaluating": 500 * MIB},
    }
    use = replace(taken().use, device="cuda", staging_bytes=32 * MIB)
    found = measured(case, taken(use=use, progress={**taken().progress, "peak_memory": peak}))
    assert found is not None
    known = Case(
        case.spec, replace(facts, profiles={found.key: Profile(tuple(found.points))})
    ).memory
    assert known.device is not None
    least = known.device.least_bytes - CUDA_CONTEXT_BYTES
    assert least == pytest.approx(900 * MIB, abs=MIB)
    assert known.host.least_bytes == pytest.approx(1_500 * MIB, abs=MIB)


@pytest.mark.minutes
@pytest.mark.slow
def test_a_plan_by_a_probe_is_near_a_real_trainings_peak(tmp_path: Path):
    """On any machine within a factor; `python -m benchmarks memory` looks how near."""
    case = MemoryCase("LSTM, batch 512", SMALL, {}, 512)
    path = case.data.write(tmp_path)
    profiles = profiles_of(probed(case, tmp_path), by_probe=True)
    by_a_probe = planned(case, path, profiles)["host"]["planned_bytes"]
    peak = train(case, tmp_path).compared["measured_bytes"]
    assert peak / 2 < by_a_probe < 2 * peak
