"""Targets that never vary in the training part, which the trainer says before its first step."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.trainer.recipes.molecules import spec_of, write
from tests.trainer_data.factories import entry, preparing
from worker.trainer.data import constants
from worker.trainer.data.dataset import open_data

# 200 molecules, of which 140 are trained on.
SPLIT = {"method": "chronological", "validation_fraction": 0.2, "test_fraction": 0.1}


def warnings_of(folder: Path, targets: NDArray[np.float64], task: str = "regression") -> list[str]:
    path = write(folder / "a.h5")
    with h5py.File(path, "r+") as file:
        del file["targets"]
        file["targets"] = targets.astype(np.float32)
    spec = spec_of(task, data={"split": SPLIT})
    data = open_data(spec, {"numbers": entry(path)}, torch.device("cpu"), preparing(folder), 2**30)
    data.close()
    return [sentence for code, sentence in data.warnings if code == "constant_target"]


def test_a_target_that_is_constant_in_the_training_part_is_named(tmp_path: Path) -> None:
    targets = np.arange(200.0)
    assert warnings_of(tmp_path, targets) == []
    targets[:140] = 0.5
    (told,) = warnings_of(tmp_path, targets)
    assert told.startswith("'targets' is 0.5 in all 140 training samples. Nothing can be learned")
    targets[7] = np.nan
    assert warnings_of(tmp_path, targets) == [told], "a missing label is no value"
    targets[8] = 0.6
    assert warnings_of(tmp_path, targets) == []


def test_a_constant_column_of_several_is_named(tmp_path: Path) -> None:
    targets = np.stack([np.arange(200.0), np.full(200, 3.0)], 1)
    (told,) = warnings_of(tmp_path, targets)
    assert told.startswith("Column 1 of 'targets' is 3 in all 140 training samples.")


def test_classes_are_judged_by_what_a_part_lacks(tmp_path: Path) -> None:
    assert warnings_of(tmp_path, np.arange(200.0) // 140, "classification") == []


def test_samples_that_were_not_looked_at_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "MOST_BYTES", 32 * 4)
    (told,) = warnings_of(tmp_path, np.full(200, 2.0))
    assert "in the 32 training samples that were looked at." in told
