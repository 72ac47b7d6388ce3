"""Classes that a part lacks, which the trainer says before its first step."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from app.spec.data import RandomSplit
from tests.trainer.recipes.molecules import spec_of, write
from tests.trainer_data.factories import entry, preparing
from worker.trainer.data import labels
from worker.trainer.data.dataset import open_data
from worker.trainer.data.split import Parts, split_samples
from worker.trainer.errors import DataError

PARTS = ("training", "validation", "test")
RANDOM = {"method": "random", "validation_fraction": 0.2, "test_fraction": 0.1, "seed": 3}


def spec_with(split: dict[str, Any], task: str = "classification") -> Any:
    return spec_of(task, data={"split": split})


def warnings_of(path: Path, split: dict[str, Any], task: str = "classification") -> list[str]:
    spec = spec_with(split, task)
    data = open_data(
        spec, {"numbers": entry(path)}, torch.device("cpu"), preparing(path.parent), 2**30
    )
    data.close()
    return [sentence for code, sentence in data.warnings if code == "class_lacking"]


def parts_of(split: dict[str, Any]) -> Parts:
    spec = spec_with(split)
    assert isinstance(spec.data.split, RandomSplit)
    return split_samples(spec.data, {"numbers": 200})


@pytest.mark.parametrize("only", [0, 1, 2])
def test_parts_of_a_random_split_that_lack_a_class_are_named(tmp_path: Path, only: int) -> None:
    """Class 2 has one sample, which is in one part."""
    path, parts = write(tmp_path / "a.h5", classes=True), parts_of(RANDOM)
    assert parts.test is not None
    rows = (parts.train, parts.validation, parts.test)[only].all_rows()
    assert warnings_of(path, RANDOM) == []
    with h5py.File(path, "r+") as file:
        file["targets"][rows[0]] = 2
    lacking = [name for name in PARTS if name != PARTS[only]]
    told = warnings_of(path, RANDOM)
    assert [one.partition(".")[0] for one in told] == [
        f"No sample of the {name} part has class 2 of 'targets'" for name in lacking
    ]
    assert all("Enlarge the part in data.split" in one for one in told)
    # The guard has judged this one, by what the inspection found.
    assert warnings_of(path, {"method": "chronological"}) == []
    # These numbers are a quantity there.
    assert warnings_of(path, RANDOM, "regression") == []


def test_a_split_by_a_field_is_judged_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", classes=True)
    with h5py.File(path, "r+") as file:
        file["part"] = np.repeat([0, 1], 100).astype(np.uint8)
        file["targets"][:] = np.repeat([0, 1, 2, 1], 50)
    assert [
        one.partition(".")[0] for one in warnings_of(path, {"method": "field", "field": "part"})
    ] == [
        "No sample of the training part has class 2 of 'targets'",
        "No sample of the validation part has class 0 of 'targets'",
    ]


def test_labels_that_were_not_looked_at_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "MOST_LABELS", 50)
    path, parts = write(tmp_path / "a.h5", classes=True), parts_of(RANDOM)
    with h5py.File(path, "r+") as file:
        file["targets"][parts.validation.all_rows()[0]] = 2
    told = {one.split()[4]: one for one in warnings_of(path, RANDOM)}
    assert "This is known of 50 of its 140 samples; the others were not" in told["training"]
    assert "looked at" not in told["test"]


def auc_warnings(path: Path, split: dict[str, Any]) -> list[str]:
    spec = spec_of("classification", data={"split": split}, evaluation={"metrics": ["auc"]})
    opened = entry(path), torch.device("cpu"), preparing(path.parent), 2**30
    data = open_data(spec, {"numbers": opened[0]}, *opened[1:])
    data.close()
    return [sentence for code, sentence in data.warnings if code == "test_without_auc"]


@pytest.mark.parametrize("split", [RANDOM, {**RANDOM, "method": "chronological", "seed": None}])
def test_a_part_of_one_class_has_no_auc(tmp_path: Path, split: dict[str, Any]) -> None:
    """A validation part ends the run before its first step, a test part does not."""
    split = {name: value for name, value in split.items() if value is not None}
    path = write(tmp_path / "a.h5", classes=True)
    spec = spec_with(split)
    parts = split_samples(spec.data, {"numbers": 200})
    assert parts.test is not None
    with h5py.File(path, "r+") as file:
        labels = np.arange(200) % 2
        file["targets"][:] = labels
    assert auc_warnings(path, split) == []
    labels[parts.test.all_rows()] = 1
    with h5py.File(path, "r+") as file:
        file["targets"][:] = labels
    (told,) = auc_warnings(path, split)
    assert told.startswith("All samples of the test part are of one class of 'targets': it has")
    assert "The test scores come without it." in told
    labels[parts.validation.all_rows()] = 0
    with h5py.File(path, "r+") as file:
        file["targets"][:] = labels
    with pytest.raises(DataError, match="of the validation part are of one class") as caught:
        auc_warnings(path, split)
    assert "leave auc out of evaluation.metrics" in caught.value.message


def test_each_of_several_targets_is_judged(tmp_path: Path) -> None:
    path, parts = write(tmp_path / "a.h5", classes=True), parts_of(RANDOM)
    with h5py.File(path, "r+") as file:
        del file["targets"]
        labels = np.stack([np.arange(200) % 2, np.zeros(200)], 1).astype(np.float32)
        labels[parts.train.all_rows()[0], 1] = 1
        file["targets"] = labels
    assert [one.partition(".")[0] for one in warnings_of(path, RANDOM)] == [
        f"No sample of the {name} part has class 1 of 'targets[:, 1]'"
        for name in ("validation", "test")
    ]
