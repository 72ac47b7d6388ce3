"""Rules about learning where a spec is not the usual one: restarts, warm-ups, patience, parts."""

from typing import Any

import pytest

from tests.guard.world import codes, parent_of, plan_of, weather, world

JUMPS, WARMUP = "learning.rate_jumps_at_restart", "learning.no_warmup"
TRAINING = {"batch_size": 128, "epochs": 5}


def restarted(step: int, **training: Any):
    """A run of 5 epochs, 26 steps each, that goes on from `step`."""
    facts = world(parent=parent_of({"training": TRAINING}, step))
    return plan_of({"training": {**TRAINING, **training}}, facts)


@pytest.mark.parametrize("step", [100, 129, 130])
def test_a_run_that_is_to_train_longer_is_told_of_the_jump(step):
    plan = restarted(step, epochs=10)
    assert codes(plan) == [JUMPS]
    fix = {op.path: op.value for op in plan.issues[0].fix}
    assert fix["/schedule"] == {"kind": "cosine_warmup"}


@pytest.mark.parametrize(("step", "epochs"), [(130, 5), (129, 5), (104, 6)])
def test_with_the_fix_a_run_trains_the_epochs_that_were_asked_for_beyond_its_parent(step, epochs):
    plan = restarted(step, epochs=10)
    fix = {op.path: op.value for op in plan.issues[0].fix}
    assert fix["/training/epochs"] == epochs
    assert fix["/optimizer"] == {"lr": 1e-4}


def test_a_limit_in_steps_is_mended_too():
    plan = restarted(130, epochs=10, max_steps=200)
    assert codes(plan) == [JUMPS]
    fix = {op.path: op.value for op in plan.issues[0].fix}
    assert (fix["/training/max_steps"], fix["/training/epochs"]) == (70, 3)


@pytest.mark.parametrize("epochs", [5, 4])
def test_a_finished_run_without_a_step_to_go_has_no_jump(epochs):
    assert JUMPS not in codes(restarted(130, epochs=epochs))


LARGE = {"batch_size": 1024, "epochs": 100}


@pytest.mark.parametrize(
    ("schedule", "fields"),
    [
        ({"kind": "onecycle", "warmup_steps": 1}, {"warmup_steps"}),
        ({"kind": "onecycle", "warmup_steps": 0, "div_factor": 10.0}, {"warmup_steps"}),
        ({"kind": "linear_warmup", "warmup_fraction": 1e-6}, {"warmup_fraction"}),
        ({"kind": "cosine_warmup", "warmup_steps": 4}, {"warmup_steps"}),
        ({"kind": "cosine_warmup", "warmup_fraction": 0.0}, {"warmup_fraction"}),
    ],
)
def test_a_warm_up_of_next_to_nothing_is_none(schedule, fields):
    """400 steps, of which the first hundredth is 4."""
    plan = plan_of({"training": LARGE, "schedule": schedule})
    assert codes(plan) == [WARMUP]
    assert {op.path for op in plan.issues[0].fix} == {f"/schedule/{name}" for name in fields}


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "onecycle"},
        {"kind": "cosine_warmup", "warmup_steps": 8},
        {"kind": "linear_warmup", "warmup_fraction": 0.02},
    ],
)
def test_a_short_warm_up_is_one(schedule):
    assert codes(plan_of({"training": LARGE, "schedule": schedule})) == []


@pytest.mark.parametrize("steps", [20, 21, 60, 99, 100])
@pytest.mark.parametrize("kind", ["onecycle", "cosine_warmup", "linear_warmup"])
def test_a_short_run_is_mended_too(kind, steps):
    training = {**LARGE, "max_steps": steps}
    for fields in ({"warmup_steps": 0}, {"warmup_fraction": 0.0}):
        plan = plan_of({"training": training, "schedule": {"kind": kind, **fields}})
        assert codes(plan) == [WARMUP]
        assert plan.issues[0].fix
    (issue,) = plan_of({"training": training, "schedule": {"kind": "constant"}}).issues
    assert issue.fix
    assert codes(plan_of({"training": training, "schedule": {"kind": kind}})) == []


@pytest.mark.parametrize("steps", [1, 2, 3, 19])
def test_a_trial_of_a_few_steps_needs_no_warm_up(steps):
    training = {**LARGE, "max_steps": steps}
    for schedule in ({"kind": "constant"}, {"kind": "onecycle", "warmup_steps": 0}):
        assert codes(plan_of({"training": training, "schedule": schedule})) == []


@pytest.mark.parametrize(("patience", "found"), [(3, True), (4, False), (100, False)])
def test_patience_that_cannot_run_out_ends_nothing(patience, found):
    """5 looks: the first is the best so far, and the fifth is the end."""
    plan = plan_of({"early_stopping": {"patience": patience}})
    assert codes(plan) == ["learning.never_anneals"] * found


def test_a_part_of_hundreds_of_samples_measures_whatever_the_batch_is():
    large = weather(samples=40_200)
    part = {"split": {"validation_fraction": 0.02}}
    training = {"batch_size": 1000}
    plan = plan_of({"data": part, "training": training}, world(large))
    assert codes(plan) == []
    smaller = {"split": {"validation_fraction": 0.009}}
    assert codes(plan_of({"data": smaller, "training": training}, world(large))) == [
        "learning.small_part"
    ]


@pytest.mark.parametrize(
    ("batches", "batch_size", "told"),
    [(1, 1, "looks at 1 of 804 samples, fewer than 128"), (127, 1, "looks at 127"), (128, 1, "")],
)
def test_an_evaluation_looks_at_enough_of_its_part(batches, batch_size, told):
    evaluation = {"max_batches": batches, "batch_size": batch_size}
    plan = plan_of({"evaluation": evaluation, "training": {"batch_size": 128}})
    found = [issue for issue in plan.issues if issue.code == "learning.small_part"]
    assert bool(found) == bool(told)
    for issue in found:
        assert told in issue.message
        assert [op.value for op in issue.fix] == [128]


def test_a_batch_above_the_part_becomes_the_usual_one_and_not_the_whole_part():
    plan = plan_of({"training": {"batch_size": 100_000}})
    issue = next(i for i in plan.issues if i.code == "learning.batch_above_samples")
    assert [op.value for op in issue.fix if op.path == "/training/batch_size"] == [128]
