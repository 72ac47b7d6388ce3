"""Rules about data: a part that was trained on, a target that is given, NaN in any dataset."""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import ClassFacts, Facts, FieldFacts, LengthFacts, PartFacts
from app.guard.plan import RunPlan
from app.planning.arithmetic import PartSizes
from app.recipes.sequence import Sequence
from app.spec.layers import overlay
from app.spec.recipe import Array
from tests.guard.changes import KINDS, PANEL, PRICES, SORTED_KINDS
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
    return replace(values, lengths=LengthFacts(2, 5.5, longest))


def items_of(plan: RunPlan) -> dict[str, int]:
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
    assert "`stoker data convert FILE --pad 9`" in issue.why


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
    assert "Did you mean boards?" in issue.message


def test_no_ragged_array_is_named_for_a_target():
    facts = with_boards(ragged(dtype="int8"))
    (issue,) = plan_of({"data": {"targets": ["board"]}}, facts).issues
    assert issue.code == "correctness.unknown_array"
    assert "Did you mean targets?" in issue.message  # which is the only one that could be


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


def windows(**changes: Any) -> Facts:
    """36 hours forecast from windows of 360 that move on by so many."""
    return world(weather(window_steps={"features": 1}, **changes))


@pytest.mark.parametrize(
    ("window_steps", "gap"),
    [
        ({}, 0),
        ({"features": 1}, 395),  # 360 + 36 - 1
        ({"features": 6}, 65),
        ({"features": 396}, 0),
        ({"targets": 1}, 35),
        ({"features": 6, "targets": 6}, 65),
    ],
)
def test_parts_of_one_series_are_so_far_apart_that_they_share_no_step(window_steps, gap):
    facts = world(weather(window_steps=window_steps))
    plan = plan_of(facts=facts)
    assert codes(plan) == []
    assert plan.require_ok()["data"]["split"]["gap"] == gap
    assert plan.provenance["/data/split/gap"] == {"value": gap, "source": "guard"}
    assert plan.estimate is not None
    assert plan.estimate["training_samples"] == 3216 - gap
    by = max(window_steps.values(), default=1000)
    last, first = 3216 - gap - 1, 3216  # of the training, and of the validation
    spans = 396 if "features" in window_steps else 36
    assert window_steps == {} or last * by + spans <= first * by
    assert window_steps == {} or gap == 0 or (last + 1) * by + spans > first * by


@pytest.mark.parametrize(
    ("breaks", "split", "gap"),
    [
        ([1000, 3216], {"validation_fraction": 0.2}, 0),  # a series ends right at the border
        ([1000, 3100], {"validation_fraction": 0.2}, 116),
        ([1000, 3300], {"validation_fraction": 0.2}, 395),
        # One gap for both borders: 18 would do before the test part at 3618.
        ([2700, 3600], {"validation_fraction": 0.2, "test_fraction": 0.1}, 114),
        (None, {"validation_fraction": 0.2}, 395),
    ],
)
def test_a_gap_goes_no_further_back_than_a_series_begins(breaks, split, gap):
    known_breaks = {"features": breaks, "targets": [7]}
    plan = plan_of({"data": {"split": split}}, windows(breaks=known_breaks))
    assert plan.require_ok()["data"]["split"]["gap"] == gap
    assert codes(plan) == []


def test_a_gap_is_kept_as_it_is_asked_for_and_one_too_small_is_told():
    plan = plan_of({"data": {"split": {"gap": 100}}}, windows())
    (issue,) = plan.issues
    assert (issue.code, issue.severity) == (LEAK, "warning")
    assert issue.message.startswith("295 of 804 validation samples share steps")
    assert [(op.path, op.value) for op in issue.fix] == [("/data/split/gap", 395)]
    assert plan.require_ok()["data"]["split"]["gap"] == 100
    assert codes(plan_of({"data": {"split": {"gap": 395}}}, windows())) == []


