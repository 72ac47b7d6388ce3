"""What `--fix` does where two fixes have to do with each other."""

import json
from typing import Any

from app.cli.specs.fixing import mend
from app.guard.plan import make_plan
from app.spec.parse import parse_spec
from tests.guard.world import CATALOG, REQUEST, world


def test_what_a_preset_brings_is_not_written_down_where_the_preset_is_changed():
    def planned(request: dict[str, Any]) -> dict[str, Any]:
        plan = make_plan(request, world(), CATALOG)
        return {"issues": [issue.model_dump(mode="json") for issue in plan.issues]}

    asked = {**REQUEST, "preset": "h200", "runtime": {"device": "cpu", "precision": "fp32"}}
    asked["training"] = {"epochs": 50}
    found = {issue["code"] for issue in planned(asked)["issues"]}
    assert {"memory.preset_too_large", "learning.preset_batch_size"} <= found
    mended = mend(asked, planned, warnings=True)
    assert mended.request.get("preset", "auto") != "h200"
    assert "batch_size" not in mended.request.get("training", {})


def test_warnings_are_mended_by_what_the_errors_left():
    """A rate for an effective batch that is refused is no rate for the one that takes its place."""

    def planned(request: dict[str, Any]) -> dict[str, Any]:
        plan = make_plan(request, world(), CATALOG)
        return {"issues": [issue.model_dump(mode="json") for issue in plan.issues]}

    training = {"batch_size": 512, "gradient_accumulation_steps": 64, "drop_last": True}
    asked = {**REQUEST, "training": training, "optimizer": {"lr": 0.5}}
    usual = mend(mend(asked, planned).request, planned, warnings=True)
    at_once = mend(asked, planned, warnings=True)
    assert at_once.request == usual.request


def test_a_key_that_gets_another_name_keeps_its_place():
    def planned(request: dict[str, Any]) -> dict[str, Any]:
        return {"issues": [issue.model_dump(mode="json") for issue in parse_spec(request)[1]]}

    asked = {
        "optimiser": {"learning_rate": 0.1, "kind": "adam"},
        "trainin": {"max_epochs": 4, "batchsize": "64", "seed": 1},
        "recipe": {"kind": "sequence"},
        "hidden_dim": 8,
        "data": {"dataset": "waves"},
    }
    mended = mend(asked, planned)
    assert mended.is_accepted
    assert json.dumps(mended.request) == json.dumps(
        {
            "optimizer": {"lr": 0.1, "kind": "adam"},
            "training": {"epochs": 4, "batch_size": 64, "seed": 1},
            "recipe": {"kind": "sequence", "hidden_size": 8},
            "data": {"dataset": "waves"},
        }
    )
