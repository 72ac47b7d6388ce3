"""Every rule: what it finds, what it just misses, and that its fix mends that and nothing else."""

import re

import jsonpatch
import pytest

from app.guard.facts import Facts
from app.guard.plan import RunPlan, make_plan
from app.guard.registry import RULES
from tests.guard.cases import CASES
from tests.guard.changes import PINNED, with_host
from tests.guard.unnamed import unnamed_changes
from tests.guard.world import CATALOG, RTX, brought, codes, plan_of, world

BY_CODE = {rule.code: rule for rule in RULES}
NO_FIX = {  # what no change of the spec would mend
    "correctness.array_mismatch",
    "correctness.array_shape",
    "correctness.dataset_changed",
    "correctness.dataset_invalid",
    "correctness.dataset_not_ready",
    "correctness.init_from_missing",
    "learning.constant_target",
    "learning.init_from_other_shape",
    "correctness.nonfinite_values",
    "correctness.packed_array",
    "correctness.ragged_array",
    "correctness.target_is_input",
    "memory.expanded_windows",
    "memory.host_over_budget",
    "speed.mostly_filling",
    "speed.no_worker",
}


def fixed(plan: RunPlan, code: str, facts: Facts) -> RunPlan:
    """The plan of the request after the fix of the first issue with this code."""
    fix = next(issue.fix for issue in plan.issues if issue.code == code)
    patched = jsonpatch.apply_patch(plan.request, [op.model_dump(mode="json") for op in fix])
    return make_plan(patched, facts, CATALOG)


def test_every_rule_has_a_case_and_a_code_of_its_own():
    assert sorted(BY_CODE) == sorted(CASES)
    assert len(BY_CODE) == len(RULES)
    for rule in RULES:
        assert re.fullmatch(r"(speed|memory|correctness|learning)\.[a-z0-9_]+", rule.code)
        assert rule.summary.endswith(".")
        assert rule.stands_on.endswith(".")
    assert not [rule.code for rule in RULES if rule.topic == "speed" and not rule.overridable]
    assert not [rule.code for rule in RULES if rule.topic == "correctness" and rule.overridable]


def test_a_good_request_has_no_issue_and_no_rule_lacks_a_fact():
    plan = plan_of()
    assert plan.issues == []
    assert plan.unchecked == []


@pytest.mark.parametrize("code", CASES)
def test_the_rule_finds_it_and_its_fix_removes_it_and_changes_nothing_else(code):
    case, rule = CASES[code], BY_CODE[code]
    plan = plan_of(case.found, case.facts)
    issue = next(issue for issue in plan.issues if issue.code == code)
    assert (issue.severity, issue.overridable) == (rule.severity, rule.overridable)
    assert issue.message.endswith((".", "?"))
    assert issue.why.endswith(".")
    assert bool(issue.fix) == (code not in NO_FIX)
    if issue.fix:
        after = fixed(plan, code, case.facts)
        assert after.spec is not None
        assert code not in codes(after)
        assert brought(issue, plan, after) == set()
        assert unnamed_changes(plan, after, issue.fix) == set()


@pytest.mark.parametrize("code", CASES)
def test_the_nearest_spec_is_let_through(code):
    case = CASES[code]
    assert code not in codes(plan_of(case.missed, case.missed_facts or case.facts))


@pytest.mark.parametrize("code", CASES)
def test_an_unknown_world_gives_no_finding_by_guess(code):
    """With no fact at all a rule says what it lacks, or judges by the spec alone."""
    plan = plan_of(CASES[code].found, Facts())
    found = {issue.code for issue in plan.issues}
    lacking = {entry.code for entry in plan.unchecked}
    assert not found & lacking
    assert all(entry.missing for entry in plan.unchecked)


@pytest.mark.parametrize(
    ("threads", "host", "found"),
    [
        (1, {"cores": 2, "slots": 3}, False),
        (2, {"cores": 4, "slots": 2}, False),
        (3, {"cores": 4, "slots": 2}, True),
        (2, {"cores": 2, "slots": 0}, False),
    ],
)
def test_threads_leave_the_cores_of_the_runs_beside_to_them(threads, host, found):
    """One thread there always is, and `auto` is the largest number that is let through."""
    plan = plan_of({"runtime": {"threads": threads}}, with_host(**host))
    assert ("speed.threads_above_cores" in codes(plan)) == found


def test_the_steps_of_a_gpu_do_not_wait_for_threads():
    assert "speed.threads_above_cores" not in codes(
        plan_of({"runtime": {"threads": 3}, **PINNED}, world(devices=(RTX,)))
    )