def test_where_a_gap_would_take_most_of_the_training_part_there_is_none_and_it_is_told():
    plan = plan_of(facts=windows(samples=900))
    (issue,) = plan.issues
    assert (issue.code, issue.severity, issue.fix) == (LEAK, "warning", [])
    assert "The dataset is too small to leave out so many." in issue.why
    assert plan.require_ok()["data"]["split"]["gap"] == 0
    assert plan_of(facts=windows(samples=1000)).require_ok()["data"]["split"]["gap"] == 395


def test_both_borders_have_a_gap_and_a_split_without_a_border_has_none():
    split = {"split": {"validation_fraction": 0.2, "test_fraction": 0.1}}
    plan = plan_of({"data": split}, windows())
    assert plan.estimate is not None
    assert plan.estimate["training_samples"] == 4020 - 804 - 402 - 2 * 395
    alone = plan_of({"data": {"split": {"validation_fraction": 0.0}}}, windows())
    assert alone.estimate is not None
    assert alone.estimate["training_samples"] == 4020
    assert codes(alone) == []


BY_PART = {"data": {"split": {"method": "field", "field": "part"}}}


def split_by(part: FieldFacts | None, **more: Any) -> RunPlan:
    """The plan of the request split by the field `part`."""
    fields = FIELDS if part is None else {**FIELDS, "part": part}
    return plan_of(BY_PART, world(weather(fields=fields, **more)))


def numbers(*sizes: int) -> FieldFacts:
    return FieldFacts((), "uint8", nonfinite=0, parts=PartFacts(PartSizes(*sizes), []))


def test_the_sizes_of_parts_are_those_that_the_field_says():
    plan = split_by(numbers(3000, 600, 420))
    assert codes(plan) == []
    assert plan.estimate is not None
    assert plan.estimate["training_samples"] == 3000
    assert plan.require_ok()["data"]["split"] == {"method": "field", "field": "part"}


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (None, "has no field 'part'; it has features, targets."),
        (FieldFacts((), "float32", nonfinite=0), "has samples of float32 ()"),
        (FieldFacts((4,), "int8", nonfinite=0), "has samples of int8 (4,)"),
        (
            FieldFacts((), "int8", nonfinite=0, not_a_part=(4019, -1)),
            "Sample 4,019 of 'weather' has -1",
        ),
    ],
)
def test_a_field_that_cannot_split_is_refused(part, told):
    (issue,) = split_by(part).issues
    assert (issue.code, issue.loc) == ("correctness.split_field", ["data", "split", "field"])
    assert told in issue.message
    assert "0 training, 1 validation, 2 test" in issue.why


def test_the_field_that_was_meant_is_named():
    facts = world(weather(fields={**FIELDS, "part": numbers(3000, 600, 420)}))
    plan = plan_of({"data": {"split": {"method": "field", "field": "parts"}}}, facts)
    (issue,) = plan.issues
    assert [(op.path, op.value) for op in issue.fix] == [("/data/split/field", "part")]


def test_a_field_that_leaves_nothing_to_train_on_is_refused():
    assert "correctness.no_training_steps" in codes(split_by(numbers(0, 3600, 420)))


def test_what_an_earlier_inspection_did_not_count_is_said_to_be_unknown():
    plan = split_by(FieldFacts((), "uint8", nonfinite=0))
    assert codes(plan) == []
    assert any("which part each sample of weather is in" in str(each) for each in plan.unchecked)


@pytest.mark.parametrize(
    ("changes", "breaks", "told"),
    [
        ([3000, 3600], [], "At 2 samples"),
        ([3000, 3600], [3000], "At 1 samples"),
        ([3000, 3600], [3000, 3600], None),
        (None, [3000], "At more than 1,000 samples"),
    ],
)
def test_neighbouring_windows_of_two_parts_are_told(changes, breaks, told):
    part = replace(numbers(3000, 600, 420), parts=PartFacts(PartSizes(3000, 600, 420), changes))
    plan = split_by(part, window_steps={"features": 1}, breaks={"features": breaks})
    assert codes(plan) == ([] if told is None else [LEAK])
    for issue in plan.issues:
        assert (issue.severity, issue.loc) == ("warning", ["data", "split", "field"])
        assert told is not None
        assert issue.message.startswith(told)


