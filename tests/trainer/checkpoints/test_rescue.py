"""What fails at a step boundary, with whole weights, costs no step that was made."""

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch

from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, own_checkpoints
from worker.trainer.errors import DatasetChanged, OutOfMemory, TrainerError
from worker.trainer.step import TrainingStep

# Nothing is saved before the end but what a failure saves.
NEVER: dict[str, Any] = {
    "checkpoint": {"every_steps": None, "keep_best": 0},
    "early_stopping": None,
    "training": {"gradient_accumulation_steps": 1},
}
STREAMED = {"loader": {"kind": "chunked", "residency": "stream", "chunk_size": "4KiB"}}
BY_TORCH = {"loader": {"kind": "dataloader", "shuffle": "full"}}
PROCESSES = {
    "loader": {
        **BY_TORCH["loader"],
        "num_workers": 1,
        "prefetch_factor": 1,
    }
}


class DoAtPoll(StopAtPoll):
    def __init__(self, poll: int, act: Callable[[], None]) -> None:
        super().__init__()
        self._poll, self._act = poll, act

    @property
    def requested(self) -> bool:
        if self.polls == self._poll:
            self._act()
        return super().requested


def steps_saved(outcome: Outcome) -> list[int]:
    return [event["step"] for event in outcome.of_kind("checkpoint")]


def failed(lab: Lab, patch: dict[str, Any], stop: StopAtPoll | None = None) -> tuple[Any, Any, int]:
    """The run's folder, its error, and the step that was saved; exactly one was."""
    run_dir = lab.new_run()
    with pytest.raises(TrainerError) as caught:
        lab.run(run_dir, patch, stop=stop)
    (found,) = own_checkpoints(run_dir)
    return run_dir, caught.value, int(found["path"].split("-")[-1])


def assert_resumes(
    lab: Lab, run_dir: Any, patch: dict[str, Any], step: int, straight: Outcome | None = None
) -> None:
    straight, resumed = straight or lab.run(patch=patch), lab.run(run_dir, patch)
    assert resumed.of_kind("restored")[0]["step"] == step
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)
    assert resumed.result == straight.result


