"""A plan by one real step: near the real peak, linear in the batch, and never of another model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.guard.case import Case, with_values
from app.guard.memory import step
from app.guard.memory.measured import Measured
from app.guard.patching import apply_json_patch
from app.planning.imports import IMPORTS
from app.spec.run import RunSpec
from benchmarks.memory_cases import (
    CASES,
    SMALL,
    MemoryCase,
    facts_of,
    planned,
    probed,
    spec_of,
    train,
)
from tests.guard.cases import with_host
from tests.guard.world import GIB, REQUEST, RTX, plan_of, world

MIB = 2**20
# With whole batches to evaluate.
SPEC = spec_of(replace(CASES[0], more={"data": {"split": {"validation_fraction": 0.2}}}))
PATH = Path(__file__)  # of any size
MEASURED = Measured(
    SPEC,
    "worker",
    1_700_000_000.0,
    "cpu",
    training=((16, 200 * MIB), (128, 760 * MIB)),
    accumulating_bytes=770 * MIB,
    evaluation=(128, 400 * MIB),
    host_bytes=770 * MIB,
)


def plan(measured=MEASURED, **values):
    spec = with_values(SPEC, {f"/{name.replace('__', '/')}": v for name, v in values.items()})
    return Case(spec, replace(facts_of(CASES[0], PATH), measured=measured)).memory


def step_bytes(found) -> int:
    """What the training phase holds beside the data, its order and a checkpoint's copy."""
    items = found.host.items
    outside = ("resident_data", "order", "checkpoint_snapshot")
    return sum(i.bytes for i in items if "training" in i.phases and i.name not in outside)


def test_the_step_takes_what_was_measured_and_the_plan_says_who_and_when():
    found = plan()
    assert step_bytes(found) == pytest.approx(760 * MIB, abs=8)
    assert "worker at 2023-11-14T22:13:20Z" in " ".join(found.assumed)
    measured = found.as_json()["measured"]
    assert measured["training"][-1] == {"batch_size": 128, "peak_bytes": 760 * MIB}
    assert (measured["worker"], measured["ran_out_of_memory"]) == ("worker", None)


@pytest.mark.parametrize(("batch", "mib"), [(16, 200), (64, 440), (256, 1400)])
def test_other_batches_are_on_the_straight_line(batch, mib):
    assert step_bytes(plan(training__batch_size=batch)) == pytest.approx(mib * MIB, abs=8)


def test_a_step_of_several_batches_takes_what_was_measured_for_it():
    several = plan(training__gradient_accumulation_steps=4)
    assert step_bytes(several) == pytest.approx(770 * MIB, abs=8)


def test_the_evaluation_is_measured_too():
    found = plan()
    beside = ("resident_data", "checkpoint_snapshot")
    held = sum(item.bytes for item in found.host.items if item.name in beside)
    assert found.host.peaks["evaluating"] == pytest.approx(400 * MIB + held, abs=8)


@pytest.mark.parametrize(
    "values", [{"recipe__hidden_size": 96}, {"optimizer__kind": "adam"}, {"runtime__threads": 3}]
)
def test_a_measurement_tells_nothing_of_another_model(values):
    other = plan(**values)
    assert other.measured is None
    assert other.assumed == plan(None, **values).assumed


@pytest.mark.parametrize(
    ("phase", "batch"),
    [("training", 128), ("training", 16), ("building", 128), ("evaluating", 128)],
)
def test_where_memory_ran_out_the_plan_is_above_what_is_free(phase, batch):
    ran_out = Measured(SPEC, "worker", 0.0, "cpu", ran_out=(phase, batch, "It ran out."))
    found = plan(ran_out)
    assert found.host.available_bytes is not None
    assert found.host.peak_bytes > found.host.available_bytes
    assert "larger still" in " ".join(found.assumed)


