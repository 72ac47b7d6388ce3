"""Where the guard says that a restart carries weights, the trainer finds no difference."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from app.planning.carry import carry_between
from app.spec.installed import RECIPES
from app.spec.layers import Document
from app.spec.run import RunSpec
from tests.trainer.lab import BASE_SPEC, merged
from worker.trainer.checkpoints import matching
from worker.trainer.data.source import Field, arrays_of
from worker.trainer.recipes import task_of
from worker.trainer.recipes.base import Task

UNSCALED = {"standardize": {"inputs": False, "targets": False}}


def field(kind: str, *shape: int, rows: float | None = None) -> Field:
    return Field(shape, np.dtype(kind), rows)


@dataclass(frozen=True)
class Trained:
    """A spec, as a patch of the lab's, and the arrays that it is trained on."""

    patch: Mapping[str, Any]
    fields: Mapping[str, Field]

    @property
    def spec(self) -> RunSpec:
        return RunSpec.model_validate_json(json.dumps(merged(BASE_SPEC, dict(self.patch))))

    @property
    def task(self) -> Task:
        return task_of(self.spec.recipe.kind).for_run(self.spec, self.fields)

    @property
    def model(self) -> nn.Module:
        task = self.task
        return task.build_model({}, task.made_up_tables())

    @property
    def shape(self) -> Document:
        """As the guard stores it with the run."""
        spec = self.spec
        shapes = spec.recipe.shape(spec.data, arrays_of(self.fields))
        found: Document = json.loads(json.dumps({"recipe": spec.recipe.shape_values(), **shapes}))
        return found

    def changed(self, recipe: Mapping[str, Any], fields: Mapping[str, Field]) -> "Trained":
        patch = {**self.patch, "recipe": merged(dict(self.patch["recipe"]), dict(recipe))}
        return replace(self, patch=patch, fields={**self.fields, **fields})


def past(feature: int) -> Field:
    """Windows whose feature of this number is the target's past."""
    return replace(field("f4", 12, 3), target_feature=feature)


SEQUENCE = Trained(
    {"recipe": {"kind": "sequence", "encoder": "gru", "hidden_size": 8, "patch": 3}},
    {"features": past(0), "targets": field("f4", 4)},
)
PAST: list[tuple[dict[str, Any], dict[str, Field]]] = [
    ({"residual": "last"}, {}),
    ({"highway": 6}, {}),
    ({"normalize": "window"}, {}),
    ({"residual": "last"}, {"features": past(1)}),
    ({"loss": "quantile", "quantiles": [0.2, 0.8]}, {}),
]
TIMEFRAMES = Trained(
    {**SEQUENCE.patch, "data": {"inputs": ["features", "slow"]}},
    {**SEQUENCE.fields, "slow": field("f4", 6, 2)},
)
PANEL = Trained(
    {
        "recipe": {
            "kind": "panel-graph", "encoder": "gru", "hidden_size": 8, "patch": 3,
            "horizons": [5, 20], "graph": {"neighbors": 2}, "top_frequencies": 0,
            "highway": 0, "date_means": False,
        },
        "data": {"inputs": ["features", "present", "date"], "targets": ["targets", "known"]},
        "evaluation": {"metrics": ["mae"]},
    },
    {
        "features": field("f4", 12, 6, 2), "present": field("u1", 12, 6), "date": field("i4"),
        "targets": field("f4", 6, 2), "known": field("u1", 6, 2),
    },
)  # fmt: skip
BOARD = Trained(
    {
        "recipe": {
            "kind": "board", "stage": "legal", "planes": 2, "board": [4, 4], "moves": 32,
            "channels": 16, "blocks": 1,
        },
        "data": {"inputs": ["planes"], "targets": ["legal"], **UNSCALED},
        "evaluation": {"metrics": ["f1"]},
    },
    {"planes": field("u1", 4), "legal": field("u1", 4)},
)  # fmt: skip
MOLECULE = Trained(
    {
        "recipe": {
            "kind": "molecule", "task": "classification", "hidden_size": 16, "num_layers": 1,
        },
        "data": {"inputs": ["molecules"], "targets": ["targets"], **UNSCALED},
        "evaluation": {"metrics": ["accuracy"]},
    },
    {
        "molecules": field("u1", 3, rows=6.5),
        "molecules/counts": field("i8", 2),
        "molecules/samples": field("i8", rows=6.5),
        "molecules/edges": field("i8", 2, rows=7.5),
        "molecules/edge_values": field("u1", 2, rows=7.5),
        "targets": field("f4"),
    },
)  # fmt: skip

