"""Bad specs become issues that say where, what was meant, and how to mend it."""

from typing import Any

import jsonpatch
import pytest

from app.spec.installed import RECIPES
from app.spec.layers import with_default_kinds
from app.spec.parse import parse_spec

SMALLEST = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}


def issues_of(change):
    return parse_spec(with_default_kinds({**SMALLEST, **change}))[1]


def test_an_unknown_recipe_is_told_with_those_that_are_installed():
    (issue,) = issues_of({"recipe": {"kind": "no-such-recipe"}})
    for kind, model in RECIPES.items():
        assert kind in issue.message
        first_sentence = " ".join((model.__doc__ or "").split()).partition(". ")[0].rstrip(".")
        assert f"{kind}, {first_sentence}" in issue.why


@pytest.mark.parametrize(
    ("change", "loc", "code"),
    [
        ({"max_epochs": 3}, ["max_epochs"], "unknown_field"),
        ({"epoch": 3}, ["epoch"], "unknown_field"),
        ({"training": {"epoch": 3}}, ["training", "epoch"], "unknown_field"),
        ({"training": {"max_epoch": 3}}, ["training", "max_epoch"], "unknown_field"),
        ({"training": {"epochz": 3}}, ["training", "epochz"], "unknown_field"),
        ({"optimizer": {"learning_rate": 0.1}}, ["optimizer", "learning_rate"], "unknown_field"),
        ({"per_device_train_batch_size": 8}, ["per_device_train_batch_size"], "unknown_field"),
        ({"recipe": {"kind": "sequence", "hidden": 8}}, ["recipe", "hidden"], "unknown_field"),
        ({"recipe": {"kind": "sequence", "layers": 2}}, ["recipe", "layers"], "unknown_field"),
        ({"recipe": {"kind": "sequence", "d_model": 8}}, ["recipe", "d_model"], "unknown_field"),
        ({"hidden_dim": 8}, ["hidden_dim"], "unknown_field"),
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
    ("loc", "text", "number"),
    [
        (["optimizer", "lr"], "3e-3", 3e-3),
        (["optimizer", "lr"], "0.003", 0.003),
        (["optimizer", "lr"], "1", 1),
        (["training", "epochs"], "4", 4),
        (["training", "clip_grad_norm"], "1E+0", 1.0),
        (["evaluation", "batch_size"], "64", 64),
        (["training", "max_steps"], "1,000,000", 1_000_000),
    ],
)
def test_a_number_that_is_text_is_mended(loc, text, number):
    block, name = loc
    (issue,) = issues_of({block: {name: text}})
    assert (issue.loc, issue.code) == (loc, "wrong_value")
    without = "commas" if "," in text else "quotes"
    said = f'"{text}": it is text, and should be a number. Write it without {without}.'
    assert said in issue.message
    (operation,) = issue.fix
    assert (operation.op, operation.path) == ("replace", f"/{block}/{name}")
    assert (operation.value, type(operation.value)) == (number, type(number))
    assert issues_of({block: {name: operation.value}}) == []


@pytest.mark.parametrize(
    ("loc", "text"),
    [
        *((["optimizer", "lr"], text) for text in (
            "", " 1", "1 ", "1\n", "+1", ".5", "5.", "01", "0x1", "1_0", "١", "nan", "NaN",
            "Infinity", "1e999", "9" * 5000, "true", "1e",
        )),
        (["training", "epochs"], "4.5"),
        (["training", "epochs"], "4.0"),
        (["training", "epochs"], "1e2"),
        (["training", "epochs"], "1,00"),
        (["optimizer", "lr"], "1,000"),
        (["runtime", "precision"], "16"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_number_of_the_kind_is_not_mended_as_one(loc, text):
    block, name = loc
    (issue,) = issues_of({block: {name: text}})
    assert (issue.loc, issue.code) == (loc, "wrong_value")
    assert "without quotes" not in issue.message
    assert all(isinstance(operation.value, str) for operation in issue.fix)


@pytest.mark.parametrize("name", ["ca", "every", "keep"])
def test_a_name_that_could_be_two_fields_is_not_guessed_at(name):
    (issue,) = issues_of({"checkpoint": {name: 3}})
    assert "Did you mean" not in issue.message
    assert issue.fix == []


@pytest.mark.parametrize(
    ("change", "loc", "words"),
    [
        ({"training": {"batch_size": "x"}}, ["training", "batch_size"], "be a whole number."),
        ({"training": 5}, ["training"], "object"),
        ({"training": {"epochs": 10**9}}, ["training", "epochs"], "be at most 1000000."),
        (
            {"evaluation": {"batch_size": "x"}},
            ["evaluation", "batch_size"],
            "'auto' or a whole number.",
        ),
        ({"optimizer": {"betas": [0.9]}}, ["optimizer", "betas", 1], "missing"),
        (
            {"schedule": {"kind": "onecycle", "div_factor": 0}},
            ["schedule", "div_factor"],
            "be at least 1.",
        ),
        ({"training": {"epochs": float("nan")}}, ["training", "epochs"], "finite"),
        ({"optimizer": {"lr": float("inf")}}, ["optimizer", "lr"], "finite"),
    ],
)
def test_an_issue_names_the_place_and_the_trouble(change, loc, words):
    (issue,) = issues_of(change)
    assert issue.loc == loc
    assert words in issue.message


@pytest.mark.parametrize(
    ("monitor", "meant"),
    [
        ("mae", "val_mae"), ("f1", "val_f1"), ("MAE", "val_mae"), ("eval_loss", "val_loss"),
        ("val/loss", "val_loss"), ("train_loss", "val_loss"), ("val_Loss", "val_loss"),
        ("lowest error!", None), ("val_", None), ("", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "block", [("checkpoint", {}), ("early_stopping", {}), ("schedule", {"kind": "plateau"})]
)
def test_a_monitor_of_no_validation_metric_is_told_in_words(block, monitor, meant):
    name, beside = block
    (issue,) = issues_of({name: {**beside, "monitor": monitor}})
    assert issue.loc == [name, "monitor"]
    assert "a metric of the validation part, whose name begins with val_." in issue.message
    assert issue.message.endswith(f" Did you mean {meant}?") == (meant is not None)
    assert [op.value for op in issue.fix] == ([] if meant is None else [meant])


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
    assert issue.loc == ["data", "split", "validation_fraction"]
    assert "below 1" in issue.message


@pytest.mark.parametrize(
    ("change", "place", "told", "values"),
    [
        (
            {"data": {"dataset": "d", "inputs": ["a", "b", "a"]}},
            "data.inputs", "tells the model nothing new", [["a", "b"]],
        ),
        (
            {"data": {"dataset": "d", "inputs": ["a"], "targets": ["y", "y"]}},
            "data.targets", "tells the model nothing new", [["y"]],
        ),
        (
            {"data": {"dataset": "d", "split": {"validation_fraction": 0.6, "test_fraction": 0.5}}},
            "data.split.validation_fraction", "hold out 110% of the samples", [0.2],
        ),
        (
            {"data": {"dataset": "d", "split": {"validation_fraction": 0.3, "test_fraction": 0.9}}},
            "data.split.validation_fraction", "nothing is left to train on", [0.2, 0.2],
        ),
        (
            {"data": {"dataset": "d", "loader": {"shuffle": "full", "shuffle_group": 64}}},
            "data.loader.shuffle_group", "full shuffles all of them", ["auto"],
        ),
        (
            {"data": {"dataset": "d", "loader": {"kind": "dataloader", "prefetch_factor": 4}}},
            "data.loader.prefetch_factor", "the trainer reads by itself", [None],
        ),
        (
            {"data": {"dataset": "d", "loader": {
                "kind": "dataloader", "prefetch_factor": 4, "persistent_workers": True}}},
            "data.loader.prefetch_factor", "the trainer reads by itself", [None, False],
        ),
        (
            {"optimizer": {"kind": "sgd", "momentum": 0.0, "nesterov": True}},
            "optimizer.nesterov", "there is nothing to look along", [False],
        ),
        (
            {"schedule": {"warmup_fraction": 0.1, "warmup_steps": 5}},
            "schedule.warmup_fraction", "two ways", [None],
        ),
        (
            {"schedule": {"kind": "cosine_warmup", "warmup_fraction": None}},
            "schedule.warmup_fraction", "neither", [0.1],
        ),
    ],
)  # fmt: skip
def test_fields_that_disagree_have_a_why_and_a_fix_of_their_own(change, place, told, values):
    (issue,) = issues_of(change)
    assert (issue.code, ".".join(map(str, issue.loc))) == ("wrong_value", place)
    assert told in issue.why
    assert [op.value for op in issue.fix] == values
    fixed = jsonpatch.apply_patch(
        {**SMALLEST, **change}, [op.model_dump(mode="json") for op in issue.fix]
    )
    assert parse_spec(with_default_kinds(fixed))[1] == []


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


def test_of_numbers_and_names_that_json_has_not_twenty_are_told_together():
    labels = {f"l{number}": {"": float("nan")} for number in range(15)}
    spec, issues = parse_spec({**SMALLEST, "labels": labels})
    assert spec is None
    assert [issue.code for issue in issues[20:]] == ["more_issues"]
    assert issues[20].message.startswith("10 more")


def test_a_field_of_another_kind_is_not_said_to_be_meant_by_itself():
    (issue,) = issues_of({"schedule": {"kind": "constant", "warmup_steps": 5}})
    assert issue.message == "There is no field schedule.warmup_steps in this kind of schedule."
    assert [op.model_dump() for op in issue.fix] == [
        {"op": "remove", "path": "/schedule/warmup_steps"}
    ]


@pytest.mark.parametrize(
    "split",
    [
        {"method": "chronological"},
        {"method": "datasets", "validation": "later"},
        {"method": "field", "field": "part"},
        {"method": "groups", "field": "game"},
    ],
    ids=lambda split: split["method"],
)
def test_a_seed_of_a_split_that_draws_nothing_is_taken_out(split: dict[str, Any]):
    (issue,) = issues_of({"data": {"dataset": "x", "split": {**split, "seed": 3}}})
    assert issue.message == "There is no field data.split.seed in this kind of split."
    assert issue.why.startswith("It belongs to method random")
    assert [op.model_dump() for op in issue.fix] == [{"op": "remove", "path": "/data/split/seed"}]


def test_a_field_named_as_its_kind_keeps_its_place():
    split: dict[str, Any] = {"method": "field", "field": 3}
    (issue,) = issues_of({"data": {"dataset": "x", "split": split}})
    assert issue.loc == ["data", "split", "field"]
    del split["field"]
    (issue,) = issues_of({"data": {"dataset": "x", "split": split}})
    assert (issue.code, issue.loc) == ("missing_field", ["data", "split", "field"])


def test_a_wrong_value_is_told_what_the_field_is():
    (issue,) = issues_of({"training": {"epochs": "many"}})
    assert issue.why == "training.epochs: Passes over the training part; default 5."
    (issue,) = issues_of({"data": {"dataset": "d", "loader": {"chunk_size": -1}}})
    assert issue.why.startswith("data.loader.chunk_size: ")


def test_a_wrong_value_is_told_what_the_field_is_in_its_own_kind():
    (issue,) = issues_of({"schedule": {"kind": "cosine_warmup", "warmup_fraction": 2}})
    assert issue.why.endswith("Share of all steps spent warming up, 0 to 1; default 0.1, null with "
                              "warmup_steps.")  # fmt: skip
    (issue,) = issues_of({"schedule": {"kind": "cosine"}})
    told = "schedule.kind: cosine_warmup, Cosine with warm-up: Loshchilov & Hutter, 2017."
    assert issue.why == told, "of the kind that is meant alone"
    (issue,) = issues_of({"schedule": {"kind": "bent"}})
    assert "onecycle, One cycle: Smith & Topin, 2018;" in issue.why, "where nobody knows, of all"
    (issue,) = issues_of({"optimizer": {"kind": "sgd", "weight_decay": -1}})
    assert issue.why == "optimizer.weight_decay: L2 penalty; default 0."
