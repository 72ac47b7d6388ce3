"""A plan by one real step: near the real peak, linear in the batch, and never of another model."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.guard import memory_step
from app.guard.measured import Measured
from app.guard.memory import memory_plan
from app.guard.memory_fit import with_values
from tests.guard.cases import with_host
from tests.guard.memory_specs import CASES, Case, facts_of, planned, probed, spec_of, train
from tests.guard.world import GIB, REQUEST, plan_of, world

MIB = 2**20
TOLERANCE = 0.15
SPEC = spec_of(CASES[0])
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
    return memory_plan(spec, replace(facts_of(CASES[0], PATH), measured=measured))


def step_bytes(found) -> int:
    """What the training phase holds beside the data and its order."""
    items = found.host.items
    outside = ("resident_data", "order")
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
    data = sum(item.bytes for item in found.host.items if item.name == "resident_data")
    assert found.host.peaks["evaluating"] == pytest.approx(400 * MIB + data, abs=8)


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
    assert found.host.budget_bytes is not None
    assert found.host.peak_bytes > found.host.budget_bytes
    assert "larger still" in " ".join(found.assumed)


def test_a_fix_is_found_by_what_was_measured_and_not_by_the_coefficients():
    free = 2 * GIB
    facts = with_host(available_bytes=free)
    assert not [i for i in plan_of({}, facts).issues if i.code == "memory.over_budget"]
    spec = spec_of(Case("", CASES[0].data, {}, 128))
    request_spec = plan_of({}, facts).spec
    assert request_spec is not None
    spec = type(spec).model_validate(request_spec, strict=False)
    measured = replace(MEASURED, spec=spec, training=((16, 640 * MIB), (128, 3_000 * MIB)))
    issues = plan_of({}, replace(facts, measured=measured)).issues
    (issue,) = [issue for issue in issues if issue.code == "memory.over_budget"]
    values = {op.path: op.value for op in issue.fix}
    assert REQUEST["training"]["batch_size"] > values["/training/batch_size"]


def test_a_step_that_ran_out_of_memory_is_a_finding_with_its_sentence():
    facts = world()
    spec = plan_of({}, facts).spec
    assert spec is not None
    measured = Measured(
        type(SPEC).model_validate(spec, strict=False), "worker", 0.0, "cpu",
        ran_out=("training", spec["training"]["batch_size"], "The host ran out of memory."),
    )  # fmt: skip
    issues = plan_of({}, replace(facts, measured=measured)).issues
    (issue,) = [issue for issue in issues if issue.code == "memory.over_budget"]
    assert "at least" in issue.message
    assert "One step was tried: The host ran out of memory." in issue.why


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.name in ("the defaults, small data", "GRU of 2 layers, batch 256")],
    ids=lambda case: case.name,
)
def test_a_measured_plan_is_near_a_real_trainings_peak_whatever_the_coefficients(
    case, tmp_path, monkeypatch
):
    for name in ("TRAINING_ON_CPU", "EVALUATION_ON_CPU"):  # as of a recipe nobody has fitted
        wrong = {k: replace(c, each_layer=99.0) for k, c in getattr(memory_step, name).items()}
        monkeypatch.setattr(memory_step, name, wrong)
    measured = probed(case, tmp_path)
    peak = train(case, tmp_path)["measured_bytes"]
    host = planned(case, case.data.write(tmp_path), measured)["host"]
    assert host["planned_bytes"] == pytest.approx(peak, rel=TOLERANCE)
