"""The one way from a request to a run: layers, schema, rules, and what is fixed at submission."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from app.errors import SpecRejected
from app.guard.case import Case
from app.guard.estimate import estimate_of
from app.guard.facts import Facts, UnknownFact
from app.guard.gap import leaves_enough
from app.guard.inheritance import OF_RECIPE, PARENT
from app.guard.judge import Strictness, UncheckedRules, judge, judge_names
from app.guard.needs import device_wanted, requirements_of, where_it_fits
from app.guard.patching import apply_json_patch, with_values
from app.guard.presets.catalog import Catalog
from app.guard.resolve import Resolved, resolve, with_preset_kept
from app.planning.arithmetic import gap_of
from app.planning.requirements import NOTHING_KNOWN, Requirements
from app.spec.data import ChronologicalSplit, ChunkedLoader, Data
from app.spec.issue import MORE, Issue
from app.spec.layers import Document, leaves
from app.spec.recipe import Array, Recipe, Roles, value_at
from app.spec.run import RunSpec

# A fix that may not bring another issue takes that one's fix along, and so on so many times.
MOST_FIXES_TOGETHER = 4
# Fields whose default follows from the recipe, and what of these a monitor implies.
MODES = tuple(one.replace("/monitor", "/mode") for one in OF_RECIPE if one.endswith("/monitor"))
GIVEN_BY_RECIPE = (*OF_RECIPE, *MODES)
GAP, BLOCK = "/data/split/gap", "/data/loader/shuffle_block"


@dataclass(frozen=True)
class RunPlan:
    """What a request comes to. `spec` is None when it could not be parsed."""

    request: Document
    spec: Document | None
    provenance: Document
    issues: list[Issue]
    unchecked: list[UncheckedRules] = field(default_factory=list)
    estimate: Document | None = None
    memory: Document | None = None
    """The memory plan; None while a fact for it is missing."""
    computes_in: Document | None = None
    """By part of the model, its number format; None while the device is unknown."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Which kinds of slots may train it."""
    requirements: Requirements = NOTHING_KNOWN
    """What it needs there."""
    shape: Document | None = None
    """What gives its model the shape."""
    profile: Document | None = None
    """Of a script: what runs like it took of memory."""

    @property
    def errors(self) -> list[Issue]:
        return [issue for issue in self.issues if issue.severity == "error"]

    def require_ok(self) -> Document:
        """The complete spec; SpecRejected with every error when there is one."""
        if self.errors or self.spec is None:
            first, left = self.errors[:3], self.errors[3:]
            more = "and more" if left and left[-1].code == MORE else f"and {len(left)} more"
            raise SpecRejected(
                " ".join(issue.message for issue in first) + (f" ({more})" if left else ""),
                [issue.model_dump(mode="json") for issue in self.errors],
            )
        return self.spec


def make_plan(
    request: Document,
    facts: Facts,
    catalog: Catalog,
    strictness: Strictness = "enforce",
    resolved: Resolved | None = None,
) -> RunPlan:
    """Resolve a request and put it before every rule; nothing is stored.

    Each fix was tried: with it, its issue is gone and none as severe has come; what is only warned
    of may be what was meant, and is no reason against the fix of an error. One that would bring
    another takes that one's fix along, and one that does not help is not offered. `resolved`: of
    the request, and settled, from a caller who has it already.
    """
    resolved = resolved or settle(resolve(request, catalog, facts), facts)
    inherited = resolved.inherited

    def plan(changed: Document) -> RunPlan:
        settled = settle(resolve(changed, catalog, facts, inherited), facts)
        return judged(changed, settled, facts, strictness)

    first = judged(request, resolved, facts, strictness)
    if first.spec is None:
        return first
    return replace(first, issues=[_with_tried_fix(issue, first, plan) for issue in first.issues])


def judged(
    request: Document, resolved: Resolved, facts: Facts, strictness: Strictness = "enforce"
) -> RunPlan:
    """The plan of a request that is resolved and settled, with the fixes as the rules give them,
    untried.
    """
    if resolved.spec is None or resolved.document is None:
        return RunPlan(request, None, {}, [*judge_names(request, facts), *resolved.issues])
    if resolved.preset is not None:
        facts = replace(facts, preset=resolved.preset.match)
    case = Case(resolved.spec, facts)
    requirements = requirements_of(case)
    case = where_it_fits(case, requirements)
    judgement = judge(case, request, strictness)
    found = [with_preset_kept(issue, request, resolved.preset) for issue in judgement.issues]
    return RunPlan(
        request,
        resolved.document,
        resolved.provenance,
        [*resolved.issues, *found],
        judgement.unchecked,
        estimate_of(case),
        if_known(lambda: case.memory.as_json()),
        if_known(lambda: _computes_in(case)),
        device_wanted(case.spec),
        requirements,
        if_known(lambda: case.shape),
    )


def if_known(derive: Callable[[], Document]) -> Document | None:
    """What is derived; None while a fact for it is missing, which the rules name."""
    try:
        return derive()
    except UnknownFact:
        return None


