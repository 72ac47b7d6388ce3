"""Rules about learning where a spec is not the usual one: restarts, warm-ups, patience, parts."""

from typing import Any

import pytest

from app.recipes.sequence import Sequence
from app.spec.installed import INSTALLED
from app.spec.recipe import Recipe
from tests.guard.changes import PRETRAINED
from tests.guard.world import codes, parent_of, plan_of, weather, with_field, world

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


ANNEALS, ACTS = "learning.never_anneals", "correctness.never_evaluated"


@pytest.mark.parametrize(
    ("schedule", "epochs", "patience", "code", "fixed"),
    [
        # 5 evaluations: the first is the best so far, and the fifth is the end.
        ("onecycle", 5, 3, ANNEALS, None),
        ("onecycle", 5, 4, ACTS, None),
        ("onecycle", 5, 100, ACTS, None),
        ("constant", 5, 4, ACTS, 3),
        ("constant", 5, 3, None, None),
        ("onecycle", 20, 3, ANNEALS, 17),
        ("onecycle", 20, 17, None, None),
        ("onecycle", 20, 18, None, None),
        ("onecycle", 20, 19, ACTS, 18),
        ("cosine_warmup", 50, 5, ANNEALS, 40),
        ("linear_warmup", 50, 5, ANNEALS, 45),
    ],
)
def test_early_stopping_acts_and_only_once_the_rate_has_annealed(
    schedule, epochs, patience, code, fixed
):
    change = {
        "early_stopping": {"patience": patience},
        "schedule": {"kind": schedule},
        "training": {"epochs": epochs},
    }
    plan = plan_of(change)
    assert codes(plan) == ([code] if code else [])
    for issue in plan.issues:
        assert issue.severity == "warning"
        assert [op.value for op in issue.fix] == [fixed]


def test_a_low_rate_that_still_rises_has_not_annealed():
    change = {
        "early_stopping": {"patience": 1},
        "schedule": {"kind": "onecycle", "warmup_fraction": 0.9},
        "training": {"epochs": 50},
    }
    (issue,) = plan_of(change).issues
    assert issue.code == ANNEALS
    assert "at step 52 of 1,300" in issue.message


def test_early_stopping_of_what_is_never_evaluated_is_refused():
    never = {"early_stopping": {}, "evaluation": {"every_epochs": None}}
    (issue,) = plan_of(never).issues
    assert (issue.code, issue.severity) == (ACTS, "error")
    assert [op.path for op in issue.fix] == ["/early_stopping"], "5 epochs are too few for it"


def test_a_large_batch_at_a_low_rate_needs_no_warm_up():
    def found(lr: float, batch: int = 1024, **optimizer: Any) -> bool:
        change = {"optimizer": {"lr": lr, **optimizer}, "schedule": {"kind": "constant"}}
        return WARMUP in codes(plan_of({**change, "training": {**LARGE, "batch_size": batch}}))

    assert found(1e-3)
    assert not found(9.9e-4)
    assert not found(1e-3, batch=1023)
    assert found(0.05, kind="sgd")
    assert not found(0.049, kind="sgd")


def test_a_batch_of_all_samples_for_three_epochs_is_told_its_three_steps():
    """The forecast that it ends with is the mean of the target."""
    everything = {"training": {"batch_size": 16_000, "epochs": 3}}
    plan = plan_of(everything, world(weather(samples=20_000)))
    (issue,) = [one for one in plan.issues if one.code == "learning.few_steps"]
    assert "The whole run has 3 steps, 3 epochs of 16,000 samples" in issue.message
    assert [(op.path, op.value) for op in issue.fix] == [("/training/batch_size", 512)]


