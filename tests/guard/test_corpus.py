"""Over a generated corpus: every rule is hit, every fix works, and all of them converge."""

from collections import Counter
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings

from app.cli.mending import mend
from app.guard.facts import Facts
from app.guard.plan import Plan, judged, make_plan
from app.guard.registry import RULES
from app.guard.resolve import resolve
from tests.guard.cases import CASES
from tests.guard.corpus import specs_of
from tests.guard.unnamed import unnamed_changes
from tests.guard.world import CATALOG

LEAST_HITS = 0.02
STAND_ALONE = {
    "correctness.dataset_not_found", "correctness.dataset_invalid",
    "correctness.dataset_not_ready", "correctness.no_training_steps",
    "learning.accumulation_beyond_epoch", "memory.chunk_over_share", "speed.no_worker",
}  # fmt: skip


def identities(plan: Plan) -> set[tuple[str, tuple[str | int, ...]]]:
    return {(issue.code, tuple(issue.loc)) for issue in plan.issues}


def patched(request: dict[str, Any], operations: list[Any]) -> dict[str, Any]:
    documents = [op.model_dump(mode="json") for op in operations]
    result: dict[str, Any] = jsonpatch.apply_patch(request, documents)
    return result


def check_fixes(plan: Plan, facts: Facts) -> None:
    """Each fix, applied, removes its issue, adds none, and changes only what it names."""
    for issue in plan.issues:
        if issue.fix:
            changed = patched(plan.request, issue.fix)
            after = judged(changed, resolve(changed, CATALOG, facts), facts)
            assert after.spec is not None
            assert (issue.code, tuple(issue.loc)) not in identities(after)
            assert identities(after) <= identities(plan)
            assert unnamed_changes(plan, after, issue.fix) == set()


def check_convergence(plan: Plan, facts: Facts) -> None:
    """All fixes together, as `stoker plan --fix --warnings` applies them, leave none."""
    mended = mend(
        plan.request, lambda request: asdict_of(make_plan(request, facts, CATALOG)), warnings=True
    )
    assert not [i["code"] for i in mended.plan["issues"] if i["fix"] and not i["accepted"]]


def asdict_of(plan: Plan) -> dict[str, Any]:
    return {"issues": [issue.model_dump(mode="json") for issue in plan.issues]}


def examples_of(code: str) -> int:
    """More of those that stand alone: what others need to judge is missing or turned around."""
    return 9 if code in STAND_ALONE else 5


@pytest.mark.slow
def test_every_rule_is_hit_and_every_fix_removes_its_issue_and_adds_none():
    plans: list[Plan] = []
    for code in CASES:

        @settings(
            max_examples=examples_of(code), derandomize=True, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(specs_of(code))
        def check(example):
            request, facts = example
            plan = make_plan(request, facts, CATALOG)
            assert plan.spec is not None
            plans.append(plan)
            check_fixes(plan, facts)
            check_convergence(plan, facts)

        check()
    hits = Counter(code for plan in plans for code in {issue.code for issue in plan.issues})
    least = LEAST_HITS * len(plans)
    assert {rule.code: hits[rule.code] for rule in RULES if hits[rule.code] < least} == {}
