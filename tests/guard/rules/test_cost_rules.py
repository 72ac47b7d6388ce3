"""What a run pays beside its steps, by how long it is: evaluations, saves, its limit."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import Facts
from tests.guard.world import GIB, HISTORY, RTX, as_measured, codes, plan_of, point, world

SHARE, SAVES = "speed.evaluation_share", "speed.frequent_checkpoints"
LOST = "learning.rare_checkpoints"
TOO_SHORT = "learning.ends_before_its_epochs"
UNKNOWN = world(history=None)


def past(**changes: Any) -> Facts:
    """The world in which like runs had other figures."""
    return world(history=replace(HISTORY, **changes))


def long(**evaluation: Any) -> dict[str, Any]:
    """26 steps an epoch, for 100 of them; 804 samples are looked at."""
    return {"evaluation": evaluation, "training": {"epochs": 100, "batch_size": 128}}


def test_the_timetable_that_looks_at_the_same_steps_is_judged_alike():
    """24 steps an epoch: every sixth is four evaluations an epoch, with that at its end or not."""
    training = {"training": {"epochs": 100, "batch_size": 134}}
    for every_epochs in (None, 1, 2, 100):
        four = {"evaluation": {"every_steps": 6, "every_epochs": every_epochs}}
        assert codes(plan_of({**training, **four}, UNKNOWN)) == []
        six = {"evaluation": {"every_steps": 4, "every_epochs": every_epochs}}
        assert codes(plan_of({**training, **six}, UNKNOWN)) == [SHARE]


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_smoke_run_whose_only_look_is_the_last_one_passes(steps):
    assert codes(plan_of({"training": {"max_steps": steps, "batch_size": 128}}, UNKNOWN)) == []


def test_a_short_run_may_look_often_where_its_pace_is_known():
    often = {"evaluation": {"every_steps": 5}, "training": {"batch_size": 128}}
    assert codes(plan_of(often, UNKNOWN)) == [SHARE]
    assert codes(plan_of(often)) == []


def test_the_measured_time_of_an_evaluation_goes_before_the_guess():
    often = long(every_steps=5)
    assert codes(plan_of(often)) == [SHARE]
    assert codes(plan_of(often, past(evaluation_seconds=1e-5))) == []
    slow = past(evaluation_seconds=0.01)
    assert codes(plan_of(long(), UNKNOWN)) == []
    assert codes(plan_of(long(), slow)) == [SHARE]


@pytest.mark.parametrize("seconds", [0.5, 5.0, 11.0, 15.0, 40.0])
@pytest.mark.parametrize("every", [1.0, 300.0, 599.0, 601.0, 2000.0, None])
def test_the_rules_of_frequent_and_of_rare_checkpoints_agree(seconds, every):
    """Some interval suits both, and the fix of either gives one."""
    change = {"checkpoint": {"every_seconds": every}, "training": {"epochs": 5000}}
    plan = plan_of(change, past(checkpoint_seconds=seconds, evaluation_seconds=0.0))
    for issue in plan.issues:
        assert issue.fix, issue.code
    at_most = {"checkpoint": {"every_seconds": 600.0}, "evaluation": {"every_epochs": 500}}
    good = plan_of({**change, **at_most}, past(checkpoint_seconds=seconds))
    assert not {SAVES, LOST} & set(codes(good))


def test_checkpoints_are_no_closer_together_than_one_is_written():
    change = {"checkpoint": {"every_seconds": 2.0, "keep_best": 0}, "training": {"epochs": 5000}}
    slow_disk = past(checkpoint_seconds=0.01, written_seconds=8.0)
    (issue,) = plan_of(change, slow_disk).issues
    assert issue.code == SAVES
    assert issue.message == "A checkpoint every 2.0 seconds takes 100% of the time."
    assert [(op.path, op.value) for op in issue.fix] == [("/checkpoint/every_seconds", 8)]
    assert SAVES not in codes(plan_of(change, past(checkpoint_seconds=0.01)))


def test_a_slow_checkpoint_is_asked_for_every_ten_minutes_and_no_later():
    change = {"checkpoint": {"keep_best": 0}, "training": {"epochs": 5000}}
    (issue,) = plan_of(change, past(checkpoint_seconds=15.0)).issues
    assert issue.code == SAVES
    assert [(op.path, op.value) for op in issue.fix] == [("/checkpoint/every_seconds", 600)]


def test_a_run_of_seconds_needs_no_checkpoint_on_the_way():
    never = {"checkpoint": {"every_seconds": None}, "training": {"max_steps": 10}}
    assert codes(plan_of(never)) == []
    assert codes(plan_of(never, UNKNOWN)) == [LOST]
    late = {"checkpoint": {"every_seconds": 900.0}}
    assert codes(plan_of(late)) == []
    ended = {"checkpoint": {"every_seconds": None}, "policy": {"max_duration_seconds": 500.0}}
    assert codes(plan_of(ended, UNKNOWN)) == []
    assert codes(plan_of({**never, "training": {"epochs": 500}})) == [LOST]


def test_the_best_may_come_as_often_as_they_like_and_what_is_asked_for_may_not():
    """An epoch takes 1.3 seconds here, and so do two saves."""
    slow, epochs = past(checkpoint_seconds=0.65), {"training": {"epochs": 10_000}}
    evaluated = {**epochs, "evaluation": {"every_epochs": 1}}
    assert codes(plan_of(evaluated, slow)) == []
    assert codes(plan_of({**evaluated, "checkpoint": {"every_steps": 26}}, slow)) == [SAVES]


def test_the_limit_of_a_run_is_compared_with_all_that_its_clock_counts():
    """6.5 seconds of steps, 4 evaluations of 804 samples before the end, and as many saves."""
    slow = past(evaluation_seconds=0.01)
    assert codes(plan_of({"policy": {"max_duration_seconds": 10.0}}, slow)) == [TOO_SHORT]
    spent = 6.5 + 4 * 804 * 0.01 + 4 * 0.05
    below, above = (
        plan_of({"policy": {"max_duration_seconds": spent + more}}, slow) for more in (-0.1, 0.1)
    )
    assert (codes(below), codes(above)) == ([TOO_SHORT], [])
    (operation,) = below.issues[0].fix
    assert spent < operation.value < 1.3 * spent


def test_evaluation_is_refused_only_where_it_was_measured_and_told_long_before():
    """By hundreds of evaluations of 804 samples, beside 130 seconds of steps."""
    asked = long(every_steps=2)

    def found(**changes: Any) -> list[str]:
        plan = plan_of(asked, past(**changes))
        return [issue.severity for issue in plan.issues if issue.code == SHARE]

    assert found(evaluation_seconds=None) == ["warning"]
    shares = {0.00003: [], 0.00007: ["warning"], 0.00015: ["warning"], 0.0006: ["error"]}
    assert {each: found(evaluation_seconds=each) for each in shares} == shares
    # Half of the time, but of a short run.
    assert found(evaluation_seconds=0.0003, iterations_per_second=100.0) == ["warning"]
    plan = plan_of(asked, UNKNOWN)
    assert [issue.severity for issue in plan.issues] == ["warning"]


@pytest.mark.parametrize(
    ("least", "median", "severity"),
    [(0.51, 0.51, "error"), (0.49, 0.49, "warning"), (0.49, 0.51, "warning"),
     (0.51, 0.7, "error"), (0.2, 0.51, "warning")],
)  # fmt: skip
def test_evaluation_is_refused_where_each_like_run_measured_more_than_half(least, median, severity):
    """So that a timing about the half does not refuse what was accepted an hour before."""

    def steps(share: float) -> float:
        """For a sample, by 1,299 evaluations of 804 samples beside 2,600 steps."""
        return share / (1 - share) * 2600 / (1299 * 804)

    timed = past(
        iterations_per_second=0.5,
        evaluation_seconds=steps(median) / 0.5,
        least_evaluation_steps=steps(least),
    )
    (issue,) = [one for one in plan_of(long(every_steps=2), timed).issues if one.code == SHARE]
    assert issue.severity == severity
    assert issue.message.startswith(f"About {median:.0%} of the time")


def test_what_the_history_refuses_is_not_refused_where_nobody_looks_for_one():
    """A claim has no history: a run that was accepted must not fail there."""
    change, slow = long(every_steps=2), past(evaluation_seconds=0.01)
    assert plan_of(change, slow).errors
    assert not plan_of(change, replace(slow, history=None, history_looked_for=False)).issues


ACCUMULATES = "speed.needless_accumulation"


def test_batches_are_accumulated_where_they_do_not_fit_as_one():
    asked = {
        "recipe": {"hidden_size": 256, "patch": 1},
        "training": {"batch_size": 256, "gradient_accumulation_steps": 8, "epochs": 50},
    }
    small = replace(RTX, free_memory_bytes=3 * GIB)
    for card, found in ((RTX, True), (small, False)):
        facts = as_measured(asked, world(devices=(card,)), point(256, 900))
        assert (ACCUMULATES in codes(plan_of(asked, facts))) == found
    # What nobody has measured is not said to fit.
    assert ACCUMULATES not in codes(plan_of(asked, world(devices=(RTX,))))
    assert ACCUMULATES not in codes(plan_of(asked))


def test_an_evaluation_of_so_many_batches_looks_at_as_many_samples_after_the_fix():
    asked = {
        "training": {"batch_size": 32, "gradient_accumulation_steps": 4},
        "evaluation": {"max_batches": 10},
    }
    plan = plan_of(asked, as_measured(asked, world(devices=(RTX,)), point(32, 300)))
    (issue,) = [one for one in plan.issues if one.code == ACCUMULATES]
    assert {op.path: op.value for op in issue.fix}["/evaluation/batch_size"] == 32


@pytest.mark.parametrize(("parts", "said"), [(2, "half"), (3, "a third"), (4, "1/4")])
def test_a_part_of_the_operations_is_said_as_people_say_it(parts, said):
    training = {"batch_size": 32, "gradient_accumulation_steps": parts}
    asked = {"training": training}
    plan = plan_of(asked, as_measured(asked, world(devices=(RTX,)), point(32, 300)))
    (issue,) = (one for one in plan.issues if one.code == "speed.needless_accumulation")
    assert issue.message.startswith(f"A step is accumulated from {parts} batches")
    assert issue.why.endswith(f"launch {said} of the operations.")
