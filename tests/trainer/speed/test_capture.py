"""Captured steps: the same training, proved before it begins, and what is done where they are not.

Here they are run from their places as they stand; what is captured on a GPU is the same text.
"""

import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from app.lifecycle import Reason
from app.planning.ladder import NO_RUNG, Rung
from app.spec.run import RunSpec
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, merged
from tests.trainer.recipes.molecules import run_of as run_of_molecules
from tests.trainer.recipes.molecules import write as write_molecules
from tests.trainer.test_numerics import spec_of
from worker.trainer import build as prepare
from worker.trainer.data.batch import ONE_SHAPE, Batch, BatchPlan
from worker.trainer.errors import SpecMismatch
from worker.trainer.recipes.encoders import build_encoder
from worker.trainer.speed import cuda_graph
from worker.trainer.speed.cuda_graph import Capturer, Replay, why_not
from worker.trainer.speed.proof import STEPS
from worker.trainer.speed.static_step import StaticStep, full_step
from worker.trainer.step import TrainingStep

STREAMED = {"kind": "chunked", "residency": "stream", "chunk_size": "4KiB"}
NEVER = {"runtime": {"cuda_graphs": "never"}}
ALWAYS = {"runtime": {"cuda_graphs": "always"}}
RECOMPUTED: dict[str, Any] = {
    "recipe": {"encoder": "transformer", "dropout": 0.0},
    "runtime": {"activation_checkpointing": True},
}
# Polls of the stop flag from the phase on: samples, twice launched, captured, tried.
CAPTURE_POLLS = 5


class Counting(Capturer):
    """Counts the steps that were run from their places."""

    runs = 0

    def __init__(self, device: torch.device) -> None:
        Counting.runs = 0

    def capture(self, whole: Replay) -> Replay:
        def run() -> None:
            Counting.runs += 1
            whole()

        return run


