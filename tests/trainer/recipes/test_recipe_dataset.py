"""A recipe with a map-style dataset of its own: trained as what it gives would be from a file."""

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
import pytest
from torch.utils.data import Dataset

from app.lifecycle import Reason
from app.recipes.sequence import Sequence
from app.spec.data import Data
from app.spec.recipe import Array
from app.spec.run import RunSpec
from tests.trainer.lab import Lab, StopAtPoll, merged
from worker.trainer.errors import SpecMismatch, TrainerError
from worker.trainer.recipes.base import Samples, Task
from worker.trainer.recipes.sequence import SequenceTask

STEPS = 6
PATCH: dict[str, Any] = {
    "recipe": {"dropout": 0.0},
    "data": {
        "standardize": {"inputs": False, "targets": False},
        "loader": {"kind": "dataloader", "shuffle": "full"},
    },
}
BY_PROCESSES = {"data": {"loader": {"num_workers": 1, "multiprocessing_context": "forkserver"}}}


class Halves(Dataset[Mapping[str, Any]]):
    """The last steps of each window, scaled; the targets are left as they are."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        sample = self.samples[row]
        return {"features": sample["features"][STEPS:] / 8, "targets": sample["targets"]}


class Together(Halves):
    """Some at a time, as torch allows."""

    def __getitems__(self, rows: list[int]) -> list[Mapping[str, Any]]:
        return [Halves.__getitem__(self, row) for row in rows]

    def __getitem__(self, row: int) -> Mapping[str, Any]:
        raise AssertionError(row)


class Short(Together):
    """One fewer than it was asked for."""

    def __getitems__(self, rows: list[int]) -> list[Mapping[str, Any]]:
        return super().__getitems__(rows)[1:]


class Fewer(Halves):
    def __len__(self) -> int:
        return super().__len__() - 1


class Wider(Halves):
    def __getitem__(self, row: int) -> Mapping[str, Any]:
        sample = super().__getitem__(row)
        return {**sample, "features": sample["features"].astype(np.float64)}


class Lacking(Halves):
    def __getitem__(self, row: int) -> Mapping[str, Any]:
        return {"features": super().__getitem__(row)["features"]}


class Broken(Halves):
    def __getitem__(self, row: int) -> Mapping[str, Any]:
        raise ValueError(f"picture {row} is no picture")


def declared(_: Sequence, data: Data, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    return {**arrays, "features": Array((STEPS, 3), "float32")}


def use(monkeypatch: pytest.MonkeyPatch, made: type[Halves]) -> None:
    class Own(SequenceTask):
        @classmethod
        def dataset(cls, spec: RunSpec, samples: Samples) -> Dataset[Mapping[str, Any]]:
            assert spec.recipe.kind == "sequence"
            return made(samples)

    use_task(monkeypatch, Own)


def use_task(monkeypatch: pytest.MonkeyPatch, task: type[Task]) -> None:
    monkeypatch.setattr(Sequence, "dataset_arrays", declared)
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: task)


def written(lab: Lab) -> None:
    """What the dataset gives, as a file."""
    with h5py.File(lab.data, "r+") as file:
        halves = file["features"][:, STEPS:] / 8
        del file["features"]
        file["features"] = halves


@pytest.mark.parametrize(
    ("made", "loader"),
    [
        pytest.param(Halves, {}, id="one by one"),
        pytest.param(Together, {}, id="together"),
        pytest.param(Together, BY_PROCESSES, id="by processes", marks=pytest.mark.minutes),
    ],
)
def test_it_is_trained_on_as_its_samples_in_a_file_would_be(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, made: type[Halves], loader: dict[str, Any]
) -> None:
    with monkeypatch.context() as patched:
        use(patched, made)
        outcome = lab.run(patch=merged(PATCH, loader))
    written(lab)
    same = lab.run(patch=PATCH)
    assert (outcome.weights, outcome.losses) == (same.weights, same.losses)


def test_a_run_interrupted_anywhere_ends_as_one_that_was_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Halves)
    counting = StopAtPoll()
    whole = lab.run(patch=PATCH, stop=counting)
    stopped, _ = lab.in_stages(PATCH, counting.polls // 2, counting.polls // 3, None)
    assert stopped.of_kind("restored")
    assert (stopped.losses, stopped.weights) == (whole.losses, whole.weights)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (Fewer, "has 59 samples, and the registered one 60"),
        (Wider, r"gives 'features' as torch.float64 \(6, 3\), .* as torch.float32 \(6, 3\)"),
        (Lacking, "gives no 'targets'"),
        (Short, r"gives (\d+) samples where its __getitems__ was asked for \d+"),
    ],
)
def test_what_is_not_as_declared_is_the_packages_fault(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, made: type[Halves], told: str
) -> None:
    use(monkeypatch, made)
    with pytest.raises(TrainerError, match=rf"Task.dataset {told}.*Mend the recipe") as caught:
        lab.run(patch=PATCH)
    assert caught.value.reason is Reason.trainer_error


@pytest.mark.parametrize("loader", [{}, BY_PROCESSES], ids=["here", "by processes"])
def test_what_it_raises_ends_the_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, loader: dict[str, Any]
) -> None:
    use(monkeypatch, Broken)
    with pytest.raises(ValueError, match=r"picture \d+ is no picture"):
        lab.run(patch=merged(PATCH, loader))


def test_a_task_that_lacks_it_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    use_task(monkeypatch, SequenceTask)
    with pytest.raises(TrainerError, match=r"has no Task\.dataset"):
        lab.run(patch=PATCH)


def test_the_chunked_loader_cannot_ask_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Halves)
    with pytest.raises(SpecMismatch, match="the chunked loader cannot ask"):
        lab.run(patch=merged(PATCH, {"data": {"loader": {"kind": "chunked"}}}))
