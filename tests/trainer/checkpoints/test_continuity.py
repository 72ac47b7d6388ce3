"""What a start from a checkpoint cannot carry on exactly is said aloud."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from app.recipes.sequence import Sequence
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll
from worker.trainer.checkpoints.exactness import keeps_dropout_to_itself, resumes_exactly
from worker.trainer.checkpoints.format import Snapshot, load, publish
from worker.trainer.recipes.encoders import build_encoder

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def restored(lab: Lab, outcome: Outcome, changed: dict[str, Any]) -> list[dict[str, Any]]:
    """The checkpoint of step 4 as this run's own, with other facts in its manifest."""
    snapshot = load(outcome.checkpoint(4))
    folder = lab.root / "changed" / "1" / "attempt-1" / "checkpoints" / "step-4"
    folder.parent.parent.mkdir(parents=True)
    publish(Snapshot(snapshot.parts, {**snapshot.body, "losses_bytes": 0, **changed}), folder)
    return [{"path": str(folder), "carry": "full", "own": True}]


def warnings(outcome: Outcome) -> list[str]:
    return [event["code"] for event in outcome.of_kind("warning")]


def test_a_manifest_says_how_its_weights_were_computed(lab: Lab) -> None:
    outcome = lab.run(patch={"runtime": {"precision": "bf16-mixed"}})
    manifest = json.loads((outcome.checkpoint(4) / "manifest.json").read_text())
    assert (manifest["precision"], manifest["device_type"]) == ("bf16-mixed", "cpu")
    assert manifest["total_steps"] == 9


def test_a_resume_keeps_the_precision_that_auto_came_to(lab: Lab) -> None:
    patch = {"runtime": {"precision": "auto"}}
    first = lab.run(patch=patch)
    restore = restored(lab, first, {"precision": "bf16-mixed", "device_type": "cuda"})
    resumed = lab.run(patch=patch, restore=restore)
    assert resumed.of_kind("applied")[0]["applied"]["precision"] == "bf16-mixed"
    assert warnings(resumed) == ["device_changed"]


def test_a_precision_that_the_device_does_not_have_is_given_up_aloud(lab: Lab) -> None:
    patch = {"runtime": {"precision": "auto"}}
    restore = restored(lab, lab.run(patch=patch), {"precision": "fp16-mixed"})
    resumed = lab.run(patch=patch, restore=restore)
    assert resumed.of_kind("applied")[0]["applied"]["precision"] == "fp32"
    assert warnings(resumed) == ["precision_changed"]


def test_a_warm_up_of_a_version_that_began_at_0_goes_on_aloud(lab: Lab) -> None:
    patch = {"schedule": {"kind": "cosine_warmup"}}
    first = lab.run(patch=patch)
    assert load(first.checkpoint(4)).body["schedule_version"] == 2
    resumed = lab.run(patch=patch, restore=restored(lab, first, {"schedule_version": 1}))
    assert warnings(resumed) == ["order_changed"]


def test_an_exact_resume_warns_of_nothing(lab: Lab) -> None:
    run_dir = lab.new_run()
    first = lab.run(run_dir, stop=StopAtPoll(BUILDING_POLLS + 12))
    assert first.of_kind("applied")[0]["applied"]["exact_resume"] is True
    assert warnings(lab.run(run_dir)) == []


@pytest.mark.parametrize(
    ("layers", "dropout", "device", "kept"),
    [(2, 0.2, GPU, True), (2, 0.2, CPU, False), (1, 0.0, GPU, False), (2, 0.0, GPU, False)],
)
def test_dropout_between_the_layers_of_a_gpus_rnn_is_out_of_reach(
    layers: int, dropout: float, device: torch.device, kept: bool
) -> None:
    """That of a plugin's torch.nn.LSTM; Stoker's own encoder draws with nn.Dropout."""
    model = torch.nn.Sequential(torch.nn.LSTM(3, 4, layers, dropout=dropout), torch.nn.Dropout(0.5))
    assert keeps_dropout_to_itself(model, device) is kept
    recipe = Sequence(kind="sequence", hidden_size=4, num_layers=layers, dropout=dropout)
    assert not keeps_dropout_to_itself(build_encoder(recipe, 6, 3), device)


@pytest.fixture
def deterministic(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("deterministic", "device", "layers", "exact"),
    [
        (False, CPU, 2, True),
        (False, GPU, 1, False),
        (True, GPU, 1, True),
        (True, GPU, 2, False),
    ],
    indirect=["deterministic"],
)
@pytest.mark.usefixtures("deterministic")
def test_a_gpu_resumes_exactly_only_where_it_computes_so(
    device: torch.device, layers: int, exact: bool
) -> None:
    model = torch.nn.LSTM(3, 4, layers, dropout=0.1 * (layers - 1))
    assert resumes_exactly(model, device) is exact


@pytest.mark.parametrize(
    ("patch", "codes"),
    [
        ({"training": {"epochs": 9}}, ["learning_rate_jump"]),
        ({"training": {"epochs": 9}, "schedule": {"kind": "constant"}}, []),
        ({"training": {"epochs": 3}}, []),
    ],
)
def test_a_schedule_that_is_stretched_says_how_the_rate_jumps(
    lab: Lab, patch: dict[str, Any], codes: list[str]
) -> None:
    schedule = {"schedule": {"kind": "onecycle"}} | patch
    parent = lab.run(patch=schedule | {"training": {"epochs": 3}})
    restore = [{"path": str(parent.checkpoint(8)), "carry": "full", "own": False}]
    child = lab.run(patch=schedule, restore=restore)
    assert warnings(child) == codes
    if codes:
        (warning,) = child.of_kind("warning")
        assert "27 steps now and was of 9" in warning["message"]