def _computes_in(case: Case) -> Document:
    return dict(case.spec.recipe.computes_in(case.precision, case.device.kind))


def _with_tried_fix(issue: Issue, first: RunPlan, plan: Callable[[Document], RunPlan]) -> Issue:
    """The issue with a fix that is known to work, or with none."""
    before = {_identity(other) for other in _as_severe(issue, first)}
    fix = list(issue.fix)
    for _ in range(MOST_FIXES_TOGETHER):
        if not fix:
            break
        after = plan(apply_json_patch(first.request, [op.model_dump(mode="json") for op in fix]))
        added = [one for one in _as_severe(issue, after) if _identity(one) not in before]
        if after.spec is not None and not added:
            works = _identity(issue) not in {_identity(other) for other in after.issues}
            return issue.model_copy(update={"fix": fix if works else []})
        if after.spec is None or not all(other.fix for other in added):
            break
        fix += [op for other in added for op in other.fix]
    return issue.model_copy(update={"fix": []})


def _as_severe(issue: Issue, plan: RunPlan) -> list[Issue]:
    """What is found in a plan, of errors alone where the issue is one."""
    return plan.errors if issue.severity == "error" else plan.issues


def _identity(issue: Issue) -> tuple[str, tuple[str | int, ...]]:
    return issue.code, tuple(issue.loc)


def settle(resolved: Resolved, facts: Facts) -> Resolved:
    """Fixes what roles, split and loader leave open, by the data as it is now: its reading may
    change later, but not which samples are trained on, and what is shuffled together.

    The rules judge what is stored, so this comes before them, with a case of its own.
    """
    if resolved.spec is None or resolved.document is None:
        return resolved
    case = Case(resolved.spec, facts)
    roles = _settled_roles(case, resolved.provenance)
    case = case.with_values(roles)
    recipe = _settled_recipe(case, resolved.provenance)
    recipe |= _given_by_recipe(case, recipe, resolved.provenance)
    case = case.with_values(recipe)
    values = {**roles, **recipe, **_settled_gap(case)}
    values |= _settled_order(case, resolved.provenance)
    pinned = resolved.document
    for place, value in values.items():
        pinned = _with_value(pinned, place.strip("/").split("/"), _as_json(value))
    return replace(
        resolved,
        spec=with_values(resolved.spec, values),
        document=pinned,
        provenance=_provenance_with(values, pinned, resolved.provenance),
    )


def _provenance_with(values: Document, pinned: Document, provenance: Document) -> Document:
    """Names the guard as the source of the values; what a block keeps also keeps its source."""
    entries: Document = {}
    for pointer, leaf in leaves(pinned):
        before = provenance.get(pointer)
        is_kept = before is not None and before["value"] == leaf and pointer not in values
        entries[pointer] = before if is_kept else {"value": leaf, "source": "guard"}
    return entries


def _as_json(value: object) -> Any:
    return to_jsonable_python(value)


def _with_value(document: Document, place: list[str], value: object) -> Document:
    name, *inner = place
    return {**document, name: _with_value(document[name], inner, value) if inner else value}


def _settled_roles(case: Case, provenance: Document) -> Document:
    """Returns `data.inputs` and `data.targets` where neither request nor parent names them.

    The file's own word comes first, then the default names, then the recipe's choice among the
    arrays. It takes the first that the recipe can train on, or else the first whose arrays exist:
    the rules then say what is wrong with those.
    """
    left_open = [
        part for part in Roles._fields if provenance[f"/data/{part}"]["source"] == "default"
    ]
    if not left_open:
        return {}
    data, recipe = case.spec.data, case.spec.recipe
    try:
        dataset, arrays = case.dataset, case.recipe_arrays
    except UnknownFact:
        return {}  # a rule says that the dataset is not ready
    candidates = [
        data.model_copy(update={part: getattr(roles, part) for part in left_open})
        for roles in (dataset.roles, data, recipe.roles(arrays))
        if roles is not None
    ]
    existing = [
        one
        for one in candidates
        if _is_sound(one) and dataset.fields.keys() >= {*one.inputs, *one.targets}
    ]
    fitting = [one for one in existing if not _has_role_problems(recipe, one, arrays)]
    chosen = next(iter((*fitting, *existing)), data)
    return {
        f"/data/{part}": getattr(chosen, part)
        for part in left_open
        if getattr(chosen, part) != getattr(data, part)
    }


def _is_sound(data: Data) -> bool:
    """True if a request may say so. A file may have more arrays, or names of other characters."""
    try:
        Data.model_validate_json(data.model_dump_json())
    except ValidationError:
        return False
    return True


def _settled_recipe(case: Case, provenance: Document) -> Document:
    """Returns the recipe's own fix for each of its defaults that does not fit the arrays, such as a
    patch that does not divide their windows. A fix may be a whole block.
    """
    values: Document = {}
    fixes = _shape_of_source(case, provenance)
    for _ in range(1 + MOST_FIXES_TOGETHER):
        if fixes:
            try:
                recipe = _with_fixes(case.with_values(values).spec.recipe, fixes)
            except ValidationError:
                break  # the rule tells the problem; no such fix is offered
            names = {pointer.split("/")[2] for pointer in fixes}
            values |= {f"/recipe/{name}": getattr(recipe, name) for name in names}
        try:
            problems = case.with_values(values).recipe_problems
        except UnknownFact:
            break
        fixes = {
            pointer: value
            for problem in problems
            for pointer, value in problem.fix.items()
            if pointer.startswith("/recipe/") and _is_default(pointer, provenance)
        }
        if not fixes:
            break
    return values


