"""On a rung of the memory ladder: less at once, and still the training of the spec."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch

from app.lifecycle import Reason
from app.planning.ladder import NO_RUNG, Rung, Use
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, merged, read_events
from worker.trainer.checkpoints import snapshot
from worker.trainer.data.feed.transfer import Transfer
from worker.trainer.errors import OutOfMemory
from worker.trainer.step import TrainingStep

# Without what micro-batches draw otherwise; and with a best evaluation that stands out.
PLAIN = {"recipe": {"dropout": 0.0}, "schedule": {"final_div_factor": 1.0, "kind": "onecycle"}}
LESS_DATA = Rung(1, data_bytes=5_000)  # of 9,936
UNEVEN = Rung(2, batch=3, evaluation_batch=2)  # of 8 and 5


def without_losses(outcome: Outcome) -> list[list[str]]:
    """Step, epoch and split of each row of losses.csv."""
    return [row[:3] for row in outcome.rows]


def losses(outcome: Outcome) -> list[float]:
    return [float(row[3]) for row in outcome.rows]


def assert_same_but_for_rounding(outcome: Outcome, straight: Outcome) -> None:
    assert without_losses(outcome) == without_losses(straight)
    assert outcome.result["last"]["lr"] == straight.result["last"]["lr"]
    assert losses(outcome) == pytest.approx(losses(straight), rel=1e-4)
    expected = safetensors.torch.load(straight.weights)
    for name, tensor in safetensors.torch.load(outcome.weights).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-5)


def assert_same(outcome: Outcome, straight: Outcome) -> None:
    assert outcome.weights == straight.weights
    assert outcome.losses == straight.losses
    assert outcome.result == straight.result


@pytest.mark.parametrize("residency", ["resident", "stream"])
def test_less_data_at_once_changes_nothing(lab: Lab, residency: str) -> None:
    """Also where the spec asks for data that stays, and with dropout."""
    patch = {"data": {"loader": {"kind": "chunked", "residency": residency}}}
    straight = lab.run(patch=patch)
    less = lab.run(patch=patch, rung=LESS_DATA)
    assert_same(less, straight)
    (use,) = less.of_kind("memory")
    assert use["residency"] == "stream"
    assert use["data_bytes"] <= 5_000 < straight.of_kind("memory")[0]["data_bytes"]


RESIDENT, SMALL, SMALLER = (
    {"loader": {"kind": "chunked", **values}}
    for values in (
        {"residency": "resident"},
        {"residency": "stream", "chunk_size": "2KiB"},
        {"residency": "stream", "chunk_size": "1KiB"},
    )
)
FULL = {"kind": "chunked", "shuffle": "full"}
BLOCKS = {"kind": "chunked", "shuffle": "block", "shuffle_group": 16, "shuffle_block": 2}


@pytest.mark.parametrize("order", [FULL, BLOCKS], ids=["full", "blocks"])
@pytest.mark.parametrize(
    ("before", "after", "rung"),
    [
        (RESIDENT, RESIDENT, LESS_DATA),
        (RESIDENT, SMALL, NO_RUNG),
        (SMALL, RESIDENT, NO_RUNG),
        (SMALL, SMALLER, Rung(2, data_bytes=3_500)),
    ],
    ids=["a rung", "a smaller card", "a larger card", "other chunks on a rung"],
)
def test_nothing_moves_a_stored_order_in_mid_run(
    lab: Lab,
    order: dict[str, Any],
    before: dict[str, Any],
    after: dict[str, Any],
    rung: Rung,
) -> None:
    """Neither a rung nor a place that keeps the data otherwise: the bits stay the same."""
    first, then = (merged({"data": {"loader": order}}, {"data": one}) for one in (before, after))
    straight = lab.run(patch=first)
    for polls in (6, 14):
        run_dir = lab.new_run()
        stopped = lab.run(run_dir, first, stop=StopAtPoll(BUILDING_POLLS + polls))
        assert stopped.end is not None
        assert stopped.end.reason is Reason.interrupted
        resumed = lab.run(run_dir, then, rung=rung)
        assert_same(resumed, straight)
        used = [one.of_kind("applied")[0]["applied"]["data"] for one in (stopped, resumed)]
        assert used[0]["chunk_samples"] != used[1]["chunk_samples"]
        for name in ("shuffle", "shuffle_group", "shuffle_block"):
            assert used[0][name] == used[1][name]


def test_a_full_order_that_has_to_be_streamed_says_its_rate(lab: Lab) -> None:
    """Not where it was asked for."""
    patch = {"data": {"loader": FULL}}
    fits, streamed = lab.run(patch=patch), lab.run(patch=patch, rung=LESS_DATA)
    assert fits.of_kind("warning") == []
    (warning,) = streamed.of_kind("warning")
    assert warning["code"] == "full_order_streamed"
    assert "of 42 samples (rung 1 of the memory ladder)" in warning["message"]
    assert "iB a second. If the steps wait for them, restart with" in warning["message"]
    used = streamed.of_kind("applied")[0]["applied"]["data"]
    assert used["scattered_bytes_per_second"] > 0
    asked = lab.run(patch=merged({"data": SMALL}, patch))
    assert asked.of_kind("warning") == []
    assert asked.of_kind("applied")[0]["applied"]["data"]["scattered_bytes_per_second"] > 0


BY_PROCESSES = {
    "kind": "dataloader", "num_workers": 2, "prefetch_factor": 2,
    "multiprocessing_context": "forkserver",
}  # fmt: skip


def test_activations_that_are_computed_anew_change_nothing(lab: Lab) -> None:
    """Dropout included. The spec stays, and an attempt on that rung has nothing more to give."""
    transformer = {"recipe": {"encoder": "transformer", "dropout": 0.2}}
    straight = lab.run(patch=transformer)
    below = lab.run(patch=transformer, rung=Rung(3, activation_checkpointing=True))
    assert_same(below, straight)
    told = [one.of_kind("applied")[0]["applied"] for one in (straight, below)]
    assert [one["activation_checkpointing"] for one in told] == [False, True]
    uses = [Use.from_json(one.of_kind("memory")[0]) for one in (straight, below)]
    assert [use.recomputable for use in uses] == [True, False]
    assert not Use.from_json(lab.run().of_kind("memory")[0]).recomputable


def test_fewer_loader_processes_change_nothing(lab: Lab) -> None:
    patch = {
        "data": {"loader": BY_PROCESSES},
        "evaluation": {"every_epochs": 5, "every_steps": None},
    }
    straight = lab.run(patch=patch)
    use = straight.of_kind("memory")[0]
    assert (use["residency"], use["workers"], use["prefetch_factor"]) == ("batches", 2, 2)
    for rung in (Rung(1, prefetch_factor=1), Rung(2, prefetch_factor=1, workers=0)):
        less = lab.run(patch=patch, rung=rung)
        assert_same(less, straight)
        assert less.of_kind("memory")[0]["prefetch_factor"] == 1
    assert less.of_kind("memory")[0]["workers"] == 0
    (warning,) = less.of_kind("warning")
    assert warning["code"] == "fewer_loader_processes"


def test_micro_batches_are_the_same_by_every_loader(lab: Lab) -> None:
    by_torch = {"data": {"loader": {"kind": "dataloader"}}}
    assert_same(lab.run(patch=by_torch, rung=UNEVEN), lab.run(rung=UNEVEN))


@pytest.mark.parametrize("training", [{}, {"drop_last": True}, {"batch_size": 9, "max_steps": 5}])
def test_micro_batches_train_as_the_batch_does(lab: Lab, training: dict[str, Any]) -> None:
    """Whatever the size of their last one, of an epoch's last batch and of its last step."""
    patch = merged(PLAIN, {"training": training, "checkpoint": {"every_steps": None}})
    straight = lab.run(patch=patch)
    cut = lab.run(patch=patch, rung=UNEVEN)
    assert_same_but_for_rounding(cut, straight)
    assert losses(cut) != losses(straight)
    saved = [
        json.loads((one.checkpoint() / "manifest.json").read_text())["state"]
        for one in (cut, straight)
    ]
    for place in ("step", "epoch", "position", "evaluated_step", "logged_step"):
        assert saved[0][place] == saved[1][place]


