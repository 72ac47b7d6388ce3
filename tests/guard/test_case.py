"""A case computes each thing once, and a plan of a request nothing twice."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.guard import case as guard_case
from app.guard import needs, plan, resolve
from app.guard.case import Case, Derived
from app.guard.facts import Facts, ParentFacts, UnknownFact
from app.guard.plan import make_plan, settle
from app.planning.requirements import Requirements
from app.spec.layers import overlay
from app.spec.parse import parse_spec
from tests.guard.cases import CASES
from tests.guard.changes import Change
from tests.guard.world import CATALOG, CPU, GIB, REQUEST, TURING, plan_of, world

# What a plan is made of, by the modules that call it.
COUNTED = {
    "parse_spec": (resolve,),
    "resolve": (plan,),
    "Case": (guard_case, needs, plan),
    "memory_plan": (guard_case, needs),
    "need_of": (guard_case,),
    "gap_needed": (guard_case,),
    "requirements_of": (plan,),
    "judge": (plan,),
    "estimate_of": (plan,),
}
# Nothing is left open here.
SETTLED: Change = {
    "data": {
        "split": {"method": "chronological", "gap": 0},
        "loader": {"shuffle": "block", "shuffle_group": 16_384, "shuffle_block": 3},
    }
}
# What the run needs: of a GPU in chunks and with the data there, and of a CPU; and what it would
# take on the device that it gets.
MEMORY_PLANS = 2 + 1 + 1
WITH_A_FIX: Change = {"schedule": {"kind": "cosine_warmup", "warmup_steps": 100_000}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of them is called from now on."""
    counter: Counter[str] = Counter()

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            counter[name] += 1
            return original(*args, **more)

        return counted

    for name, modules in COUNTED.items():
        for module in modules:
            monkeypatch.setattr(module, name, counting(name, getattr(module, name)))
    return counter


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, str]]:
    """How often each property of each case is computed; the cases are kept, so that no two have
    one identity.
    """
    counter: Counter[tuple[int, str]] = Counter()
    kept: list[Case] = []

    def counting(name: str, compute: Callable[[Case], Any]) -> Callable[[Case], Any]:
        def counted(case: Case) -> Any:
            kept.append(case)
            counter[id(case), name] += 1
            return compute(case)

        return counted

    for name, value in vars(Case).items():
        if isinstance(value, Derived):
            monkeypatch.setattr(value, "_compute", counting(name, value._compute))
    return counter


def case_of(facts: Facts) -> Case:
    resolved = settle(resolve.resolve(REQUEST, CATALOG, facts), facts)
    assert resolved.spec is not None
    return Case(resolved.spec, facts)


def test_what_is_derived_is_computed_when_it_is_first_asked_for(derived):
    case = case_of(world())
    derived.clear()
    assert case.memory is case.memory
    assert case.sizes == (3216, 804, 0)
    assert derived[id(case), "memory"] == derived[id(case), "sizes"] == 1
    assert derived[id(case), "history"] == 0


def test_a_fact_that_is_missing_is_missing_again_without_another_look(derived):
    case = case_of(world(devices=()))
    derived.clear()
    for _ in range(3):
        with pytest.raises(UnknownFact, match="the device that will run it"):
            _ = case.memory
    assert derived[id(case), "memory"] == derived[id(case), "device"] == 1
    with pytest.raises(UnknownFact, match="the device that will run it"):
        _ = case.precision  # which asks for the device, too
    assert derived[id(case), "device"] == 1


def test_the_same_change_gives_the_same_case():
    case = case_of(world())
    changed = case.with_values({"/training/batch_size": 8})
    assert changed is case.with_values({"/training/batch_size": 8})
    assert changed.spec.training.batch_size == 8
    assert changed is not case.with_values({"/training/batch_size": 16})
    assert case.with_values({}) is case


@pytest.mark.parametrize("code", CASES)
def test_no_property_of_a_case_is_computed_twice(code, derived):
    plan_of(CASES[code].found, CASES[code].facts)
    assert {name: count for (_, name), count in derived.items() if count > 1} == {}


@pytest.mark.parametrize(
    ("change", "cases"),
    [
        # One to fix what the request leaves open, by the data; the rules judge what is stored, as
        # whoever reads it later would, so they have a case of the settled spec. The order hangs on
        # the memory for data, which takes one more plan of it.
        ({}, {"Case": 2, "gap_needed": 2, "need_of": 2, "memory_plan": MEMORY_PLANS + 1}),
        # The first computes nothing where nothing is open.
        (SETTLED, {"Case": 2, "gap_needed": 1, "need_of": 1}),
    ],
    ids=["auto values", "none"],
)
def test_a_plan_computes_nothing_twice(change, cases, calls):
    assert plan_of(change).issues == []
    assert calls == Counter(
        {
            "parse_spec": 1,
            "resolve": 1,
            "requirements_of": 1,
            "judge": 1,
            "estimate_of": 1,
            "memory_plan": MEMORY_PLANS,
            **cases,
        }
    )


def test_a_fix_is_tried_by_one_more_plan(calls):
    once = plan_of()
    assert once.issues == []
    alone = Counter(calls)
    calls.clear()
    assert [bool(issue.fix) for issue in plan_of(WITH_A_FIX).issues] == [True]
    assert calls == Counter({name: 2 * count for name, count in alone.items()})


def test_a_request_that_was_resolved_and_settled_is_not_again(calls):
    """As the service does, which looks for like runs by what the request is settled to."""
    facts = world()
    resolved = settle(resolve.resolve(REQUEST, CATALOG, facts), facts)
    calls.clear()
    make_plan(REQUEST, facts, CATALOG, resolved=resolved)
    assert (calls["resolve"], calls["parse_spec"], calls["Case"]) == (0, 0, 1)


def test_only_where_a_device_is_too_small_the_rules_have_another_case():
    case = case_of(world(devices=(TURING, CPU)))
    assert needs.where_it_fits(case, Requirements(device_bytes=GIB, cpu_bytes=GIB)) is case
    without = needs.where_it_fits(case, Requirements(device_bytes=10 * GIB, cpu_bytes=GIB))
    assert without.facts.devices == (CPU,)
    assert needs.where_it_fits(case, Requirements(device_bytes=2**50, cpu_bytes=2**50)) is case


def test_a_parent_has_one_case_however_much_is_compared_with_it(calls):
    slow = CASES["speed.compilation_outlasts_steps"]
    asked = overlay(slow.found, {"runtime": {"threads": 3}})
    spec, _ = parse_spec(plan_of(asked, slow.facts).spec or {})
    assert spec is not None
    calls.clear()
    planned = plan_of(asked, replace(slow.facts, parent=ParentFacts(spec)))
    waived = {issue.code for issue in planned.issues if issue.waived_by == "parent"}
    assert waived == {"speed.compilation_outlasts_steps", "speed.threads_above_cores"}
    tried = calls["resolve"] - 1  # of the fixes
    assert calls["Case"] == 3 * (1 + tried)


def test_a_case_is_gone_with_its_plan():
    """None holds itself: a service that plans many has no garbage to look for."""
    case = case_of(world())
    assert case.read_in_trainer.memory.fits
    gone = weakref.ref(case)
    gc.disable()
    try:
        del case
        assert gone() is None
    finally:
        gc.enable()
