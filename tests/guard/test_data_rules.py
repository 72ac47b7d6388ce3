"""Rules about data: a part that was trained on, a target that is given, NaN in any dataset."""

from dataclasses import replace
from typing import Any

import pytest

from tests.guard.world import FIELDS, codes, plan_of, weather, world

LEAK = "correctness.leaking_split"
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
