"""CUDA graphs: what the guard says of them, and what the memory plan counts."""

from typing import Any

import pytest

from app.guard.case import Case
from app.guard.plan import settle
from app.guard.resolve import resolve
from app.guard.rules.compilation import step_not_capturable
from app.recipes.sequence import Sequence
from app.spec.layers import overlay
from tests.guard.world import CATALOG, REQUEST, RTX, codes, plan_of, world

ON_RTX = world(devices=(RTX,))
RULE = "correctness.step_not_capturable"


def wanting(graphs: str, change: dict[str, Any]) -> dict[str, Any]:
    pinned = {"runtime": {"cuda_graphs": graphs}, "training": {"batch_size": 64}}
    return overlay(pinned, change)


def recomputed(dropout: float) -> dict[str, Any]:
    runtime = {"activation_checkpointing": True}
    return {"recipe": {"encoder": "transformer", "dropout": dropout}, "runtime": runtime}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, None),
        ({"recipe": {"num_layers": 2, "dropout": 0.1}}, None),
        ({"training": {"batch_size": 2000, "gradient_accumulation_steps": 2}}, "and a step 4,000."),
        (recomputed(dropout=0.1), "The recomputed blocks draw random numbers"),
        (recomputed(dropout=0.0), None),
    ],
)
def test_what_cannot_be_recorded_is_refused_where_it_must_be(change, told):
    plan = plan_of(wanting("always", change), ON_RTX)
    assert (RULE in codes(plan)) is (told is not None)
    if told is not None:
        (issue,) = [issue for issue in plan.errors if issue.code == RULE]
        assert told in issue.why
    assert RULE not in codes(plan_of(wanting("auto", change), ON_RTX))


def test_a_plugin_says_why_its_steps_cannot_be_captured():
    class Waiting(Sequence):
        @property
        def not_capturable(self) -> str:
            return "Its loss waits for the device."

    spec = settle(resolve(overlay(REQUEST, wanting("always", {})), CATALOG, ON_RTX), ON_RTX).spec
    assert spec is not None
    assert list(step_not_capturable(Case(spec, ON_RTX))) == []
    plugin = spec.model_copy(update={"recipe": Waiting(**spec.recipe.model_dump())})
    (finding,) = step_not_capturable(Case(plugin, ON_RTX))
    assert finding.why == "Its loss waits for the device."