def test_what_is_used_is_told(lab: Lab) -> None:
    applied = lab.run(rung=UNEVEN).of_kind("applied")[0]["applied"]
    assert applied["batch_size"] == 3
    assert applied["gradient_accumulation_steps"] == 2 * 3
    assert applied["evaluation_batch_size"] == 2
    assert applied["memory_rung"] == UNEVEN.as_json()
    small = lab.run(patch={"training": {"batch_size": 64}}).of_kind("applied")[0]["applied"]
    assert (small["batch_size"], small["gradient_accumulation_steps"]) == (64, 2)
    spec = lab.run().of_kind("applied")[0]["applied"]
    assert (spec["batch_size"], spec["gradient_accumulation_steps"]) == (8, 2)
    assert spec["memory_rung"] is None
    assert [spec[name] for name in ("steps_per_epoch", "total_steps", "log_every_steps")] == [
        applied[name] for name in ("steps_per_epoch", "total_steps", "log_every_steps")
    ]


@pytest.mark.parametrize("max_batches", [None, 2])
def test_smaller_evaluations_leave_the_training_as_it_is(lab: Lab, max_batches: int | None) -> None:
    patch = {"evaluation": {"max_batches": max_batches}}
    straight = lab.run(patch=patch)
    cut = lab.run(patch=patch, rung=Rung(1, evaluation_batch=2))
    assert cut.weights == straight.weights
    assert losses(cut) == pytest.approx(losses(straight), rel=1e-6)
    assert losses(cut) != losses(straight)
    samples = [one.of_kind("progress")[-1]["totals"]["eval_samples"] for one in (cut, straight)]
    assert samples[0] == samples[1]