# Every field of a recipe with other values, and the arrays that have another shape then.
Change = tuple[Mapping[str, Any], Mapping[str, Field]]
LARGER: list[Change] = [
    ({"hidden_size": 16}, {}),
    ({"num_layers": 2}, {}),
    ({"dropout": 0.1}, {}),
    ({"loss": "mse"}, {}),
]
ENCODED: list[Change] = [
    *LARGER,
    ({"encoder": "lstm"}, {}),
    ({"encoder": "transformer"}, {}),
    ({"patch": 1}, {}),
]
CHANGES: dict[str, tuple[Trained, list[Change]]] = {
    "sequence": (
        SEQUENCE,
        [
            *ENCODED,
            ({"carry_hidden": True}, {}),
            ({"fusion": "attention"}, {}),
            *PAST,
            ({}, {"features": past(1)}),
            ({"encoder": "transformer", "num_heads": 2}, {}),
            ({}, {"features": field("f4", 24, 3)}),
            ({}, {"features": field("f4", 12, 9)}),
            ({"patch": 1}, {"features": field("f4", 12, 9)}),
            ({}, {"targets": field("f4", 2, 2)}),
        ],
    ),
    "timeframes": (
        TIMEFRAMES,
        [
            *ENCODED,
            ({"num_heads": 2}, {}),
            ({"carry_hidden": ["slow"]}, {}),
            ({"fusion": "attention"}, {}),
            *PAST,
            ({}, {"features": past(1)}),
            ({}, {"features": field("f4", 24, 3), "slow": field("f4", 12, 2)}),
            ({}, {"slow": field("f4", 6, 3)}),
        ],
    ),
    "panel-graph": (
        PANEL,
        [
            *ENCODED,
            ({"num_heads": 2}, {}),
            ({"horizons": [5, 10]}, {}),
            ({"horizons": [5]}, {"targets": field("f4", 6, 1), "known": field("u1", 6, 1)}),
            ({"top_frequencies": 2}, {}),
            ({"highway": 6}, {}),
            ({"variable_selection": True}, {}),
            ({"slice_dates": 4}, {}),
            ({"date_means": True}, {}),
            ({"loss": "huber"}, {}),
            ({"rank_loss": True}, {}),
            ({"loss": "quantile"}, {}),
            ({"loss": "quantile", "quantiles": [0.1, 0.9]}, {}),
            ({"graph": None}, {}),
            ({"graph": {"layers": 2}}, {}),
            ({"graph": {"edges": "correlation"}}, {}),
            ({"graph": {"neighbors": 3, "feature": 1, "lookback": 60, "rebuild_every": 5}}, {}),
            ({}, {"features": field("f4", 24, 6, 2), "present": field("u1", 24, 6)}),
            ({}, {"features": field("f4", 12, 6, 4)}),
            ({"top_frequencies": 1}, {"features": field("f4", 12, 6, 4)}),
            ({}, {
                "features": field("f4", 12, 7, 2), "present": field("u1", 12, 7),
                "targets": field("f4", 7, 2), "known": field("u1", 7, 2),
            }),
        ],
    ),
    "board": (
        BOARD,
        [
            ({"channels": 24}, {}),
            ({"blocks": 2}, {}),
            ({"planes": 4}, {"planes": field("u1", 8)}),
            ({"board": [2, 8]}, {}),
            ({"moves": 30}, {}),
        ],
    ),
    "molecule": (
        MOLECULE,
        [
            *LARGER,
            ({"values": 64}, {}),
            ({"mask_fraction": 0.3}, {}),
            ({"classes": 3}, {}),
            ({"readout": "sum"}, {}),
            ({}, {"targets": field("f4", 3)}),
            ({}, {"molecules": field("u1", 4, rows=6.5)}),
            ({}, {"molecules/edge_values": field("u1", 3, rows=7.5)}),
        ],
    ),
}  # fmt: skip
# These change what an array means, and with it the spec.
ELSEWHERE = {
    "board": {"stage"}, "molecule": {"task"},
    "sequence": {"task", "classes"}, "timeframes": {"task", "classes"},
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_guard_lets_a_restart_carry_the_trainer_takes(name: str) -> None:
    parent, changes = CHANGES[name]
    manifest = {"recipe": json.loads(json.dumps(parent.task.parameters_json()))}
    weights, before = parent.model.state_dict(), parent.spec.model_dump(mode="json")
    kinds = set()  # with nothing changed, weights: the dataset was registered anew
    for recipe, fields in [({}, {}), *changes]:
        child = parent.changed(recipe, fields)
        after = child.spec.model_dump(mode="json")
        carry = carry_between(
            before, after, (parent.spec.data.dataset,), (parent.shape, child.shape)
        )
        told = [
            *matching.of_the_recipe(child.task, manifest),
            *matching.of_the_weights(child.model, weights),
        ]
        assert carry.kind == "scratch" or not told, (recipe, fields)
        kinds.add(carry.kind)
    assert kinds == {"weights", "scratch"}
    recipe_fields = set(RECIPES[before["recipe"]["kind"]].model_fields) - {"kind", "version"}
    named = {one for recipe, _ in changes for one in recipe} | ELSEWHERE.get(name, set())
    assert named >= recipe_fields - ({"num_heads"} if name == "sequence" else set())


def test_weights_that_read_another_past_are_not_carried() -> None:
    parent = SEQUENCE.changed({"residual": "last"}, {})
    child = parent.changed({}, {"features": past(1)})
    before, after = (one.spec.model_dump(mode="json") for one in (parent, child))
    assert carry_between(before, after, ("waves",), (parent.shape, child.shape)).kind == "scratch"
    manifest = json.loads(json.dumps(parent.task.parameters_json()))
    [told] = matching.of_the_recipe(child.task, {"recipe": manifest})
    assert told == "past is [0, 0] there and [0, 1] in this run"


def test_horizons_of_other_lengths_are_other_forecasts() -> None:
    """As many of them, and so weights that would fit."""
    other = PANEL.changed({"horizons": [5, 10]}, {})
    before, after = (one.spec.model_dump(mode="json") for one in (PANEL, other))
    carry = carry_between(before, after, (), (PANEL.shape, other.shape))
    assert (carry.kind, carry.changed) == ("scratch", ("/recipe/horizons",))
    [told] = matching.of_the_recipe(other.task, {"recipe": PANEL.task.parameters_json()})
    assert told == "horizons is [5, 20] there and [5, 10] in this run"


def test_a_longer_window_needs_no_other_weights_where_no_place_in_it_has_its_own() -> None:
    longer = {"features": field("f4", 24, 6, 2), "present": field("u1", 24, 6)}
    for recipe, is_carried in (({}, True), ({"top_frequencies": 1}, False)):
        parent, child = PANEL.changed(recipe, {}), PANEL.changed(recipe, longer)
        before, after = (one.spec.model_dump(mode="json") for one in (parent, child))
        carry = carry_between(before, after, ("waves",), (parent.shape, child.shape))
        told = [
            *matching.of_the_recipe(child.task, {"recipe": parent.task.parameters_json()}),
            *matching.of_the_weights(child.model, parent.model.state_dict()),
        ]
        assert (carry.kind == "weights", not told) == (is_carried, is_carried)


def test_a_checkpoint_that_has_no_word_for_a_field_is_gone_on_from() -> None:
    """Of an earlier version, which did as the default does."""
    manifest = PANEL.task.parameters_json()
    del manifest["horizons"], manifest["graph"]
    assert list(matching.of_the_recipe(PANEL.task, {"recipe": manifest})) == []
