"""Rules about data: a part that was trained on, a target that is given, NaN in any dataset."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import Facts, FieldFacts, Lengths
from app.guard.plan import Plan
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


def ragged(*shape: int, dtype: str = "float32", longest: int = 9) -> FieldFacts:
    """Samples of 2 values and more, of this shape each."""
    values = FieldFacts((longest, *shape), dtype, "contiguous", nonfinite=0, mean=0.5, std=1.0)
    return replace(values, lengths=Lengths(2, 5.5, longest))


def items_of(plan: Plan) -> dict[str, int]:
    assert plan.memory is not None
    items: dict[str, int] = plan.memory["host"]["items"]
    return items


def with_boards(boards: FieldFacts, **other: Any) -> Facts:
    fields = {**FIELDS, "boards": boards, **other}
    return world(weather(fields=fields))


@pytest.mark.parametrize("shape", [(), (24,), (24, 3)])
def test_a_ragged_target_is_refused_for_what_it_is_and_for_nothing_else(shape):
    facts = with_boards(ragged(*shape))
    (issue,) = plan_of({"data": {"targets": ["boards"]}}, facts).issues
    assert (issue.code, issue.loc) == (RAGGED, ["data", "targets", 0])
    assert f"2 to 9 values of float32 {shape} each" in issue.message
    assert "pad_ragged(file, 'boards', 'boards_padded', 9)" in issue.why


@pytest.mark.parametrize("patch", [1, 4, 6, 20])
def test_a_ragged_input_is_taken_whatever_its_patches_leave(patch):
    facts = with_boards(ragged(3))
    asked = {"data": {"inputs": ["boards"]}, "recipe": {"patch": patch}}
    assert codes(plan_of(asked, facts)) == []


@pytest.mark.parametrize("shape", [(), (24, 3)])
def test_a_ragged_input_has_features_at_each_step(shape):
    facts = with_boards(ragged(*shape))
    (issue,) = plan_of({"data": {"inputs": ["boards"]}}, facts).issues
    assert issue.code == "correctness.array_shape"
    assert f"samples of float32 (up to 9{', 24, 3' if shape else ''})" in issue.message


@pytest.mark.parametrize(
    ("winter", "told"),
    [
        (ragged(3, longest=700), None),
        (ragged(4), "float32 (up to 9, 4) in 'winter' but float32 (up to 9, 3)"),
        (ragged(3, dtype="uint8"), "uint8 (up to 9, 3)"),
        (replace(ragged(3), lengths=None), "float32 (9, 3) in 'winter'"),
        (FieldFacts((), "float32"), "float32 () in 'winter'"),
    ],
)
def test_ragged_arrays_of_all_datasets_have_values_of_one_kind(winter, told):
    facts = with_boards(ragged(3))
    other = replace(WINTER, fields={**FIELDS, "boards": winter})
    facts = replace(facts, datasets={**facts.datasets, "winter": other})
    data = {"inputs": ["boards"], **by_dataset(validation="winter")["data"]}
    plan = plan_of({"data": data}, facts)
    assert codes(plan) == ["correctness.array_mismatch" if told else "speed.mostly_filling"]
    if told:
        assert told in plan.issues[0].message
    else:  # a batch of either part is as wide as the longest of both
        short = plan_of({"data": {"inputs": ["boards"]}}, facts)
        assert "5.5 values on average" in plan.issues[0].message
        assert "filled up to 700: 99%" in plan.issues[0].message
        batches = [items_of(one)["batch"] for one in (plan, short)]
        assert batches[0] > 30 * batches[1]


def test_memory_counts_the_values_where_they_are_kept_and_the_longest_in_a_batch():
    facts = with_boards(ragged(3, longest=1_000))
    asked = {"data": {"inputs": ["boards"]}, "training": {"batch_size": 100}}
    items = items_of(plan_of(asked, facts))
    target = 36 * 4
    assert items["batch"] == 100 * (1_000 * 3 * 4 + 8 + target)
    kept = 66 + 16 + target
    longest = 1_000 * 3 * 4  # behind the samples of each of two parts
    assert items["resident_data"] == 4_020 * kept + 3_216 * 8 + 2 * longest


def test_a_ragged_array_is_among_those_that_there_are():
    facts = with_boards(ragged(dtype="int8"))
    (issue,) = plan_of({"data": {"inputs": ["board"]}}, facts).issues
    assert issue.code == "correctness.unknown_array"
    assert "it has boards, features, targets." in issue.message
    assert "Did you mean 'boards'?" in issue.message


def test_no_ragged_array_is_named_for_a_target():
    facts = with_boards(ragged(dtype="int8"))
    (issue,) = plan_of({"data": {"targets": ["board"]}}, facts).issues
    assert issue.code == "correctness.unknown_array"
    assert "Did you mean" not in issue.message
    assert issue.fix == []


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