def test_a_dataset_that_changes_is_told_after_saving(lab: Lab) -> None:
    patch, before = {**NEVER, "data": STREAMED}, lab.data.stat()

    def touch() -> None:
        os.utime(lab.data, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))

    run_dir, error, step = failed(lab, patch, DoAtPoll(BUILDING_POLLS + 10, touch))
    assert isinstance(error, DatasetChanged)
    assert step > 1
    os.utime(lab.data, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert_resumes(lab, run_dir, patch, step)


# One that is forked of a server starts in a tenth of the time of a spawned one.
@pytest.mark.parametrize("how", ["forkserver", pytest.param("spawn", marks=pytest.mark.minutes)])
def test_a_loader_process_that_is_killed_costs_no_step(lab: Lab, how: str) -> None:
    loader = {**PROCESSES["loader"], "multiprocessing_context": how}
    patch = {**NEVER, "data": {"loader": loader}, "evaluation": {"every_steps": None}}

    def kill_readers() -> None:
        here = psutil.Process()
        commands = {one: " ".join(one.cmdline()) for one in here.children(recursive=True)}
        readers = [
            one for one, command in commands.items()
            if "spawn_main" in command or ("forkserver" in command and one.ppid() != here.pid)
        ]  # fmt: skip
        assert readers
        for reader in readers:
            reader.send_signal(signal.SIGKILL)

    run_dir, error, step = failed(lab, patch, DoAtPoll(BUILDING_POLLS + 3, kill_readers))
    assert error.reason is Reason.killed
    assert step >= 1
    straight = lab.run(patch={**patch, "data": BY_TORCH})
    assert_resumes(lab, run_dir, patch, step, straight)


def test_memory_that_runs_out_in_an_evaluation_costs_no_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, measure = [], TrainingStep.measure

    def run_out(step: TrainingStep, arrays: Any) -> dict[str, torch.Tensor]:
        measured.append(step)
        if len(measured) == 5:  # in the middle of the second evaluation
            raise MemoryError("Unable to allocate 3.00 GiB for an array")
        return measure(step, arrays)

    monkeypatch.setattr(TrainingStep, "measure", run_out)
    run_dir, error, step = failed(lab, NEVER)
    assert isinstance(error, OutOfMemory)
    assert error.wanted_bytes == 3 * 2**30
    assert "while evaluating" in error.message
    monkeypatch.undo()
    assert_resumes(lab, run_dir, NEVER, step)


@pytest.mark.parametrize("harm", ["in a step", "infinite loss"])
def test_what_is_not_whole_is_not_saved(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    accumulate, measure = TrainingStep.accumulate, TrainingStep.measure
    calls: list[int] = []

    def break_in_a_step(step: TrainingStep, *arguments: Any) -> None:
        accumulate(step, *arguments)
        calls.append(1)
        if len(calls) == 6:
            raise MemoryError("Unable to allocate 1.00 GiB")

    def break_after_an_infinite_loss(step: TrainingStep, arrays: Any) -> dict[str, torch.Tensor]:
        step.loss_sums.fill_(torch.inf)
        return {name: total * torch.nan for name, total in measure(step, arrays).items()}

    if harm == "in a step":
        monkeypatch.setattr(TrainingStep, "accumulate", break_in_a_step)
    else:
        monkeypatch.setattr(TrainingStep, "measure", break_after_an_infinite_loss)
    run_dir = lab.new_run()
    with pytest.raises(TrainerError):
        lab.run(run_dir, NEVER)
    assert own_checkpoints(run_dir) == []


@pytest.mark.parametrize("error", ["infinite score", "memory"])
@pytest.mark.parametrize("place", ["a weight", "a running statistic"])
def test_weights_that_are_not_finite_are_not_saved_but_the_best_before_them(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: str,
    place: str,
) -> None:
    """The loss was finite before the update that broke them, and the best still waits in memory."""
    monkeypatch.setattr("worker.trainer.checkpoints.saver.SHARE_OF_WRITING", 1e-9)
    measured, measure = [], TrainingStep.measure

    def diverge(step: TrainingStep, arrays: Any) -> dict[str, torch.Tensor]:
        measured.append(step)
        if len(measured) >= 8:  # from the middle of the third evaluation on
            model = step.model
            tensors = model.parameters() if place == "a weight" else model.buffers()
            next(one for one in tensors if one.is_floating_point()).detach().fill_(torch.nan)
            if error == "memory":
                raise MemoryError("Unable to allocate 3.00 GiB for an array")
        return measure(step, arrays)

    monkeypatch.setattr(TrainingStep, "measure", diverge)
    run_dir = lab.new_run()
    best = {"checkpoint": {"every_steps": None, "keep_best": 1}, "evaluation": {"every_steps": 2}}
    patch = {**NEVER, **best}
    with pytest.raises(OutOfMemory if error == "memory" else TrainerError) as caught:
        lab.run(run_dir, patch)
    if error != "memory":
        assert caught.value.reason is Reason.nonfinite
        assert "though the weights are finite" not in caught.value.message
    found = [path["path"].rpartition("-")[2] for path in own_checkpoints(run_dir)]
    assert found == ["4", "2"]
    assert "could not be saved" not in caplog.text


def test_a_state_that_cannot_be_saved_hides_no_error(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(_step: TrainingStep, _arrays: Any) -> torch.Tensor:
        for name in ("make_folder", "write_file"):
            monkeypatch.setattr(f"worker.trainer.checkpoints.disk.{name}", refuse)
        raise MemoryError

    def refuse(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(TrainingStep, "measure", run_out)
    with pytest.raises(OutOfMemory, match="while evaluating"):
        lab.run(patch=NEVER)
