"""Molecules: what gives their models a shape, and so which weights fit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import DatasetFacts, FieldFacts
from app.guard.plan import RunPlan
from app.planning.carry import carry_between
from app.spec.layers import Document
from tests.guard.changes import GRAPHS, PRETRAINED
from tests.guard.world import FIELDS, WEATHER, plan_of, world

MASKED: dict[str, Any] = {
    "recipe": {"kind": "molecule", "task": "masked"},
    "data": {
        "dataset": "molecules",
        "inputs": ["molecules"],
        "targets": ["molecules"],
        "standardize": {"inputs": False, "targets": False},
    },
}


def file_of(atoms: int = 8, bonds: int = 4, name: str = "molecules") -> DatasetFacts:
    """Whose atoms and bonds have so many features; `name`: of their array."""
    assert GRAPHS.edges is not None
    graphs = replace(GRAPHS, shape=(atoms,), edges=replace(GRAPHS.edges, shape=(bonds,)))
    return replace(WEATHER, name="molecules", fields={**FIELDS, name: graphs})


def planned(dataset: DatasetFacts, change: Mapping[str, Any] = MASKED, **more: Any) -> RunPlan:
    plan = plan_of(change, world(dataset, history=None, **more))
    assert plan.errors == []
    return plan


# As earlier versions stored it.
OLDER: Document = {
    "recipe": {"task": "masked", "hidden_size": 64, "num_layers": 4, "values": 128, "classes": 2},
    "atoms": [8],
    "bonds": [4],
}


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (file_of(), None),
        (file_of(atoms=9), "molecules has 9 values a row, not 8."),
        (file_of(bonds=5), "molecules/edge_values has 5 values a row, not 4."),
    ],
)
def test_a_file_of_other_features_needs_scratch(now: DatasetFacts, why: str | None) -> None:
    """Whatever else is the same: the embeddings have a row for each value of each feature."""
    parent, child = planned(file_of()), planned(now)
    assert parent.spec is not None
    assert child.spec is not None
    found = carry_between(parent.spec, child.spec, ("molecules",), (parent.shape, child.shape))
    assert found.kind == ("scratch" if why else "weights")
    assert why is None or why in found.why
    older = carry_between(parent.spec, child.spec, ("molecules",), (OLDER, child.shape))
    assert (older.kind, older.why) == (found.kind, found.why)


RULE = "learning.init_from_other_shape"
BEGIN: dict[str, Any] = {**MASKED, "init_from": {"run": 7}, "optimizer": {"lr": 1e-4}}


def begun(shape: Document | None, dataset: DatasetFacts, change: Mapping[str, Any]) -> RunPlan:
    """With the weights of a run whose shape was stored so."""
    source = replace(PRETRAINED, recipe="molecule", shape=shape)
    return planned(dataset, change, source=source)


def told(plan: RunPlan) -> list[str]:
    return [issue.message for issue in plan.issues if issue.code == RULE]


@pytest.mark.parametrize("stored", ["now", "before"])
def test_weights_to_begin_with_are_compared_with_what_was_stored(stored: str) -> None:
    shape = OLDER if stored == "before" else planned(file_of()).shape
    assert told(begun(shape, file_of(), BEGIN)) == []
    shallow = {**BEGIN, "recipe": {**MASKED["recipe"], "num_layers": 2}}
    (message,) = told(begun(shape, file_of(), shallow))
    assert "num_layers is 4 there and 2 here" in message
    (message,) = told(begun(shape, file_of(atoms=9), BEGIN))
    name = "atoms" if stored == "before" else "molecules"
    assert f"{name} is [8] there and {'molecules ' * (stored == 'before')}[9] here" in message
    (message,) = told(begun(shape, file_of(bonds=5), BEGIN))
    assert "is [4] there and" in message


@pytest.mark.parametrize("stored", ["now", "before"])
def test_arrays_of_other_names_are_compared_by_their_place(stored: str) -> None:
    """The weights of a model know no names of arrays."""
    shape = OLDER if stored == "before" else planned(file_of()).shape
    data = {**MASKED["data"], "inputs": ["corpus"], "targets": ["corpus"]}
    renamed = {**BEGIN, "data": data}
    assert told(begun(shape, file_of(name="corpus"), renamed)) == []
    (message,) = told(begun(shape, file_of(atoms=9, name="corpus"), renamed))
    assert "is [8] there and corpus [9] here" in message


def test_what_was_not_stored_is_said_to_be_unchecked() -> None:
    recipe: Document = {"recipe": OLDER["recipe"]}
    plan = begun(recipe, file_of(), BEGIN)
    assert told(plan) == []
    (unchecked,) = [one for one in plan.unchecked if one.code == RULE]
    assert "the shapes of the inputs of run 7" in unchecked.missing


REGRESSION: dict[str, Any] = {
    "recipe": {"kind": "molecule", "task": "regression"},
    "data": {"dataset": "molecules", "inputs": ["molecules"], "targets": ["labels"]},
}


def with_labels(shape: tuple[int, ...], nonfinite: int = 0) -> DatasetFacts:
    file = file_of()
    labels = FieldFacts(shape, "float32", nonfinite=nonfinite, mean=0.0, std=1.0)
    return replace(file, fields={**file.fields, "labels": labels})


def test_missing_labels_are_no_error() -> None:
    """In inputs they are, and in targets of a recipe that does not leave them out."""
    planned(with_labels((3,), nonfinite=7), REGRESSION)
    torn = replace(FIELDS["targets"], nonfinite=7)
    plan = plan_of({}, world(replace(WEATHER, fields={**FIELDS, "targets": torn})))
    assert [issue.code for issue in plan.errors] == ["correctness.nonfinite_values"]


def test_another_number_of_targets_needs_scratch() -> None:
    parent, child = (planned(with_labels(shape), REGRESSION) for shape in ((1,), (3,)))
    assert parent.spec is not None
    assert child.spec is not None
    carry = carry_between(parent.spec, child.spec, ("molecules",), (parent.shape, child.shape))
    assert carry.kind == "scratch"
    assert "labels has 3 values, not 1." in carry.why