@pytest.fixture
def _captured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU of this test stands for a GPU."""
    monkeypatch.setattr(prepare, "why_not", lambda _, spec, *__: unless_never(spec))
    monkeypatch.setattr(cuda_graph, "GraphCapturer", Counting)


def unless_never(spec: RunSpec) -> str | None:
    return "It is never." if spec.runtime.cuda_graphs == "never" else None


def applied(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, Any] = outcome.of_kind("applied")[0]["applied"]["cuda_graphs"]
    return found


@pytest.mark.parametrize(
    ("plan", "accumulation", "sizes"),
    [
        (BatchPlan(42, 8, False), 1, [8]),
        (BatchPlan(42, 8, False), 2, [8, 8]),
        (BatchPlan(42, 8, False, 3), 2, [3, 3, 2, 3, 3, 2]),
        (BatchPlan(16, 8, True), 2, [8, 8]),
        (BatchPlan(15, 8, True), 2, []),
        (BatchPlan(7, 8, False), 1, []),
    ],
)
def test_a_full_step_is_one_that_no_epochs_end_cuts_short(
    plan: BatchPlan, accumulation: int, sizes: list[int]
) -> None:
    shapes = full_step(plan, accumulation)
    assert [shape.size for shape in shapes] == sizes
    assert [shape.share * sum(sizes) for shape in shapes] == pytest.approx(sizes)


@pytest.mark.usefixtures("_captured_here")
@pytest.mark.parametrize(
    ("patch", "rung", "replayed"),
    [
        ({"training": {"gradient_accumulation_steps": 1}}, NO_RUNG, 3 * 5),  # 5 × 8, and 2
        ({}, NO_RUNG, 3 * 2),  # twice 16, and 10
        ({"training": {"batch_size": 21}}, NO_RUNG, 3),  # all of an epoch in one step
        ({}, Rung(1, batch=3), 3 * 2),
        ({"runtime": {"precision": "bf16-mixed"}}, NO_RUNG, 3 * 2),
        ({"optimizer": {"kind": "adam"}}, NO_RUNG, 3 * 2),
        ({"optimizer": {"kind": "sgd"}}, NO_RUNG, 3 * 2),
        ({"training": {"clip_grad_norm": None}}, NO_RUNG, 3 * 2),
        ({"data": {"loader": {"kind": "dataloader", "num_workers": 0}}}, NO_RUNG, 3 * 2),
        ({"data": {"loader": STREAMED}}, NO_RUNG, 3 * 2),
        ({"schedule": {"kind": "constant"}}, NO_RUNG, 3 * 2),
        ({"schedule": {"kind": "onecycle"}}, NO_RUNG, 3 * 2),
        ({"averaging": {"kind": "ema", "decay": 0.9, "ramp": True}}, NO_RUNG, 3 * 2),
        (RECOMPUTED, NO_RUNG, 3 * 2),
        ({"optimizer": {"decay": "matrices", "backbone_lr": 1e-3}}, NO_RUNG, 3 * 2),
    ],
    ids=["plain", "accumulated", "one a epoch", "micro", "bf16", "adam", "sgd", "unclipped",
         "dataloader", "stream", "steady", "one cycle", "averaged", "recomputed", "groups"],
)  # fmt: skip
def test_full_steps_come_from_their_places(
    lab: Lab, patch: dict[str, Any], rung: Rung, replayed: int
) -> None:
    """And the training is the same to the last bit, with dropout, evaluations and checkpoints."""
    launched = lab.run(patch=merged(patch, NEVER), rung=rung)
    captured = lab.run(patch=patch, rung=rung)
    assert Counting.runs == STEPS + replayed
    assert (captured.weights, captured.losses) == (launched.weights, launched.losses)
    assert captured.result == launched.result
    found, told = applied(captured), applied(launched)
    assert (found["captured"], found["why_not"], found["identical"]) == (True, None, True)
    assert found["launched_step_seconds"] > 0
    assert found["replayed_step_seconds"] > 0
    assert told["captured"] is False
    assert captured.of_kind("warning") == []
    phases = [event["phase"] for event in captured.of_kind("phase")]
    assert phases[:4] == ["restoring", "building", "capturing", "training"]


class Copies(TorchDispatchMode):
    """Counts the copies that are launched within it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += function is torch.ops.aten.copy_.default
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("_captured_here")
@pytest.mark.parametrize(
    ("loader", "copied"),
    [
        ({"kind": "chunked", "residency": "resident", "shuffle": "full"}, False),
        ({"kind": "chunked", "residency": "stream", "chunk_size": "1KiB"}, False),
        ({"kind": "dataloader", "num_workers": 0}, True),
    ],
    ids=["resident", "stream", "dataloader"],
)
def test_a_batch_is_gathered_where_the_captured_step_reads_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, loader: dict[str, Any], copied: bool
) -> None:
    """Of graphs, in several shapes. Only the steps that are tried before are copied there."""
    write_molecules(lab.data)
    patch = merged(run_of_molecules("masked", epochs=3), {"data": {"loader": loader}})
    counter, take = Copies(), StaticStep.take

    def counted(static: StaticStep, batch: Batch, share: float) -> bool:
        with counter:
            return take(static, batch, share)

    launched = lab.run(patch=merged(patch, NEVER))
    monkeypatch.setattr(StaticStep, "take", counted)
    captured = lab.run(patch=patch)
    assert (captured.weights, captured.losses) == (launched.weights, launched.losses)
    assert captured.result == launched.result
    arrays, graphs = 5, applied(captured)["graphs"]
    assert graphs > 1
    tried = STEPS * graphs
    assert Counting.runs > tried
    assert counter.count == arrays * (Counting.runs if copied else tried)


@pytest.mark.usefixtures("_captured_here")
@pytest.mark.parametrize("first", ["auto", "never"])
@pytest.mark.parametrize("second", ["auto", "never"])
def test_a_run_resumes_in_mid_epoch_whether_recorded_or_not(
    lab: Lab, first: str, second: str
) -> None:
    straight = lab.run(patch=NEVER)
    run_dir = lab.new_run()
    polls = BUILDING_POLLS + 2 + CAPTURE_POLLS * (first == "auto")
    for mode, stop in ((first, StopAtPoll(polls)), (second, StopAtPoll())):
        patch = {"runtime": {"cuda_graphs": mode}}
        outcome = lab.run(run_dir, patch, stop=stop)
    restored = outcome.of_kind("restored")[0]["step"]
    assert restored % 3 > 0
    assert (outcome.weights, outcome.losses) == (straight.weights, straight.losses)


