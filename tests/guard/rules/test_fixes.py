"""Fixes over a preset: they mend what they name, and leave what the preset says as it is."""

from typing import Any

import pytest

from app.guard.facts import Facts
from app.guard.patching import apply_json_patch
from app.guard.plan import RunPlan, make_plan
from app.guard.presets.catalog import Catalog, PresetLayer
from app.spec.layers import overlay
from tests.guard.cases import CASES
from tests.guard.unnamed import unnamed_changes
from tests.guard.world import REQUEST, world

OF_A_REQUEST = ("accept_risks", "loss_weights", "preset")


def over(preset: dict[str, Any], request: dict[str, Any], facts: Facts) -> RunPlan:
    """The plan of a request that lies on a user's preset."""
    mine = PresetLayer(name="mine", description="Mine.", spec=preset, source="user")
    whole = overlay({**REQUEST, "preset": "mine"}, request)
    return make_plan(whole, facts, Catalog({"mine": mine}, {}))


def mended(plan: RunPlan, code: str, preset: dict[str, Any], facts: Facts) -> RunPlan:
    """The plan after the fix of the first issue with this code, of which nothing else changes."""
    issue = next(issue for issue in plan.issues if issue.code == code)
    assert issue.fix
    operations = [op.model_dump(mode="json") for op in issue.fix]
    after = over(preset, apply_json_patch(plan.request, operations), facts)
    assert after.spec is not None
    assert code not in [issue.code for issue in after.issues]
    assert unnamed_changes(plan, after, issue.fix) == set()
    return after


@pytest.mark.parametrize(
    ("preset", "request_", "code", "block", "expected"),
    [
        (
            {"training": {"batch_size": 1024},
             "schedule": {"kind": "cosine_warmup", "warmup_fraction": 0.0}},
            {}, "learning.no_warmup", "schedule",
            {"kind": "cosine_warmup", "warmup_fraction": 0.1},
        ),
        (
            {"optimizer": {"kind": "adam", "lr": 0.002, "weight_decay": 0.1}},
            {}, "learning.adam_weight_decay", "optimizer",
            {"kind": "adamw", "lr": 0.002, "weight_decay": 0.1},
        ),
        (
            {"optimizer": {"kind": "adam", "lr": 0.002, "weight_decay": 0.1}},
            {"optimizer": {"kind": "adam", "lr": 0.003}}, "learning.adam_weight_decay", "optimizer",
            {"kind": "adamw", "lr": 0.003, "weight_decay": 0.1},
        ),
        (
            {"optimizer": {"kind": "sgd", "lr": 0.1, "nesterov": True, "momentum": 0.9}},
            {"weight_decay": 0.2}, "unknown_field", "optimizer",
            {"kind": "sgd", "lr": 0.1, "nesterov": True, "weight_decay": 0.2},
        ),
    ],
    ids=["warm-up", "adam", "adam over adam", "alias"],
)  # fmt: skip
def test_a_block_that_a_fix_opens_stays_as_the_preset_has_it(
    preset, request_, code, block, expected
):
    plan = over(preset, request_, world())
    issue = next(issue for issue in plan.issues if issue.code == code)
    operations = [op.model_dump(mode="json") for op in issue.fix]
    after = over(preset, apply_json_patch(plan.request, operations), world())
    assert {**after.require_ok()[block], **expected} == after.require_ok()[block]


def test_a_block_that_is_none_gets_its_issue_and_no_more():
    preset = {"optimizer": {"kind": "sgd"}, "data": {"loader": {"kind": "chunked"}}}
    plan = over(preset, {"optimizer": 3, "batch_size": 8, "data": {"loader": None}}, world())
    assert {issue.loc[0] for issue in plan.errors} == {"optimizer", "batch_size", "data"}


@pytest.mark.parametrize("code", sorted(CASES))
def test_a_fix_of_what_stands_in_a_preset_changes_nothing_else(code):
    """Each rule's case, said by the preset; what a preset cannot say is left to the request."""
    case = CASES[code]
    request = {name: case.found[name] for name in OF_A_REQUEST if name in case.found}
    if "kind" in case.found.get("recipe", {}):  # a request has one, and its own
        request["recipe"] = case.found["recipe"]
    if "preset" in request:
        return  # it names another
    preset = {name: value for name, value in case.found.items() if name not in request}
    if "dataset" in preset.get("data", {}):
        request["data"] = {"dataset": preset["data"]["dataset"]}
        preset = {name: value for name, value in preset.items() if name != "data"}
    plan = over(preset, request, case.facts)
    issue = next(issue for issue in plan.issues if issue.code == code)
    if issue.fix:
        mended(plan, code, preset, case.facts)
    else:
        assert not case_is_mended(code)


def case_is_mended(code: str) -> bool:
    """Whether the same fix is offered when the request itself says it."""
    case = CASES[code]
    plan = make_plan(overlay(REQUEST, case.found), case.facts, Catalog({}, {}))
    return any(issue.fix for issue in plan.issues if issue.code == code)


SETS = {
    "training": {"epochs": 9, "batch_size": 64, "gradient_accumulation_steps": 2},
    "optimizer": {"kind": "sgd", "lr": 0.1},
    "runtime": {"threads": 1},
    "checkpoint": {"keep_last": 3},
    "data": {
        "loader": {"chunk_size": "50%", "shuffle": "none"},
        "split": {"validation_fraction": 0.1},
    },
}


def test_whatever_a_preset_changes_beside_how_it_computes_is_said_aloud():
    plan = over(SETS, {"optimizer": {"kind": "sgd", "lr": 0.2}}, world())
    said = {".".join(map(str, issue.loc)): issue for issue in plan.issues}
    assert {place: issue.code for place, issue in said.items()} == {
        "training.epochs": "learning.preset_setting",
        "training.batch_size": "learning.preset_batch_size",
        "training.gradient_accumulation_steps": "learning.preset_setting",
        "data.loader.shuffle": "learning.preset_setting",
        "data.split.validation_fraction": "learning.preset_setting",
    }
    assert said["training.epochs"].message == "The preset mine sets training.epochs to 9."
    assert {issue.severity for issue in plan.issues} == {"warning"}


@pytest.mark.parametrize("place", ["training.epochs", "optimizer.kind", "optimizer.lr"])
def test_what_was_said_aloud_is_not_said_of_a_request_that_says_it_itself(place):
    plan = over(SETS, {}, world())
    issue = next(one for one in plan.issues if ".".join(map(str, one.loc)) == place)
    operations = [op.model_dump(mode="json") for op in issue.fix]
    after = over(SETS, apply_json_patch(plan.request, operations), world())
    assert place not in [".".join(map(str, one.loc)) for one in after.issues]
    assert after.spec == plan.spec
