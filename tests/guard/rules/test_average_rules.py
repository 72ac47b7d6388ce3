"""Rules about averages and plateaus: something enters, something is watched, and in time."""

from typing import Any

import pytest

from tests.guard.world import codes, parent_of, plan_of, world

JUMPS = "learning.rate_jumps_at_restart"
TRAINING = {"batch_size": 128, "epochs": 5}
FIRST, NOTHING = "learning.average_of_first_weights", "learning.averages_nothing"


def test_an_average_that_is_mostly_its_first_weights_is_told_with_the_share():
    average = {"kind": "ema", "decay": 0.9999, "ramp": False}
    slow = {"averaging": average, "training": {"epochs": 77}}
    (issue,) = plan_of(slow).issues  # 2,002 steps
    assert (issue.code, issue.severity) == (FIRST, "warning")
    assert "82% of the average is the first weights after all 2,002 steps" in issue.message
    assert "about 10,000 steps" in issue.why
    assert [(op.path, op.value) for op in issue.fix] == [("/averaging/ramp", True)]
    for training in (slow["training"], {"max_steps": 3}):
        ramped = {"averaging": {**average, "ramp": True}, "training": training}
        assert FIRST not in codes(plan_of(ramped))


@pytest.mark.parametrize(
    ("training", "start", "severity", "fix"),
    [
        ({"epochs": 8}, 9, "error", 6),
        ({"epochs": 8}, 8, "warning", 6),
        ({"epochs": 8}, 7, None, None),
        ({"epochs": 8, "max_steps": 103}, 3, "warning", 2),  # the fourth has no end
        ({"epochs": 8, "max_steps": 104}, 3, None, None),
        ({"epochs": 1}, 1, "warning", {"kind": "none"}),
    ],
)
def test_swa_has_epochs_to_average(training, start, severity, fix):
    change = {"averaging": {"kind": "swa", "start_epoch": start, "lr": 5e-4}, "training": training}
    found = [issue for issue in plan_of(change).issues if issue.code == NOTHING]
    assert [issue.severity for issue in found] == ([severity] if severity else [])
    assert [op.value for issue in found for op in issue.fix] == ([fix] if fix else [])


@pytest.mark.parametrize(
    ("change", "severity", "told", "fix"),
    [
        ({"evaluation": {"every_epochs": None}}, "error", "nothing is evaluated before the end",
         {"/evaluation/every_epochs": 1}),
        ({"evaluation": {"every_epochs": None}, "training": {"epochs": 3}}, "error",
         "nothing is evaluated", {"/evaluation/every_epochs": 1, "/schedule/patience": 0}),
        ({"evaluation": {"every_epochs": None}, "training": {"epochs": 2}}, "error",
         "nothing is evaluated", {"/schedule": {"kind": "cosine_warmup"}}),
        ({"evaluation": {"every_epochs": None, "every_steps": 1000}}, "warning",
         "it needs 4 evaluations before the end of the run, and there are none.",
         {"/evaluation/every_epochs": 1}),
        ({"training": {"epochs": 4}}, "warning", "before the end of the run, and there are 3.",
         {"/schedule/patience": 1}),
        ({"training": {"epochs": 2}}, "warning", "before the end of the run, and there is 1.",
         {"/schedule": {"kind": "cosine_warmup"}}),
        ({"averaging": {"kind": "swa", "start_epoch": 4, "lr": 1e-4}}, "warning",
         "before SWA sets the rate in epoch 4, and there are 2.", {"/schedule/patience": 0}),
        ({}, None, "", {}),
    ],
)  # fmt: skip
def test_a_plateau_has_evaluations_to_act_at(change, severity, told, fix):
    """A patience of 2: at the fourth of five evaluations the rate falls."""
    plan = plan_of({"schedule": {"kind": "plateau", "patience": 2}, **change})
    code = "correctness.plateau_never_acts"
    found = [issue for issue in plan.issues if issue.code == code]
    assert [issue.severity for issue in found] == ([severity] if severity else [])
    for issue in found:
        assert told in issue.message
    ops = {op.path: op.value for issue in found for op in issue.fix}
    assert ops in (fix, _within_blocks(fix))


def _within_blocks(fix: dict[str, Any]) -> dict[str, Any]:
    """As a patch opens blocks that the request does not have."""
    parts = {path.rpartition("/"): value for path, value in fix.items()}
    return {block: {name: value} for (block, _, name), value in parts.items()}


def test_a_plateaus_metric_is_watched_as_others_are():
    plateau = {"kind": "plateau", "monitor": "val_mae", "mode": "max", "patience": 1}
    (issue,) = plan_of({"schedule": plateau}).issues
    assert (issue.code, issue.loc) == ("learning.monitor_upside_down", ["schedule", "mode"])
    assert "after 2 evaluations that each got better" in issue.why
    unknown = {"schedule": {"kind": "plateau", "monitor": "val_maee", "patience": 1}}
    (issue,) = plan_of(unknown).issues
    assert (issue.code, issue.loc) == ("correctness.unknown_monitor", ["schedule", "monitor"])
    spec = plan_of({"schedule": {"kind": "plateau", "patience": 1}}).require_ok()
    assert spec["schedule"]["mode"] == "min"


@pytest.mark.parametrize(("start", "jumps"), [(3, False), (5, True)])
def test_while_swa_has_the_rate_a_longer_run_does_not_make_it_jump(start, jumps):
    averaging = {"kind": "swa", "start_epoch": start, "lr": 5e-4}
    before = {"training": TRAINING, "averaging": averaging}
    facts = world(parent=parent_of(before, 100))  # in epoch 4 of 5
    plan = plan_of({**before, "training": {**TRAINING, "epochs": 10}}, facts)
    assert (JUMPS in codes(plan)) == jumps


def test_early_stopping_sees_what_a_lower_rate_brings():
    change = {
        "schedule": {"kind": "plateau", "patience": 5},
        "early_stopping": {"patience": 6},
        "training": {"epochs": 10},
    }
    (issue,) = plan_of(change).issues
    assert issue.code == "learning.stops_before_plateau"
    assert [op.value for op in issue.fix] == [8], "no more than can run out in ten epochs"
    other = {**change, "early_stopping": {"patience": 6, "monitor": "val_mae"}}
    assert codes(plan_of(other)) == []
