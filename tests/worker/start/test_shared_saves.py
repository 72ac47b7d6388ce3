"""Whether two scripts that run at the same time may take each other's saves for their own."""

import json

import pytest

from app.spec.script import ScriptSpec
from worker.start.shared_saves import may_meet, shared_saves


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("/p/out/checkpoint-*", "/p/out/checkpoint-*", True),
        ("/p/out/checkpoint-*", "/p/out/*", True),
        ("/p/out/*.pt", "/p/out/last.pt", True),
        ("/p/out", "/p/out/step-*/model.pt", True),
        ("/p/*/ckpt-[0-9].pt", "/p/a/ckpt-7.pt", True),
        ("/p/a*/x-*", "/p/ab/x-1", True),
        ("/p/out/*.pt", "/p/out/*.ckpt", False),
        ("/p/a/checkpoint-*", "/p/b/checkpoint-*", False),
        ("/p/out/last.pt", "/p/out/best.pt", False),
        ("/p/out-a*/x", "/p/out-b*/x", False),
    ],
)
def test_patterns_that_may_match_the_same(one, other, meet):
    assert may_meet(one, other) is meet
    assert may_meet(other, one) is meet


def spec(cwd, *checkpoints):
    recipe = {"kind": "script", "argv": ["/bin/true"], "cwd": cwd, "checkpoints": checkpoints}
    return ScriptSpec.model_validate_json(json.dumps({"recipe": recipe}))


def test_each_other_run_there_is_named_once_and_none_elsewhere():
    running = {
        7: spec("/p", "out/*.pt"),  # itself
        8: spec("/p/out", "a-*.pt", "*.pt"),
        9: spec("/q", "out/*.pt"),
        10: spec("/p"),
        11: spec("/", "p/../p/out/last.pt"),
    }
    stored = {run: one.model_dump(mode="json") for run, one in running.items()}
    told = shared_saves(7, running[7], stored)
    assert {event.data["code"] for event in told} == {"shared_checkpoints"}
    assert [event.data["message"].split(" runs")[0] for event in told] == ["Run 8", "Run 11"]
    assert "(out/*.pt)" in told[0].data["message"]