@pytest.mark.parametrize(
    ("training", "fix"),
    [
        ({"batch_size": 1600, "epochs": 1}, {"/training/batch_size": 64}),
        ({"batch_size": 128, "gradient_accumulation_steps": 26, "epochs": 5},
         {"/training/batch_size": 256, "/training/gradient_accumulation_steps": 1}),
        ({"batch_size": 8, "gradient_accumulation_steps": 20, "epochs": 1},
         {"/training/batch_size": 64, "/training/gradient_accumulation_steps": 1}),
        ({"batch_size": 16, "epochs": 1, "max_steps": 3}, None),
        ({"batch_size": 1600, "max_steps": 3}, None),
        ({"batch_size": 128, "epochs": 1}, None),
    ],
)  # fmt: skip
def test_a_run_of_a_few_large_steps_gets_more_of_them(training, fix):
    plan = plan_of({"training": training})
    found = [one for one in plan.issues if one.code == "learning.few_steps"]
    assert [{op.path: op.value for op in one.fix} for one in found] == ([fix] if fix else [])


def test_so_small_a_part_takes_more_epochs():
    plan = plan_of({"training": {"batch_size": 160}}, world(weather(samples=200)))
    (issue,) = [one for one in plan.issues if one.code == "learning.few_steps"]
    assert [(op.path, op.value) for op in issue.fix] == [("/training/epochs", 50)]


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [
        ({"lr": 1e-9}, True),
        ({"lr": 1e-5}, False),
        ({"kind": "sgd", "lr": 1e-5}, True),
        ({"kind": "sgd", "lr": 4.9e-5}, True),
        ({"kind": "sgd", "lr": 5e-5}, False),
    ],
)
def test_a_rate_that_moves_no_weight_is_told(optimizer, found):
    plan = plan_of({"optimizer": optimizer})
    assert codes(plan) == ["learning.rate_too_low"] * found
    for issue in plan.issues:
        assert "all 130 steps together move a weight by about" in issue.message


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        ({"kind": "linear_warmup", "warmup_fraction": 1.0}, True),
        ({"kind": "onecycle", "warmup_steps": 500}, True),
        ({"kind": "cosine_warmup", "warmup_fraction": 0.9}, False),
    ],
)
def test_a_warm_up_as_long_as_the_run_is_told(schedule, found):
    plan = plan_of({"schedule": schedule})
    assert codes(plan) == ["learning.warmup_never_ends"] * found
    trial = {"schedule": schedule, "training": {"max_steps": 10}}
    assert codes(plan_of(trial)) == []


@pytest.mark.parametrize("block", ["checkpoint", "early_stopping"])
@pytest.mark.parametrize(
    ("monitor", "fixed"),
    [
        ("val_rmse", {"/evaluation": {"metrics": ["mae", "rmse"]}}),
        ("val_maee", {"monitor": "val_mae"}),
        ("val_rsme", {"monitor": "val_rmse", "/evaluation": {"metrics": ["mae", "rmse"]}}),
        ("val_accuracy", {"monitor": "val_loss"}),
    ],
)
def test_a_monitor_that_nobody_computes_is_computed_if_it_can_be(block, monitor, fixed):
    change = {block: {"monitor": monitor}, "training": {"epochs": 35}}
    issues = plan_of({**change, "schedule": {"kind": "constant"}}).issues
    (issue,) = [one for one in issues if one.code == "correctness.unknown_monitor"]
    expected = {path if path[0] == "/" else f"/{block}/{path}": v for path, v in fixed.items()}
    assert {op.path: op.value for op in issue.fix} == expected


def test_a_metric_with_a_nominal_value_is_not_watched():
    quantile = {"recipe": {"loss": "quantile"}, "checkpoint": {"monitor": "val_coverage"}}
    (issue,) = plan_of(quantile).errors
    assert issue.code == "correctness.unknown_monitor"
    assert "neither a lower nor a higher one is better" in issue.message
    assert [(op.path, op.value) for op in issue.fix] == [("/checkpoint/monitor", "val_loss")]


def test_a_quantile_spec_measures_coverage_and_takes_no_levels_without_the_loss():
    spec = plan_of({"recipe": {"loss": "quantile"}}).require_ok()
    assert spec["evaluation"]["metrics"] == ["mae", "pinball", "coverage"]
    assert spec["checkpoint"]["monitor"] == "val_loss"
    (issue,) = plan_of({"recipe": {"quantiles": [0.1, 0.9]}}).errors
    assert (issue.code, issue.loc) == ("correctness.recipe_does_not_fit", ["recipe", "quantiles"])
    assert [(op.path, op.value) for op in issue.fix] == [("/recipe/quantiles", None)]
    (issue,) = plan_of({"recipe": {"loss": "quantile", "quantiles": [0.9, 0.1]}}).errors
    assert [op.value for op in issue.fix] == [[0.1, 0.9]]


