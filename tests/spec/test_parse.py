"""Bad specs become issues that say where, what was meant, and how to mend it."""

import jsonpatch
import pytest

from app.spec.layers import with_default_kinds
from app.spec.parse import parse_spec

SMALLEST = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}


def issues_of(change):
    return parse_spec(with_default_kinds({**SMALLEST, **change}))[1]


@pytest.mark.parametrize(
    ("change", "loc", "code"),
    [
        ({"max_epochs": 3}, ["max_epochs"], "unknown_field"),
        ({"training": {"epochz": 3}}, ["training", "epochz"], "unknown_field"),
        ({"optimizer": {"learning_rate": 0.1}}, ["optimizer", "learning_rate"], "unknown_field"),
        ({"per_device_train_batch_size": 8}, ["per_device_train_batch_size"], "unknown_field"),
        ({"runtime": {"precision": "16-mixed"}}, ["runtime", "precision"], "wrong_value"),
        ({"schedule": {"kind": "cosine"}}, ["schedule", "kind"], "wrong_value"),
        ({"recipe": {"kind": "sequense"}}, ["recipe", "kind"], "wrong_value"),
    ],
)
def test_a_suggested_fix_makes_the_spec_valid(change, loc, code):
    (issue,) = issues_of(change)
    assert (issue.loc, issue.code) == (loc, code)
    assert "Did you mean" in issue.message
    fixed = jsonpatch.apply_patch(
        {**SMALLEST, **change}, [op.model_dump(mode="json") for op in issue.fix]
    )
    assert parse_spec(with_default_kinds(fixed))[1] == []


@pytest.mark.parametrize(
    ("change", "loc", "words"),
    [
        ({"training": {"batch_size": "x"}}, ["training", "batch_size"], "valid integer"),
        ({"training": 5}, ["training"], "object"),
        ({"training": {"epochs": 10**9}}, ["training", "epochs"], "less than or equal"),
        ({"evaluation": {"batch_size": "x"}}, ["evaluation", "batch_size"], "'auto' or it should"),
        ({"optimizer": {"betas": [0.9]}}, ["optimizer", "betas", 1], "missing"),
        ({"schedule": {"kind": "onecycle", "div_factor": 0}}, ["schedule", "div_factor"], "equal"),
        ({"training": {"epochs": float("nan")}}, ["training", "epochs"], "finite"),
        ({"optimizer": {"lr": float("inf")}}, ["optimizer", "lr"], "finite"),
    ],
)
def test_an_issue_names_the_place_and_the_trouble(change, loc, words):
    (issue,) = issues_of(change)
    assert issue.loc == loc
    assert words in issue.message


def test_what_is_missing_is_named():
    spec, issues = parse_spec({})
    assert spec is None
    assert {(issue.code, *issue.loc) for issue in issues} == {
        ("missing_field", "recipe"),
        ("missing_field", "data"),
    }


def test_a_part_of_a_split_that_leaves_nothing_is_refused():
    data = {"dataset": "weather", "split": {"validation_fraction": 0.6, "test_fraction": 0.5}}
    (issue,) = issues_of({"data": data})
    assert issue.loc == ["data", "split"]
    assert "below 1" in issue.message


def test_a_good_spec_has_no_issues():
    spec, issues = parse_spec(SMALLEST)
    assert issues == []
    assert spec is not None
    assert spec.data.dataset == "weather"


@pytest.mark.parametrize(
    ("change", "loc"), [({"": {}}, [""]), ({"training": {"": 1}}, ["training", ""])]
)
def test_a_field_without_a_name_is_unknown(change, loc):
    (issue,) = issues_of(change)
    assert (issue.code, issue.loc) == ("unknown_field", loc)
    assert "without a name" in issue.message


def test_a_field_of_another_kind_is_not_said_to_be_meant_by_itself():
    (issue,) = issues_of({"schedule": {"kind": "constant", "warmup_steps": 5}})
    assert issue.message == "There is no field schedule.warmup_steps in this kind of schedule."
    assert [op.model_dump() for op in issue.fix] == [
        {"op": "remove", "path": "/schedule/warmup_steps"}
    ]


def test_a_wrong_value_is_told_what_the_field_is():
    (issue,) = issues_of({"training": {"epochs": "many"}})
    assert issue.why == "training.epochs: Passes over the training part; default 5."
    (issue,) = issues_of({"data": {"dataset": "d", "loader": {"chunk_size": -1}}})
    assert issue.why.startswith("data.loader.chunk_size: ")