def test_samples_that_a_recipe_makes_come_by_the_pytorch_loader(monkeypatch):
    """And what waits in memory are they, not those of the file."""
    by_torch = {"data": {"loader": {"kind": "dataloader", "num_workers": 2}}}
    [of_file] = [items_of(plan_of(by_torch))["loader_batches"]]
    made = {"features": Array((720, 15), "float32"), "targets": Array((36,), "float32")}
    monkeypatch.setattr(Sequence, "dataset_arrays", lambda *_: made)
    plan = plan_of({"data": {"loader": {"shuffle": "none"}}})
    (issue,) = plan.errors
    assert issue.code == "correctness.recipe_does_not_fit"
    fixed = {"kind": "dataloader", "shuffle": "none"}
    assert [(op.path, op.value) for op in issue.fix] == [("/data/loader", fixed)]
    plan = plan_of(by_torch)
    assert not plan.errors
    file_bytes, made_bytes = 360 * 15 * 4 + 36 * 4, 720 * 15 * 4 + 36 * 4
    assert items_of(plan)["loader_batches"] == of_file // file_bytes * made_bytes


def test_samples_that_a_recipe_makes_are_not_ragged(monkeypatch):
    made = {
        "features": Array((9, 15), "float32", is_ragged=True),
        "targets": Array((36,), "float32"),
    }
    monkeypatch.setattr(Sequence, "dataset_arrays", lambda *_: made)
    (issue,) = plan_of({"data": {"loader": {"kind": "dataloader", "num_workers": 2}}}).errors
    assert (issue.code, issue.loc) == ("correctness.recipe_does_not_fit", ["recipe", "kind"])
    assert "its samples of 'features' differ in length" in issue.message


def test_a_rate_for_a_backbone_that_a_recipe_does_not_have_is_refused(monkeypatch):
    asked = {"optimizer": {"backbone_lr": 1e-4}}
    assert plan_of(asked).errors == []
    monkeypatch.setattr(Sequence, "parameter_groups", ("model",))
    (issue,) = plan_of(asked).errors
    assert (issue.code, issue.loc) == (
        "correctness.recipe_does_not_fit", ["optimizer", "backbone_lr"],
    )  # fmt: skip
    assert [(op.path, op.value) for op in issue.fix] == [("/optimizer/backbone_lr", None)]


LANES = {
    "recipe": {"carry_hidden": True},
    "data": {"loader": {"shuffle": "lanes"}},
    "training": {"drop_last": True},
}


@pytest.mark.parametrize(
    ("change", "place", "fix"),
    [
        ({"data": {"loader": {"shuffle": "auto"}}}, "/data/loader/shuffle", "lanes"),
        ({"training": {"drop_last": False}}, "/training/drop_last", True),
    ],
)
def test_a_carried_state_goes_on_in_lanes_and_in_whole_batches(change, place, fix):
    assert plan_of(LANES).errors == []
    [issue] = plan_of(overlay(LANES, change)).errors
    assert issue.code == "correctness.carried_state"
    assert [(op.path, op.value) for op in issue.fix] == [(place, fix)]


def test_a_state_is_not_carried_to_a_window_that_overlaps():
    [issue] = plan_of(LANES, world(weather(window_steps={"features": 1}))).errors
    assert (issue.code, issue.fix) == ("correctness.carried_state", [])
    assert "--every 360" in issue.why
    assert plan_of({}, world(weather(window_steps={"features": 1}))).errors == []


