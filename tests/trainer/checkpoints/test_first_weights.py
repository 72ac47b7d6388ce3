"""First weights from another run: what is taken, what is told, and when too little matches."""

import json
from typing import Any

import pytest
import safetensors.torch
import torch

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll
from worker.trainer.checkpoints.format import load
from worker.trainer.errors import TrainerError

STILL = {"optimizer": {"lr": 1e-12, "weight_decay": 0.0}}


def begin(parent: Outcome, step: int = 9) -> list[dict[str, Any]]:
    return [{"path": str(parent.checkpoint(step)), "carry": "init", "own": False}]


def asked(**values: Any) -> dict[str, Any]:
    return {"init_from": {"run": 1, **values}}


def weights(outcome: Outcome, step: int | None = None) -> dict[str, torch.Tensor]:
    return safetensors.torch.load((outcome.checkpoint(step) / "model.safetensors").read_bytes())


def test_all_weights_are_taken_and_everything_else_is_new(lab: Lab) -> None:
    parent = lab.run()
    child = lab.run(patch=STILL | asked(), restore=begin(parent))
    for name, tensor in weights(parent, 9).items():
        torch.testing.assert_close(weights(child)[name], tensor)
    assert child.rows[0][:3] == ["2", "1", "train"]
    (restored,) = child.of_kind("restored")
    assert (restored["carry"], restored["own"], restored["step"]) == ("init", False, 9)
    told = {"step": 9, "prefix": "", "parameters": 10, "matched": 10, "left": []}
    assert restored["init_from"] == told
    (applied,) = child.of_kind("applied")
    assert applied["applied"]["init_from"] == told


def test_weights_under_the_prefix_alone_are_taken(lab: Lab) -> None:
    parent = lab.run()
    fresh = lab.run(patch=STILL)
    child = lab.run(patch=STILL | asked(prefix="head."), restore=begin(parent))
    for name, tensor in weights(child).items():
        expected = parent if name.startswith("head.") else fresh
        torch.testing.assert_close(tensor, weights(expected, 9)[name])
    (restored,) = child.of_kind("restored")
    assert (restored["init_from"]["parameters"], restored["init_from"]["matched"]) == (2, 2)


def test_the_statistics_of_the_data_are_the_runs_own(lab: Lab) -> None:
    parent = lab.run()
    patch = STILL | asked() | {"data": {"split": {"validation_fraction": 0.6}}}
    child = lab.run(patch=patch, restore=begin(parent))
    own, others = weights(child), weights(parent, 9)
    of_the_data = [name for name in own if "mean" in name]
    assert of_the_data
    assert not any(torch.equal(own[name], others[name]) for name in of_the_data)


def test_what_matches_is_taken_where_less_is_asked_for(lab: Lab) -> None:
    """The encoder's second layer is not there, and its first and the head are as they were."""
    parent = lab.run()
    patch = STILL | asked(min_matched=0.5) | {"recipe": {"num_layers": 3}}
    child = lab.run(patch=patch, restore=begin(parent))
    (restored,) = child.of_kind("restored")
    told = restored["init_from"]
    assert (told["parameters"], told["matched"]) == (14, 10)
    assert len(told["left"]) == 4
    assert all(phrase.endswith("is missing there") for phrase in told["left"])


@pytest.mark.parametrize(
    ("change", "wanted", "told"),
    [
        ({"recipe": {"hidden_size": 16}}, {}, "encoder.weight_ih_l0 is (32, 9) there and (64, 9)"),
        ({"recipe": {"num_layers": 3}}, {}, "asks for 90%"),
        ({}, {"prefix": "tower."}, "no parameters whose names begin with 'tower.'"),
        ({"recipe": {"num_layers": 3}}, {}, "These match: encoder.weight_ih_l0"),
    ],
)
def test_too_few_that_match_end_the_run_with_a_list(
    lab: Lab, change: dict[str, Any], wanted: dict[str, Any], told: str
) -> None:
    parent = lab.run()
    with pytest.raises(TrainerError) as caught:
        lab.run(patch=change | asked(**wanted), restore=begin(parent))
    assert caught.value.reason is Reason.carry_mismatch
    assert "nothing was trained" in caught.value.message
    assert told in caught.value.message


def test_a_resume_goes_on_from_its_own_checkpoints(lab: Lab) -> None:
    parent = lab.run()
    whole = lab.run(patch=asked(), restore=begin(parent))
    run_dir = lab.new_run()
    stop = StopAtPoll(BUILDING_POLLS + 8)
    first = lab.run(run_dir, asked(), begin(parent), stop)
    assert first.end is not None
    resumed = lab.run(run_dir, asked())
    (restored,) = resumed.of_kind("restored")
    assert "init_from" not in restored
    assert resumed.weights == whole.weights


def test_a_torn_source_ends_the_run_with_what_to_do(lab: Lab) -> None:
    parent = lab.run()
    file = parent.checkpoint(9) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TrainerError, match="init_from asks for") as caught:
        lab.run(patch=asked(), restore=begin(parent))
    assert caught.value.reason is Reason.checkpoint_unusable
    assert json.loads((parent.checkpoint(9) / "manifest.json").read_text())["step"] == 9
    assert load(parent.checkpoint(8)).body["step"] == 8