@pytest.mark.usefixtures("_captured_here")
def test_a_stop_is_heard_while_capturing(lab: Lab) -> None:
    for polls in range(CAPTURE_POLLS):
        outcome = lab.run(stop=StopAtPoll(BUILDING_POLLS + polls))
        assert outcome.end is not None
        assert outcome.end.reason is Reason.interrupted
        assert "Stopped while capturing, before a step was made" in outcome.end.message


class Breaking(Counting):
    """As a capture that an operation breaks; its end then raises an error of its own."""

    def capture(self, whole: Replay) -> Replay:
        try:
            raise RuntimeError("an operation that cannot be captured\nwith its details")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.mark.usefixtures("_captured_here")
def test_where_it_fails_the_run_goes_on_as_one_that_never_tried(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "GraphCapturer", Breaking)
    launched, outcome = lab.run(patch=NEVER), lab.run()
    assert (outcome.weights, outcome.losses) == (launched.weights, launched.losses)
    told = applied(outcome)
    assert told["captured"] is False
    assert told["why_not"] == "It failed: an operation that cannot be captured."
    (warning,) = outcome.of_kind("warning")
    assert warning["code"] == "not_captured"
    assert warning["message"].startswith(
        "Steps are launched one operation at a time, not replayed from a CUDA graph. It failed: an"
    )


class Off(Counting):
    """Whose steps make the weights larger, by a share."""

    share = 0.0
    step: TrainingStep

    def capture(self, whole: Replay) -> Replay:
        def run() -> None:
            whole()
            with torch.no_grad():
                for parameter in Off.step.model.parameters():
                    parameter.mul_(1 + Off.share)

        return run


@pytest.mark.usefixtures("_captured_here")
@pytest.mark.parametrize(
    ("share", "deterministic", "captured"),
    [(0.1, False, False), (1e-7, False, True), (1e-7, True, False), (0.0, True, True)],
)
def test_steps_are_replayed_only_where_they_were_right(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, share: float, deterministic: bool, captured: bool
) -> None:
    def remembered(step: TrainingStep, spec: RunSpec, *_: object) -> str | None:
        Off.step = step
        return unless_never(spec)

    monkeypatch.setattr(prepare, "why_not", remembered)
    monkeypatch.setattr(cuda_graph, "GraphCapturer", Off)
    monkeypatch.setattr(Off, "share", share)
    patch = {"runtime": {"deterministic": deterministic}}
    launched, outcome = lab.run(patch=merged(patch, NEVER)), lab.run(patch=patch)
    told = applied(outcome)
    assert told["captured"] is captured
    assert (outcome.weights == launched.weights) is (not captured or not share)
    if captured:
        assert told["identical"] is (share == 0)
    else:
        assert told["why_not"].startswith("Captured steps did not compute what launched ones do: ")


@pytest.mark.usefixtures("_captured_here")
def test_where_it_must_not_fail_the_run_does(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "GraphCapturer", Breaking)
    with pytest.raises(SpecMismatch) as caught:
        lab.run(patch={"runtime": {"cuda_graphs": "always"}})
    assert caught.value.reason is Reason.spec_error
    assert caught.value.message == (
        "The step cannot be captured as a CUDA graph, and runtime.cuda_graphs is always. It failed:"
        " an operation that cannot be captured. Set it to auto, which launches the steps then, and "
        "restart the run."
    )