def _shape_of_source(case: Case, provenance: Document) -> Document:
    """Returns the recipe's shape fields that had another meaning before, as in the run whose whole
    weights this one begins with, if neither request nor preset names them.
    """
    init, source, recipe = case.spec.init_from, case.facts.source, case.spec.recipe
    if init is None or init.prefix or source is None or not source.is_needed:
        return {}
    if source.recipe != recipe.kind or source.shape is None:
        return {}
    there = {**recipe.earlier, **source.shape.get("recipe", {})}
    here = recipe.model_dump(mode="json")
    return {
        f"/recipe/{name}": there[name]
        for name in recipe.earlier
        if name in recipe.shape_fields
        and _is_default(f"/recipe/{name}", provenance)
        and there[name] != value_at(here, name)
    }


def _with_fixes(recipe: Recipe, fixes: Document) -> Recipe:
    """The recipe with these values, by JSON Pointer into the spec; ValidationError."""
    document = recipe.model_dump(mode="json")
    for pointer, value in fixes.items():
        *blocks, name = pointer.split("/")[2:]
        block = document
        for part in blocks:
            block[part] = block = dict(block.get(part) or {})
        block[name] = value
    return type(recipe).model_validate_json(json.dumps(document))


def _given_by_recipe(case: Case, settled: Document, provenance: Document) -> Document:
    """Returns the scales, metrics and monitors that the settled recipe gives, where it differs in
    these from the one before and neither request nor preset names them.
    """
    spec, settled_spec = case.spec, with_values(case.spec, settled)
    was, now = spec.recipe, settled_spec.recipe
    if (was.metric_modes, was.has_scale) == (now.metric_modes, now.has_scale):
        return {}
    document = settled_spec.model_dump(mode="json")
    given = [pointer for pointer in GIVEN_BY_RECIPE if _is_default(pointer, provenance)]
    for pointer in given:
        *blocks, name = pointer.strip("/").split("/")
        block = document
        for one in blocks:
            block = block[one]
        block.pop(name)
    again = RunSpec.model_validate_json(json.dumps(document))
    return {pointer: _value_of(again, pointer) for pointer in given}


def _value_of(spec: RunSpec, pointer: str) -> object:
    return reduce(getattr, pointer.strip("/").split("/"), spec)


def _is_default(pointer: str, provenance: Document) -> bool:
    """True if neither request nor preset names the field or one below it."""
    sources = {
        entry["source"]
        for place, entry in provenance.items()
        if place == pointer or place.startswith(f"{pointer}/")
    }
    return bool(sources) and sources <= {"default", PARENT}


def _has_role_problems(recipe: Recipe, data: Data, arrays: Mapping[str, Array]) -> bool:
    places = (("data", "inputs"), ("data", "targets"))
    return any(problem.loc[:2] in places for problem in recipe.problems(data, arrays))


def gap_was_settled(provenance: Document) -> bool:
    """Whether a run with this provenance left the gap of its split to the guard, or is from before
    there were gaps.
    """
    return provenance.get(GAP, {}).get("source", "default") in ("default", "guard")


def _settled_gap(case: Case) -> Document:
    """Of windows so many that no two parts share a step, where that leaves enough to train on; a
    restart of the same data is split as its parent was, unless that had asked for a gap.
    """
    split, parent = case.spec.data.split, case.facts.parent
    if not isinstance(split, ChronologicalSplit) or split.gap != "auto":
        return {}
    if parent and parent.gap_was_settled and _same_cut(parent.spec.data, case.spec.data):
        return {GAP: gap_of(parent.spec.data.split)}
    try:
        gap = case.gap_needed
        return {GAP: gap if leaves_enough(split, gap, case.samples) else 0}
    except UnknownFact:
        return {GAP: 0}  # the rule against leaks tells what it lacks


def _same_cut(one: Data, other: Data) -> bool:
    arrays = (one.dataset, one.inputs, one.targets)
    return arrays == (other.dataset, other.inputs, other.targets) and isinstance(
        one.split, ChronologicalSplit
    )


def _settled_order(case: Case, provenance: Document) -> Document:
    """The values of the loader's `auto`, by name; none while the dataset is not known.

    A restart keeps the blocks of a parent of an earlier version, whose size that version's formula
    gives: an `auto` that came from the parent stays.
    """
    loader = case.spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.shuffle in ("full", "none", "lanes"):
        return {}
    if loader.shuffle == "block" and loader.shuffle_group != "auto":
        source = provenance.get(BLOCK, {}).get("source")
        if loader.shuffle_block != "auto" or source == PARENT:
            return {}
    try:
        return dict(case.settled_order)
    except UnknownFact:
        return {}