@pytest.mark.parametrize("polls", [3, 8, 15, 21])
def test_a_run_goes_on_from_its_checkpoint_on_a_lower_rung(lab: Lab, polls: int) -> None:
    """Also from the middle of an epoch."""
    straight = lab.run(patch=PLAIN)
    for rung, check in ((LESS_DATA, assert_same), (UNEVEN, assert_same_but_for_rounding)):
        run_dir = lab.new_run()
        lab.run(run_dir, PLAIN, stop=StopAtPoll(BUILDING_POLLS + polls))
        check(lab.run(run_dir, PLAIN, rung=rung), straight)


def nothing_left(*_: Any, **__: Any) -> Any:
    """In place of something that takes memory: more than there is."""
    return torch.empty(2**60, dtype=torch.uint8)


def on_call(number: int, then: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """`original`, but `then` at one of its calls."""
    calls = iter(range(number))

    def called(*arguments: Any, **named: Any) -> Any:
        act = original if next(calls, None) is not None else then
        return act(*arguments, **named)

    return called


@pytest.mark.parametrize(
    ("owner", "name", "call", "phase"),
    [
        (Transfer, "_slot", 0, "building"),
        (Transfer, "_slot", 2, "building"),
        (TrainingStep, "accumulate", 0, "training"),
        (TrainingStep, "accumulate", 7, "training"),
        (TrainingStep, "apply", 4, "training"),
        (TrainingStep, "measure", 4, "evaluating"),
        (snapshot, "_copied", 1, "checkpointing"),
        (TrainingStep, "measure", 15, "testing"),
    ],
)
def test_wherever_memory_runs_out_it_is_told_and_the_run_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int, phase: str
) -> None:
    straight = lab.run()
    run_dir = lab.new_run()
    folder = lab.prepare(run_dir)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, on_call(call, nothing_left, getattr(owner, name)))
        with pytest.raises(OutOfMemory) as caught:
            lab.execute(folder)
    error = caught.value
    assert (error.reason, error.wanted_bytes) == (Reason.host_oom, 2**60)
    assert error.free_bytes is not None
    assert f"The host ran out of memory while {phase}: 1,073,741,824.00 GiB were" in error.message
    events = read_events(folder)
    assert [event["phase"] for event in events if event["kind"] == "phase"][-1] == phase
    (use,) = [event for event in events if event["kind"] == "memory"]
    assert {field: use[field] for field in ("residency", "parts", "batch", "evaluation_batch")} == {
        "residency": "resident",
        "parts": 3,
        "batch": 8,
        "evaluation_batch": 5,
    }
    assert Use.from_json(use).device == "cpu"
    assert_same(lab.run(run_dir, rung=LESS_DATA), straight)