def test_on_a_cpu_steps_are_launched_and_the_run_says_so(lab: Lab) -> None:
    outcome = lab.run(patch={"training": {"max_steps": 1}})
    told = applied(outcome)
    assert told["captured"] is False
    assert told["why_not"] == "CUDA graphs are of a GPU, and this attempt is on the CPU."
    assert outcome.of_kind("warning") == []
    assert "capturing" not in [event["phase"] for event in outcome.of_kind("phase")]
    with pytest.raises(SpecMismatch, match=r"this attempt is on the CPU\. Set it to auto"):
        lab.run(patch={"runtime": {"cuda_graphs": "always"}})


@pytest.mark.parametrize(
    ("patch", "plan", "rung", "reason"),
    [
        ({}, BatchPlan(42, 8, False), NO_RUNG, None),
        (NEVER, BatchPlan(42, 8, False), NO_RUNG, "runtime.cuda_graphs is never"),
        ({"recipe": {"dropout": 0.1}}, BatchPlan(42, 8, False), NO_RUNG, None),
        ({}, BatchPlan(15, 8, False), NO_RUNG, "fewer samples than a step"),
        ({}, BatchPlan(42, 8, False, 2), NO_RUNG, None),
        ({}, BatchPlan(42, 8, False, 1), NO_RUNG, "A step has 16 micro-batches"),
        ({}, BatchPlan(42, 8, False, 4), Rung(1, batch=4), "Memory ran out before"),
        ({"runtime": {"cuda_graphs": "always"}}, BatchPlan(42, 8, False), Rung(1), None),
        (RECOMPUTED, BatchPlan(42, 8, False), NO_RUNG, None),
        (
            merged(RECOMPUTED, {"recipe": {"dropout": 0.1}}),
            BatchPlan(42, 8, False),
            NO_RUNG,
            "The recomputed blocks draw random numbers",
        ),
        (
            {"recipe": {"encoder": "transformer", "dropout": 0.1}, **ALWAYS},
            BatchPlan(42, 8, False),
            Rung(1, activation_checkpointing=True),
            "blocks draw random",
        ),
    ],
)
def test_what_is_known_beforehand_is_not_tried(
    patch: dict[str, Any], plan: BatchPlan, rung: Rung, reason: str | None
) -> None:
    spec = spec_of(merged({"recipe": {"dropout": 0.0}}, patch))
    recipe: Any = spec.recipe
    step = on_a_gpu(build_encoder(recipe, 12, 3))
    data: Any = SimpleNamespace(train=SimpleNamespace(plan=plan, shapes=ONE_SHAPE))
    found = why_not(step, spec, data, rung)
    assert found is None if reason is None else reason in str(found)


def on_a_gpu(model: torch.nn.Module) -> Any:
    return SimpleNamespace(model=model, precision=SimpleNamespace(device=torch.device("cuda")))


def test_a_plugins_rnn_with_dropout_of_cudnn_is_not_tried() -> None:
    spec, plan = spec_of({}), BatchPlan(42, 8, False)
    data: Any = SimpleNamespace(train=SimpleNamespace(plan=plan, shapes=ONE_SHAPE))
    step = on_a_gpu(torch.nn.LSTM(1, 1, 2, dropout=0.1))
    assert "a state that cannot be put back" in str(why_not(step, spec, data, NO_RUNG))


def test_a_kept_error_of_a_capture_keeps_nothing_that_was_computed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of logs may keep it: the graph of gradients would stay on the capture's stream."""
    computed: list[weakref.ref[torch.Tensor]] = []
    kept: list[BaseException | None] = []

    class Failing(Capturer):
        def capture(self, whole: Replay) -> Replay:
            loss = torch.ones(1)
            computed.append(weakref.ref(loss))
            raise RuntimeError("no capture")

    monkeypatch.setattr(prepare, "why_not", lambda *_: None)
    monkeypatch.setattr(cuda_graph, "GraphCapturer", lambda device: Failing())
    monkeypatch.setattr(
        cuda_graph.logger, "exception", lambda message: kept.append(sys.exc_info()[1])
    )
    outcome = lab.run(patch={"runtime": {"cuda_graphs": "auto"}})
    assert [warning["code"] for warning in outcome.of_kind("warning")] == ["not_captured"]
    assert kept[0] is not None
    assert [one() for one in computed] == [None]
