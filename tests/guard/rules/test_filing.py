"""A rule lies in the file of the place in the spec that it finds something in."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from app.guard.case import Case, Loc
from app.guard.facts import UnknownFact
from app.guard.plan import settle
from app.guard.registry import RULES
from app.guard.resolve import resolve
from app.guard.rule import GuardRule
from app.spec.layers import overlay, with_default_kinds
from app.spec.run import RunSpec
from tests.guard.cases import CASES
from tests.guard.corpus import Drawn, any_specs
from tests.guard.world import CATALOG, REQUEST

FOLDER = Path(__file__).parents[3] / "app" / "guard" / "rules"
# The places of a spec, by file: its blocks, and the parts of those that are large. The longest
# place that a location begins with is the one that counts. Small blocks that are set with each
# other share a file.
FILES: dict[str, tuple[str, ...]] = {
    "recipe": ("recipe", "loss_weights", "pos_weight", "class_weights"),
    "data": ("data", "data/split/validation", "data/split/test"),  # which name datasets
    "split": ("data/split",),
    "loader": ("data/loader",),
    "loader_workers": tuple(
        f"data/loader/{name}" for name in ("num_workers", "persistent_workers", "pin_memory")
    ),
    "training": ("training",),
    "optimization": ("optimizer", "schedule"),
    "runtime": ("runtime", "preset"),
    "precision": ("runtime/precision",),
    "compilation": ("runtime/compile", "runtime/cuda_graphs"),
    "averaging": ("averaging",),
    "evaluation": ("evaluation",),
    "checkpoint": ("checkpoint", "early_stopping"),
    "policy": ("policy",),
    "first_weights": ("init_from",),
}
FILE_OF = {place: file for file, places in FILES.items() for place in places}
# Rules that find one thing in several places: where else, beside the one that they are filed by.
ALSO = {
    "correctness.never_evaluated": {"checkpoint"},  # the patience, where evaluations are too few
    "correctness.plateau_never_acts": {"evaluation"},  # that there is none
    "correctness.unknown_monitor": {"optimization"},  # what the schedule plateau looks at
    "learning.small_part": {"evaluation"},  # the batches that are looked at of a large part
    "correctness.leaking_split": {"data"},  # a dataset that is named for two parts
    "memory.over_budget": {"loader"},  # chunks, where they alone are too large
    # What a state cannot be carried over, wherever that is asked for.
    "correctness.carried_state": {"data", "runtime", "training"},
}
DRAWN = 60


def file_of(loc: Loc) -> str:
    parts = [str(part) for part in loc]
    places = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(FILE_OF[place] for place in places if place in FILE_OF)


def filed_in(rule: GuardRule) -> str:
    return block_of(rule.find.__module__.rpartition(".")[2])


def block_of(stem: str) -> str:
    """The name in FILES of a file: beside that of its block there is one about all arrays of it, or
    about restarts.
    """
    return {"lengths": "data", "restart": "training"}.get(stem, stem)


def found_in(drawn: Drawn) -> Iterator[tuple[GuardRule, str]]:
    request, facts = drawn
    resolved = settle(resolve(request, CATALOG, facts), facts)
    if resolved.spec is None:
        return
    made_for = resolved.preset.match if resolved.preset else None
    case = Case(resolved.spec, replace(facts, preset=made_for))
    for rule in RULES:
        try:
            yield from ((rule, file_of(finding.loc)) for finding in rule(case))
        except UnknownFact:
            continue


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    """By the code of each rule, the files of the places in which it finds something: in its own
    example, and in specs that are drawn for none.
    """
    files: dict[str, set[str]] = defaultdict(set)

    def look(drawn: Drawn) -> None:
        for rule, file in found_in(drawn):
            files[rule.code].add(file)

    for example in CASES.values():
        look((overlay(REQUEST, with_default_kinds(example.found)), example.facts))
    chance = settings(
        max_examples=DRAWN, derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    chance(given(any_specs())(look))()
    return files


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_lies_in_the_file_of_what_it_finds(rule, found):
    own = filed_in(rule)
    assert own in found[rule.code]
    assert found[rule.code] <= {own} | ALSO.get(rule.code, set())


def test_each_place_that_a_file_names_is_its_own():
    """Also those that no spec here is found in."""
    for path in FOLDER.glob("*.py"):
        own = block_of(path.stem)
        also = (ALSO.get(rule.code, set()) for rule in RULES if filed_in(rule) == own)
        assert {file_of(loc) for loc in locations(path)} <= {own}.union(*also), path


def locations(path: Path) -> Iterator[Loc]:
    """As far as they are written out: of findings whose place begins with names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            place = node.args[0]
            parts = place.elts if isinstance(place, ast.Tuple) else []
            names = [part.value if isinstance(part, ast.Constant) else None for part in parts]
            known = names[: names.index(None)] if None in names else names
            if known:
                yield tuple(str(name) for name in known)


def test_each_file_has_its_places_and_each_rule_its_turn():
    there = {block_of(path.stem) for path in FOLDER.glob("*.py")} - {"__init__"}
    assert there == set(FILES)
    assert {place.split("/")[0] for place in FILE_OF} <= set(RunSpec.model_fields)
    made = {
        (block_of(path.stem), node.name)
        for path in FOLDER.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    }
    assert {(filed_in(rule), rule.find.__name__) for rule in RULES} == made
