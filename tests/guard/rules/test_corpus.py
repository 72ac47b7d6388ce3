"""Over a generated corpus: every rule is hit, every fix works, and all of them converge."""

import math
from collections import Counter
from itertools import chain
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from app.cli.specs.fixing import mend
from app.guard.facts import Facts
from app.guard.plan import RunPlan, judged, make_plan, settle
from app.guard.registry import RULES
from app.guard.resolve import resolve
from tests.guard.cases import CASES
from tests.guard.corpus import Drawn, any_specs, specs_of
from tests.guard.unnamed import unnamed_changes
from tests.guard.world import CATALOG, brought, identities

# How often more specs are drawn for the rules that were hit too rarely.
ROUNDS = 6
# Fixes that may not be offered where another rule is in the way: the two cannot both be had.
CONFLICTS = {
    # Lanes are cut into whole batches, so a state is carried only where the last samples go.
    ("learning.drop_last_drops", "correctness.carried_state"),
    ("correctness.no_training_steps", "correctness.carried_state"),
    ("correctness.carried_state", "correctness.no_training_steps"),
    ("learning.parts_ignored", "learning.drop_last_drops"),
    ("learning.few_steps", "learning.drop_last_drops"),
    ("correctness.carried_state", "learning.sorted_blocks"),
    # The one array that is left need not be what the recipe reads.
    ("correctness.unknown_array", "correctness.array_shape"),
    # A patch that divides the window is smaller, and there are more of them to be held.
    ("correctness.recipe_does_not_fit", "memory.over_budget"),
    # How large a checkpoint is, is known only of a model that can be built.
    ("correctness.recipe_does_not_fit", "memory.checkpoints_fill_disk"),
    # With rate or optimizer of its parent a restart would go on with its state, at its end.
    ("learning.rate_beyond_batch", "correctness.nothing_left"),
    ("learning.adam_weight_decay", "correctness.nothing_left"),
    # Where memory is too small for the data, the chunk that was asked for may be too small as well.
    ("memory.resident_does_not_fit", "speed.chunk_below_batch"),
    # And beside a large model no chunk may fit at all.
    ("memory.resident_does_not_fit", "memory.over_budget"),
    # Sorted data has to be shuffled as a whole, which reads a file that streams row by row.
    ("speed.random_reads_of_chunks", "learning.sorted_blocks"),
    ("speed.network_full_shuffle", "learning.sorted_blocks"),
    ("learning.sorted_blocks", "speed.random_reads_of_chunks"),
    ("learning.sorted_blocks", "speed.network_full_shuffle"),
    # More steps by a batch in one piece, where memory was full of its pieces.
    ("learning.few_steps", "memory.host_over_budget"),
    # A field may cut a series, or hold out few samples: that is for whoever wrote it to mend.
    ("learning.parts_ignored", "correctness.leaking_split"),
    ("learning.parts_ignored", "learning.small_part"),
}


def patched(request: dict[str, Any], operations: list[Any]) -> dict[str, Any]:
    documents = [op.model_dump(mode="json") for op in operations]
    result: dict[str, Any] = jsonpatch.apply_patch(request, documents)
    return result


def check_fixes(plan: RunPlan, facts: Facts) -> None:
    """Each fix, applied, removes its issue, adds none that is as severe, and changes only what it
    names.
    """
    for issue in plan.issues:
        if issue.fix:
            changed = patched(plan.request, issue.fix)
            after = judged_with(changed, facts)
            assert after.spec is not None
            assert (issue.code, tuple(issue.loc)) not in identities(after.issues)
            assert brought(issue, plan, after) == set()
            assert unnamed_changes(plan, after, issue.fix) == set()


def check_kept(raw: RunPlan, plan: RunPlan, facts: Facts) -> None:
    """The plan offers each fix that a rule gives, but for the conflicts that are known."""
    for found, offered in zip(raw.issues, plan.issues, strict=True):
        assert (found.code, found.loc) == (offered.code, offered.loc)
        if found.fix and not offered.fix:
            after = judged_with(patched(raw.request, found.fix), facts)
            identity = (found.code, tuple(found.loc))
            in_the_way = {code for code, _ in brought(found, raw, after)}
            assert identity not in identities(after.issues), found
            assert {(found.code, code) for code in in_the_way} & CONFLICTS, (found, in_the_way)


def judged_with(request: dict[str, Any], facts: Facts) -> RunPlan:
    return judged(request, settle(resolve(request, CATALOG, facts), facts), facts)


def check_convergence(plan: RunPlan, facts: Facts) -> None:
    """All fixes together, as `stoker plan --fix --warnings` applies them, leave none."""
    mended = mend(
        plan.request, lambda request: asdict_of(make_plan(request, facts, CATALOG)), warnings=True
    )
    assert not [i["code"] for i in mended.plan["issues"] if i["fix"] and not i["accepted"]]


def asdict_of(plan: RunPlan) -> dict[str, Any]:
    return {"issues": [issue.model_dump(mode="json") for issue in plan.issues]}


def plans_of(specs: SearchStrategy[Drawn], count: int, checked: int = 0) -> list[RunPlan]:
    """So many plans, each checked but those that were before; a larger count draws more of them."""
    plans: list[RunPlan] = []

    @settings(
        max_examples=count, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    @given(specs)
    def check(example):
        request, facts = example
        plan = make_plan(request, facts, CATALOG)
        assert plan.spec is not None
        plans.append(plan)
        if len(plans) <= checked:
            return
        check_kept(judged_with(request, facts), plan, facts)
        check_fixes(plan, facts)
        check_convergence(plan, facts)

    check()
    return plans


def found_in(plans: list[RunPlan]) -> Counter[str]:
    """In how many of the plans each rule finds something."""
    return Counter(code for plan in plans for code in {issue.code for issue in plan.issues})


def drawn_for_rules(beside: list[RunPlan], each: int, least_share: float) -> list[RunPlan]:
    """Plans of specs that are drawn for one rule each, some more for rules that few others hit.

    `beside`: the rest of the corpus. What is drawn changes with the code, so no count is fixed.
    """
    plans = {code: plans_of(specs_of(code), each) for code in CASES}
    for _ in range(ROUNDS):
        corpus = [*beside, *chain.from_iterable(plans.values())]
        hits, least = found_in(corpus), math.ceil(least_share * len(corpus))
        for code in CASES:
            if hits[code] <= least:
                known = len(plans[code])
                plans[code] = plans_of(specs_of(code), known + least + 1 - hits[code], known)
    return [*chain.from_iterable(plans.values())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("for_none", "for_each", "least_share", "share"),
    [
        pytest.param(40, 1, 0.0, 0.2, id="small"),
        pytest.param(110, 3, 0.015, 0.3, id="large", marks=pytest.mark.minutes),
    ],
)
def test_every_rule_is_hit_and_every_fix_is_kept_mends_its_issue_and_adds_none_as_severe(
    for_none, for_each, least_share, share
):
    """`least_share`: of the specs, in which each rule must find something; `share`: of the rules,
    which must find something in the specs that are drawn for none.
    """
    by_chance = plans_of(any_specs(), for_none)
    corpus = by_chance + drawn_for_rules(by_chance, for_each, least_share)
    hits, least = found_in(corpus), max(1, least_share * len(corpus))
    assert {rule.code: hits[rule.code] for rule in RULES if hits[rule.code] < least} == {}
    codes = {rule.code for rule in RULES}
    assert len(found_in(by_chance).keys() & codes) >= share * len(codes)
