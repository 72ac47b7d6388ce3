"""What a restart carries, row by row, as the documents say it and not as the code does.

Contract, section 3: the whole training state where only epochs, steps, policy, evaluation,
checkpoint, logging, loader or runtime change; a changed schedule, optimizer or batch carries the
weights and says what starts anew; a changed shape needs `scratch`. Design, section 4: what the
recipe declares as shape is compared, the shapes of the data with it.
"""

from dataclasses import replace
from typing import Any

import pytest

from app.guard.facts import DatasetFacts
from app.guard.plan import RunPlan
from app.planning.carry import CarryPlan, carry_between
from tests.guard.world import FIELDS, WEATHER, plan_of, world

ANEW = {"optimizer state", "learning-rate schedule", "order of samples", "step count"}


def dataset(name: str, window: int = 360, features: int = 15, horizon: int = 36) -> DatasetFacts:
    inputs = replace(FIELDS["features"], shape=(window, features))
    targets = replace(FIELDS["targets"], shape=(horizon,))
    arrays = {"features": inputs, "targets": targets, "other": inputs, "goals": targets}
    return replace(WEATHER, name=name, fields=arrays)


DATASETS = (
    dataset("weather"),
    dataset("later"),
    dataset("longer", window=720),
    dataset("wider", features=16),
    dataset("farther", horizon=48),
)


def planned(change: dict[str, Any]) -> RunPlan:
    return plan_of(change, world(*DATASETS))


def carried(change: dict[str, Any], before: dict[str, Any] | None = None) -> CarryPlan:
    parent, child = planned(before or {}), planned(change)
    assert parent.spec is not None, parent.issues
    assert child.spec is not None, child.issues
    return carry_between(parent.spec, child.spec, (), (parent.shape, child.shape))


WHOLE: list[dict[str, Any]] = [
    {},
    {"training": {"epochs": 9}},
    {"training": {"max_steps": 77}},
    {"policy": {"max_retries": 0}},
    {"policy": {"on_oom": "fail"}},
    {"policy": {"max_duration_seconds": 60}},
    {"evaluation": {"every_steps": 5}},
    {"evaluation": {"batch_size": 32}},
    {"evaluation": {"metrics": ["mae", "rmse"]}},
    {"checkpoint": {"every_seconds": 60}},
    {"checkpoint": {"keep_last": 5}},
    {"training": {"log_every_steps": 3}},
    {"data": {"loader": {"residency": "stream"}}},
    {"data": {"loader": {"chunk_size": "64MiB"}}},
    {"data": {"loader": {"kind": "dataloader", "num_workers": 2}}},
    {"runtime": {"threads": 1}},
    {"runtime": {"precision": "fp32"}},
    {"runtime": {"device": "cpu"}},
    {"runtime": {"compile": {"mode": "default"}}},
    {"runtime": {"deterministic": True}},
    {"name": "again", "notes": "x", "labels": {"a": "b"}, "priority": 3},
    {"accept_risks": ["speed.*"]},
    {"training": {"epochs": 9}, "runtime": {"threads": 1}, "policy": {"max_retries": 1}},
]
WEIGHTS: list[tuple[dict[str, Any], str]] = [
    ({"schedule": {"kind": "constant"}}, "/schedule/kind"),
    ({"schedule": {"warmup_fraction": 0.1}}, "/schedule/warmup_fraction"),
    ({"schedule": {"kind": "plateau"}}, "/schedule/kind"),
    ({"averaging": {"kind": "ema"}}, "/averaging/kind"),
    ({"optimizer": {"lr": 0.01}}, "/optimizer/lr"),
    ({"optimizer": {"kind": "sgd"}}, "/optimizer/kind"),
    ({"optimizer": {"weight_decay": 0.1}}, "/optimizer/weight_decay"),
    ({"training": {"batch_size": 64}}, "/training/batch_size"),
    ({"training": {"gradient_accumulation_steps": 2}}, "/training/gradient_accumulation_steps"),
    ({"data": {"dataset": "later"}}, "/data/dataset"),
    # Steps of a sample are no parameters: the same weights go over more of them.
    ({"data": {"dataset": "longer"}}, "/data/dataset"),
    # What the documents do not name and is no part of the whole state's meaning.
    ({"training": {"seed": 1}}, "/training/seed"),
    ({"recipe": {"loss": "mse"}}, "/recipe/loss"),
    ({"recipe": {"dropout": 0.1}}, "/recipe/dropout"),
    ({"data": {"split": {"validation_fraction": 0.1}}}, "/data/split/validation_fraction"),
    # Of the loader alone its order: the place in it would be one of another order.
    ({"data": {"loader": {"shuffle": "none"}}}, "/data/loader/shuffle"),
]
SCRATCH: list[tuple[dict[str, Any], str, str]] = [
    ({"recipe": {"hidden_size": 32}}, "/recipe/hidden_size", "recipe.hidden_size changed"),
    ({"recipe": {"num_layers": 2}}, "/recipe/num_layers", "recipe.num_layers changed"),
    ({"recipe": {"encoder": "gru"}}, "/recipe/encoder", "recipe.encoder changed"),
    ({"recipe": {"patch": 12}}, "/recipe/patch", "recipe.patch changed"),
    ({"data": {"inputs": ["other"]}}, "/data/inputs", "data.inputs changed"),
    ({"data": {"targets": ["goals"]}}, "/data/targets", "data.targets changed"),
    ({"data": {"dataset": "wider"}}, "/data/dataset", "features has 16 values a row, not 15"),
    ({"data": {"dataset": "farther"}}, "/data/dataset", "targets has 48 values, not 36"),
    # A shape goes before all else that changed.
    ({"recipe": {"hidden_size": 32}, "optimizer": {"lr": 0.01}, "training": {"epochs": 9}},
     "/recipe/hidden_size", "recipe.hidden_size changed"),
]  # fmt: skip


@pytest.mark.parametrize("change", WHOLE, ids=str)
def test_the_whole_training_state(change):
    carry = carried(change)
    assert (carry.kind, carry.starts_anew) == ("full", ())


@pytest.mark.parametrize(("change", "decided"), WEIGHTS, ids=str)
def test_the_weights_and_what_starts_anew(change, decided):
    carry = carried(change)
    assert carry.kind == "weights"
    assert set(carry.starts_anew) == ANEW
    assert decided in carry.changed
    assert decided.strip("/").replace("/", ".") in carry.why


@pytest.mark.parametrize(("change", "decided", "why"), SCRATCH, ids=str)
def test_another_shape_needs_scratch(change, decided, why):
    carry = carried(change)
    assert carry.kind == "scratch"
    assert set(carry.starts_anew) == {"weights"} | ANEW
    assert decided in carry.changed
    assert why in carry.why


def test_another_file_of_the_same_name_carries_by_its_shape():
    """Registered anew since the parent trained: `other_data`, and the shapes of then and now."""
    parent = planned({})
    assert parent.spec is not None
    for now, kind in (("later", "weights"), ("wider", "scratch"), ("farther", "scratch")):
        shape = planned({"data": {"dataset": now}}).shape
        carry = carry_between(parent.spec, parent.spec, {"weather"}, (parent.shape, shape))
        assert carry.kind == kind
    unknown = carry_between(parent.spec, parent.spec, {"weather"}, (None, parent.shape))
    assert unknown.kind == "weights"  # then the trainer's comparison decides