def test_what_is_better_follows_from_the_metric():
    plan = plan_of({"early_stopping": {"monitor": "val_mae", "patience": 3}})
    spec = plan.require_ok()
    assert (spec["early_stopping"]["mode"], spec["checkpoint"]["mode"]) == ("min", "min")
    (issue,) = plan_of({"checkpoint": {"mode": "max"}}).issues
    assert (issue.code, issue.severity) == ("learning.monitor_upside_down", "error")
    assert issue.message == "checkpoint.mode is max, and a lower val_loss is better."


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


@pytest.mark.parametrize(("batch", "samples", "training"), [(1000, 1125, 900), (3217, 4020, 3216)])
def test_a_batch_above_the_part_becomes_the_whole_part(batch, samples, training):
    """It was that already: nothing of the training changes."""
    facts = world(weather(samples=samples))
    plan = plan_of({"training": {"batch_size": batch, "epochs": 50}}, facts)
    issue = next(i for i in plan.issues if i.code == "learning.batch_above_samples")
    assert [(op.path, op.value) for op in issue.fix] == [("/training/batch_size", training)]
    short = plan_of({"training": {"batch_size": batch, "epochs": 3}}, facts)
    assert "learning.few_steps" not in codes(short)
    told = next(i for i in short.issues if i.code == "learning.batch_above_samples")
    assert f"A batch of {batch:,} is larger than the training part of {training:,}" in told.message
    assert "The whole run would have 3 steps, too few" in told.why
    (smaller,) = told.fix
    assert smaller.value <= training / 50 * 3


def test_a_batch_above_a_small_part_gets_more_epochs_too():
    small = world(weather(samples=200))
    (issue,) = plan_of({"training": {"batch_size": 1000, "epochs": 1}}, small).issues
    fix = {op.path: op.value for op in issue.fix}
    assert fix == {"/training/batch_size": 160, "/training/epochs": 50}


def test_one_epoch_is_one():
    change = {"training": {"epochs": 1, "batch_size": 1024}}
    (issue,) = (one for one in plan_of(change).issues if one.code == "learning.few_steps")
    assert ", 1 epoch of 3,216 samples" in issue.message


def test_a_rate_that_is_offered_is_one_that_a_spec_can_say():
    """Linear scaling would ask for 128 with a step of so many samples."""
    huge = {"batch_size": 65_536, "gradient_accumulation_steps": 5}
    plan = plan_of({"optimizer": {"kind": "sgd", "lr": 1e-5}, "training": huge})
    (issue,) = [each for each in plan.issues if each.code == "learning.rate_too_low"]
    assert [op.value for op in issue.fix if op.path == "/optimizer/lr"] == [10.0]


def test_a_plugin_that_says_nothing_of_scales_is_told_how(monkeypatch):
    asked = {"data": {"standardize": {"targets": False}}}
    facts = world(with_field("targets", std=40.0))
    (own,) = plan_of(asked, facts).issues
    monkeypatch.setitem(INSTALLED.packages, "sequence", "walks-recipe")
    monkeypatch.setattr(Sequence, "has_scale", Recipe.has_scale)
    (of_a_plugin,) = plan_of(asked, facts).issues
    assert "has_scale" not in own.why
    assert "`has_scale: ClassVar = ('inputs',)` in the class Sequence" in of_a_plugin.why
    monkeypatch.setattr(Sequence, "has_scale", ("targets",))
    (said,) = plan_of(asked, facts).issues
    assert said.why == own.why


def test_a_rate_for_new_weights_is_told_of_a_run_that_begins_with_trained_ones():
    change = {"init_from": {"run": 7, "prefix": "head."}, "optimizer": {"lr": 2e-3}}
    issues = plan_of(change, world(source=PRETRAINED)).issues
    (issue,) = [one for one in issues if one.code == "learning.pretrained_rate"]
    assert issue.message == (
        "The run begins with trained weights (init_from), and its learning rate of 0.002 is one "
        "for new weights, which usually take 0.001."
    )