def test_the_state_of_inputs_whose_windows_overlap_may_be_left_out():
    fields = {**FIELDS, "slow": FIELDS["features"]}
    facts = world(weather(fields=fields, window_steps={"slow": 1}))
    several = overlay(LANES, {"data": {"inputs": ["features", "slow"]}})
    [issue] = plan_of(several, facts).errors
    assert (issue.code, issue.loc) == ("correctness.carried_state", ["data", "inputs", 1])
    assert [(op.path, op.value) for op in issue.fix] == [("/recipe/carry_hidden", ["features"])]


def test_a_column_of_words_is_refused_with_why():
    told = "'part' has type string, which is no number; it is left out."
    plan = plan_of(BY_PART, world(weather(problems=(told,))))
    (issue,) = plan.issues
    assert issue.code == "correctness.split_field"
    assert issue.why.endswith(told)


LACKING = "learning.class_lacking"


def lacking_in(change: dict[str, Any], facts: Facts) -> dict[str, str]:
    """By the place in data.split, the sentence of each part that lacks a class."""
    plan = plan_of(overlay(KINDS, change), facts)
    return {str(one.loc[-1]): one.message for one in plan.issues if one.code == LACKING}


def test_each_part_that_lacks_a_class_is_named():
    split = {"validation_fraction": 0.2, "test_fraction": 0.1, "gap": 0}
    kinds = SORTED_KINDS.fields["kinds"]
    classes = (
        ClassFacts(0, 4_000),
        # Training is 0 to 2,814, validation up to 3,618, the test up to 4,020.
        ClassFacts(1, 30, ((0, 2_814), (2_844, 4_020))),
        ClassFacts(2, 30, ((100, 3_990),)),
    )
    fields = {**SORTED_KINDS.fields, "kinds": replace(kinds, classes=classes)}
    facts = world(weather(fields=fields))
    assert lacking_in({"data": {"split": split}}, facts) == {
        "method": "No sample of the training part has class 1 of 'kinds'.",
        "validation_fraction": "No sample of the validation part has class 2 of 'kinds'.",
        "test_fraction": "No sample of the test part has class 1 of 'kinds'.",
    }
    assert lacking_in({"data": {"split": {**split, "method": "random", "gap": None}}}, facts) == {}


def test_a_dataset_of_its_own_that_lacks_a_class_is_named():
    fields = dict(SORTED_KINDS.fields)
    fields["kinds"] = replace(fields["kinds"], classes=(ClassFacts(1, 900, ()),))
    facts = world(SORTED_KINDS, replace(SORTED_KINDS, name="winter", samples=900, fields=fields))
    split = {"method": "datasets", "validation": "winter"}
    assert lacking_in({"data": {"split": split}}, facts) == {
        "validation": "No sample of the validation part has the classes 0 and 2 of 'kinds'."
    }


def test_a_plan_says_how_to_inspect_what_an_earlier_version_inspected():
    fields = {
        name: replace(one, not_inspected=("neighbours", "classes"))
        for name, one in SORTED_KINDS.fields.items()
    }
    plan = plan_of(KINDS, world(weather(fields=fields)))
    missing = {one.code: one.missing for one in plan.unchecked}
    for code in (LACKING, "learning.alike_batches"):
        assert "`stoker data register weather weather.h5` inspects it again" in missing[code]
    assert plan.estimate is not None
    assert plan.estimate["batch_worth"] is None


def test_what_of_a_panel_is_known_may_be_constant():
    fields = dict(PRICES.fields)
    fields["known"] = replace(fields["known"], mean=1.0, std=0.0)
    told = "learning.constant_target"
    assert told not in codes(plan_of(PANEL, world(replace(PRICES, fields=fields))))
    fields["targets"] = replace(fields["targets"], mean=1.0, std=0.0)
    plan = plan_of(PANEL, world(replace(PRICES, fields=fields)))
    (issue,) = [one for one in plan.issues if one.code == told]
    assert issue.loc == ["data", "targets", 0]
    assert issue.message.startswith("'targets' is 1 in all rows that were sampled")