def test_on_a_gpu_the_step_is_what_pytorch_allocated_beside_the_context_and_the_data():
    facts = as_measured(
        world(devices=(RTX,)),
        device="cuda",
        training=((24, 200 * MIB), (128, 760 * MIB)),
        evaluation=(128, 400 * MIB),
    )
    assert facts.measured is not None
    found = Case(facts.measured.spec, facts).memory
    assert found.device is not None
    items = {item.name: item.bytes for item in found.device.items}
    beside = items["context"] + items["resident_data"]
    assert found.device.peaks["training"] == pytest.approx(760 * MIB + beside, abs=8)
    assert found.device.peaks["evaluating"] == pytest.approx(400 * MIB + beside, abs=8)
    assert {i.name: i.bytes for i in found.host.items}["libraries"] == MEASURED.host_bytes
    assert any("not measured on a GPU" in line for line in found.assumed)


def test_a_compiler_that_was_measured_with_the_step_is_not_counted_again():
    spec = with_values(SPEC, {"/runtime/compile/mode": "default"})
    measured = replace(MEASURED, spec=spec)
    found = Case(spec, replace(facts_of(CASES[0], PATH), measured=measured)).memory
    assert step_bytes(found) == pytest.approx(760 * MIB, abs=8)
    facts = as_measured(world(devices=(RTX,)), device="cuda")
    assert facts.measured is not None
    spec = with_values(facts.measured.spec, {"/runtime/compile/mode": "default"})
    host = Case(spec, replace(facts, measured=replace(facts.measured, spec=spec))).memory.host
    assert {item.name: item.bytes for item in host.items}["compiler"] == 0


def test_what_a_cpu_took_tells_nothing_of_a_gpu():
    facts = as_measured(world(devices=(RTX,)))
    assert facts.measured is not None
    assert Case(facts.measured.spec, facts).memory.measured is None


def as_measured(facts, **found):
    """The facts, with a measurement of the world's own request."""
    spec = RunSpec.model_validate_json(json.dumps(plan_of({}, facts).require_ok()))
    return replace(facts, measured=replace(MEASURED, spec=spec, **found))


def over_budget(facts):
    (issue,) = [i for i in plan_of({}, facts).issues if i.code == "memory.over_budget"]
    return issue


def test_a_fix_is_reckoned_with_what_was_measured():
    facts = with_host(available_bytes=2 * GIB + IMPORTS["cpu"].trainer)
    assert plan_of({}, facts).errors == []  # by the coefficients
    issue = over_budget(as_measured(facts, training=((16, 640 * MIB), (128, 3_000 * MIB))))
    fixed = apply_json_patch(REQUEST, [op.model_dump(mode="json") for op in issue.fix])
    # 303 MiB, and 21 for each sample, beside the data: 64 samples fit into 85 % of what is free.
    assert fixed["training"] == {"batch_size": 64, "gradient_accumulation_steps": 2}


def test_a_step_that_ran_out_of_memory_is_a_finding_with_its_sentence():
    ran_out = ("training", 128, "The host ran out of memory.")
    issue = over_budget(as_measured(world(), training=None, ran_out=ran_out))
    assert "at least" in issue.message
    assert "One step was tried: The host ran out of memory." in issue.why


@pytest.mark.slow
def test_a_measured_plan_is_near_a_real_trainings_peak_whatever_the_coefficients(
    tmp_path, monkeypatch
):
    """On any machine within a factor; `python -m benchmarks memory` looks how near."""
    case = MemoryCase("LSTM, batch 512", SMALL, {}, 512)
    for name in ("TRAINING_ON_CPU", "EVALUATION_ON_CPU"):  # as of a recipe nobody has fitted
        wrong = {k: replace(c, each_layer=99.0) for k, c in getattr(step, name).items()}
        monkeypatch.setattr(step, name, wrong)
    peak = train(case, tmp_path)["measured_bytes"]
    assert planned(case, PATH)["host"]["planned_bytes"] > 2 * peak
    by_a_probe = planned(case, PATH, probed(case, tmp_path))["host"]["planned_bytes"]
    assert peak / 2 < by_a_probe < 2 * peak
