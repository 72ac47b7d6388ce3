"""Rules about data: a part that was trained on, a target that is given, NaN in any dataset."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import RaggedFacts
from tests.guard.world import FIELDS, codes, plan_of, weather, world

LEAK, RAGGED = "correctness.leaking_split", "correctness.ragged_array"
WINTER = replace(weather(), name="winter")


def by_dataset(**names: Any) -> dict[str, Any]:
    return {"data": {"split": {"method": "datasets", **names}}}


@pytest.mark.parametrize(
    ("names", "loc"),
    [
        ({"validation": "weather"}, "validation"),
        ({"validation": "weather", "test": "weather"}, "validation"),
        ({"validation": "weather", "test": "winter"}, "validation"),
        ({"validation": "winter", "test": "weather"}, "test"),
        ({"validation": "winter", "test": "winter"}, "test"),
    ],
)
def test_a_part_with_the_samples_of_another_is_a_leak(names, loc):
    plan = plan_of(by_dataset(**names), world(WINTER))
    assert codes(plan) == [LEAK]
    assert plan.issues[0].loc == ["data", "split", loc]
    assert bool(plan.issues[0].fix) == (names != {"validation": "weather", "test": "winter"})


def test_datasets_of_their_own_are_no_leak():
    autumn = replace(weather(), name="autumn")
    assert codes(plan_of(by_dataset(validation="winter"), world(WINTER))) == []
    names = {"validation": "winter", "test": "autumn"}
    assert codes(plan_of(by_dataset(**names), world(WINTER, autumn))) == []


@pytest.mark.parametrize("asked", [{"inputs": ["boards"]}, {"targets": ["boards"]}])
@pytest.mark.parametrize("shape", [(), (24,), (24, 3)])
def test_a_ragged_array_is_refused_for_what_it_is_and_for_nothing_else(asked, shape):
    ragged = weather(ragged={"boards": RaggedFacts(shape, "float32", 2, 9)})
    (issue,) = plan_of({"data": asked}, world(ragged)).issues
    assert issue.code == "correctness.ragged_array"
    assert issue.loc == ["data", next(iter(asked)), 0]
    assert "2 to 9 values" in issue.message
    assert "pad_ragged(file, 'boards', 'boards_padded', 9)" in issue.why


def test_a_ragged_array_of_the_validation_dataset_is_named_there():
    fields = {"targets": FIELDS["targets"]}
    torn = replace(WINTER, fields=fields, ragged={"features": RaggedFacts((3,), "float32", 0, 0)})
    (issue,) = plan_of(by_dataset(validation="winter"), world(torn)).issues
    assert (issue.code, issue.loc) == (RAGGED, ["data", "split", "validation"])
    assert "'features_padded', 1)" in issue.why


def test_a_ragged_array_is_among_those_that_there_are():
    ragged = weather(ragged={"boards": RaggedFacts((), "int8", 1, 9)})
    (issue,) = plan_of({"data": {"inputs": ["board"]}}, world(ragged)).issues
    assert issue.code == "correctness.unknown_array"
    assert "it has boards, features, targets." in issue.message
    assert "Did you mean" not in issue.message


def test_an_array_that_is_both_input_and_target_is_named():
    both = plan_of({"data": {"inputs": ["features"], "targets": ["features"]}})
    assert codes(both) == ["correctness.target_is_input"]
    assert both.issues[0].loc == ["data", "targets", 0]
    assert both.issues[0].fix == []


@pytest.mark.parametrize("part", ["validation", "test"])
def test_nan_is_found_in_every_dataset_of_the_run(part):
    torn = {**FIELDS, "features": replace(FIELDS["features"], nonfinite=5)}
    spring = replace(weather(), name="spring", fields=torn)
    names = {"validation": "winter", part: "spring"}
    plan = plan_of(by_dataset(**names), world(WINTER, spring))
    assert codes(plan) == ["correctness.nonfinite_values"]
    assert plan.issues[0].loc == ["data", "split", part]
    assert "spring" in plan.issues[0].message
