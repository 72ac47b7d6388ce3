"""Tables that a recipe prepares of its data: made once, kept whole or not at all, never trusted."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from app.datacache import MANIFEST, TABLES, EntryLock, entries, remove
from app.lifecycle import Reason
from tests.trainer.lab import BUILDING_POLLS, Lab, Outcome, StopAtPoll, write_waves
from tests.trainer.test_numerics import spec_of
from worker.trainer.errors import SpecMismatch, TrainerError
from worker.trainer.recipes.base import Batch, Statistics, Tables, Task, TrainingData
from worker.trainer.recipes.sequence import SequenceTask


class Scaled(SequenceTask):
    """Weighs losses by the mean of the targets, which it prepares, as a table of each batch."""

    prepared = 0
    baselines = Task.baselines  # none, since their scores would be entries too
    prepared_by = ("hidden_size",)
    gives: ClassVar[Any] = None

    def prepare(self, data: TrainingData) -> Tables:
        type(self).prepared += 1
        sums, samples = np.zeros(4), 0
        for piece in data.pieces("targets"):
            sums += piece["targets"].sum(0)
            samples += len(piece["targets"])
        assert samples == data.num_samples
        assert sum(len(piece["features"]) for piece in data.whole("features")) == data.all_samples
        return self.gives or {"mean": torch.from_numpy(sums / samples), "seen": torch.tensor(1)}

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        assert not self.gives
        assert tables["mean"].shape == (4,)
        return super().build_model(statistics, tables)

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        weight = 1 + batch.tables["mean"].abs().mean().float()
        return {"loss": super().loss(model, batch)["loss"] * weight}


class Untensored(Scaled):
    gives: ClassVar[Any] = {"mean": [1.0]}


class Waiting(Scaled):
    def prepare(self, data: TrainingData) -> Tables:
        for _ in range(100):
            for piece in data.pieces("features"):
                assert len(piece["features"])
        return super().prepare(data)


@pytest.fixture(autouse=True)
def _scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Scaled)


def use(monkeypatch: pytest.MonkeyPatch, task: type[Scaled]) -> None:
    monkeypatch.setattr("worker.trainer.build.task_of", lambda kind: task)
    monkeypatch.setattr(task, "prepared", 0)


@pytest.fixture
def cache(lab: Lab) -> Iterator[Path]:
    """Which every attempt is told of."""
    folder = lab.root / "data-cache"
    lab.data_cache = {"folder": str(folder), "most_bytes": 2**20}
    yield folder
    assert not list(folder.glob(".*")), "nothing half-written stays"


def phases(outcome: Outcome) -> list[str]:
    return [event["phase"] for event in outcome.of_kind("phase")]


def test_tables_are_made_once_and_a_run_that_finds_them_ends_with_the_same_bits(
    lab: Lab, cache: Path
) -> None:
    first, second = lab.run(), lab.run(patch={"optimizer": {"lr": 1e-3}, "training": {"epochs": 1}})
    assert Scaled.prepared == 1
    assert phases(first)[:4] == ["restoring", "building", "preparing", "building"]
    assert "preparing" not in phases(second)
    third = lab.run()
    assert (third.weights, third.losses) == (first.weights, first.losses)
    (entry,) = entries(cache)
    assert (entry.recipe, entry.datasets) == ("sequence 1", ("waves",))
    assert first.of_kind("warning") == []


def test_a_run_is_resumed_with_them(lab: Lab, cache: Path) -> None:
    straight, run_dir = lab.run(), lab.new_run()
    lab.run(run_dir, stop=StopAtPoll(BUILDING_POLLS + 5))
    resumed = lab.run(run_dir)
    assert resumed.of_kind("restored")[0]["step"] > 0
    assert (resumed.weights, resumed.losses) == (straight.weights, straight.losses)


@pytest.mark.parametrize(
    "patch",
    [
        {"recipe": {"hidden_size": 9}},
        {"data": {"split": {"validation_fraction": 0.4}}},
        {"data": {"split": {"method": "random"}}},
    ],
    ids=["a declared parameter", "another training part", "another order of it"],
)
def test_what_they_follow_from_has_its_own(lab: Lab, cache: Path, patch: dict[str, Any]) -> None:
    lab.run()
    lab.run(patch=patch)
    assert Scaled.prepared == len(entries(cache)) == 2


def test_a_random_part_is_the_seeds(lab: Lab, cache: Path) -> None:
    for seed in (1, 2, 1):
        lab.run(patch={"data": {"split": {"method": "random"}}, "training": {"seed": seed}})
    assert Scaled.prepared == 2


def test_other_data_has_its_own(lab: Lab, cache: Path) -> None:
    lab.run()
    write_waves(lab.data, seed=5)
    lab.run()
    assert Scaled.prepared == 2


def cut(entry: Path) -> None:
    (entry / TABLES).write_bytes((entry / TABLES).read_bytes()[:-1])


def changed(entry: Path) -> None:
    tables = safetensors.torch.load((entry / TABLES).read_bytes())
    safetensors.torch.save_file({name: one + 1 for name, one in tables.items()}, entry / TABLES)


def without_tables(entry: Path) -> None:
    (entry / TABLES).unlink()


def without_manifest(entry: Path) -> None:
    (entry / MANIFEST).unlink()


def nonsense(entry: Path) -> None:
    (entry / MANIFEST).write_text("[]")


@pytest.mark.parametrize("damage", [cut, changed, without_tables, without_manifest, nonsense])
def test_a_damaged_entry_is_made_again_and_told(lab: Lab, cache: Path, damage: Any) -> None:
    whole = lab.run()
    (entry,) = entries(cache)
    damage(cache / entry.key)
    again = lab.run()
    assert (again.weights, again.losses) == (whole.weights, whole.losses)
    (warning,) = again.of_kind("warning")
    assert warning["code"] == "prepared_again"
    assert Scaled.prepared == 2
    assert lab.run().of_kind("warning") == []
    assert Scaled.prepared == 2


def test_the_least_recently_used_goes_when_there_are_too_many(lab: Lab, cache: Path) -> None:
    assert lab.data_cache is not None
    for hidden in (4, 5, 4, 6):
        lab.run(patch={"recipe": {"hidden_size": hidden}})
        lab.data_cache["most_bytes"] = 2 * entries(cache)[0].bytes
    kept = {
        json.loads((cache / one.key / MANIFEST).read_text())["parameters"]["hidden_size"]
        for one in entries(cache)
    }
    assert kept == {4, 6}


def test_what_is_larger_than_the_cache_is_not_kept(lab: Lab, cache: Path) -> None:
    lab.data_cache = {"folder": str(cache), "most_bytes": 3}
    assert lab.run().end is not None
    assert entries(cache) == []


def test_a_folder_that_nobody_may_write_to_costs_only_what_is_kept(lab: Lab, cache: Path) -> None:
    cache.write_text("a file")
    outcome = lab.run()
    assert outcome.end is not None
    assert outcome.end.reason is Reason.completed
    (warning,) = outcome.of_kind("warning")
    assert (warning["code"], "prepares it again" in warning["message"]) == ("not_kept", True)
    cache.unlink()


def test_two_trainers_make_them_once(lab: Lab, cache: Path) -> None:
    """The second waits for the first, and is stopped there when asked."""
    lab.run()
    (entry,) = entries(cache)
    lock = EntryLock(cache, entry.key)
    assert lock.take()
    assert not remove(cache, entry.key)
    waiting = lab.run(stop=StopAtPoll(BUILDING_POLLS))
    assert waiting.end is not None
    assert waiting.end.reason is Reason.interrupted
    release = threading.Timer(0.3, lock.__exit__)
    release.start()
    lab.run()
    release.join()
    assert Scaled.prepared == 1


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from app.datacache import EntryLock\n"
        "lock = EntryLock(Path(sys.argv[1]), 'key'); assert lock.take(); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == 9
    with EntryLock(tmp_path, "key") as lock:
        assert lock.take()


def test_a_stop_is_heard_while_they_are_made(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Waiting)
    outcome = lab.run(stop=StopAtPoll(BUILDING_POLLS + 20))
    assert outcome.end is not None
    assert "Stopped while preparing, before a step was made" in outcome.end.message


def test_something_else_than_tensors_is_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Untensored)
    with pytest.raises(TrainerError, match="gave for 'mean' a list") as caught:
        lab.run()
    assert caught.value.reason is Reason.trainer_error


def test_a_probe_needs_tables_of_its_own(lab: Lab) -> None:
    task = Scaled.__new__(Scaled)
    task.recipe = spec_of({}).recipe  # type: ignore[assignment]
    with pytest.raises(SpecMismatch, match="no made_up_tables"):
        task.made_up_tables()
    assert Task.made_up_tables(SequenceTask.__new__(SequenceTask)) == {}
