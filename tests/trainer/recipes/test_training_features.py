"""Averages, falling rates and accumulation with recipes other than a plain sequence."""

from typing import Any

import pytest
import torch

from tests.trainer.lab import Lab, Outcome, StopAtPoll, merged
from tests.trainer.recipes.molecules import run_of
from tests.trainer.recipes.panels import SPEC as PANEL
from tests.trainer.recipes.panels import panel  # noqa: F401 - a fixture
from tests.trainer.recipes.test_board import PLAY, board  # noqa: F401 - a fixture
from tests.trainer.recipes.test_timeframes import SEVERAL, frames  # noqa: F401 - a fixture
from tests.trainer.test_averaging import EMA, SWA, delivered, trained
from tests.trainer.test_plateau import FALLS, rates

NEVER_BETTER = merged(FALLS, {"schedule": {"threshold": 0.9}})
# One of each kind, with the recipe where it has most to do: a board's tower has batch norm.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "board, SWA": ("board", merged(PLAY, SWA)),
    "timeframes, EMA": ("frames", merged(SEVERAL, EMA)),
    "panel, plateau": ("panel", merged(PANEL, NEVER_BETTER)),
    "molecule, EMA, accumulation": (
        "molecules",
        run_of("regression", **EMA, training={"gradient_accumulation_steps": 2}),
    ),
}


@pytest.mark.parametrize(("lab_name", "patch"), RUNS.values(), ids=RUNS)
def test_a_run_that_was_stopped_goes_on_to_the_bit(
    request: pytest.FixtureRequest, lab_name: str, patch: dict[str, Any]
) -> None:
    lab: Lab = request.getfixturevalue(lab_name)
    counting = StopAtPoll()
    whole = lab.run(patch=patch, stop=counting)
    assert has_done_something(whole, patch)
    stopped, steps = lab.in_stages(patch, 3 * counting.polls // 4, None)
    assert 0 < steps[0] < steps[1] == whole.result["last"]["step"]
    assert (stopped.losses, stopped.weights) == (whole.losses, whole.weights)
    assert stopped.result == whole.result


def has_done_something(outcome: Outcome, patch: dict[str, Any]) -> bool:
    """Whether the rate has fallen, or the weights that are delivered are not those as trained."""
    if "averaging" not in patch:
        return len(set(rates(outcome))) > 1
    step = outcome.result["last"]["step"]
    as_trained, averaged = trained(outcome, step), delivered(outcome, step)
    return any(not torch.equal(one, averaged[name]) for name, one in as_trained.items())
