"""What is wrong with data for validation or test is told before the first step, with its row."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.datacache import entries
from tests.trainer.lab import Lab, Outcome, merged, read_events
from tests.trainer.recipes.test_board import PLAY, positions
from tests.trainer_data.test_packed import graphs_of
from worker.trainer.data.formats.packed_files import write_packed
from worker.trainer.errors import DataError

PARTS = ("validation", "test")
SPLIT = {"method": "datasets", "validation": "validation", "test": "test"}
MASKED: dict[str, Any] = {
    "recipe": {"kind": "molecule", "task": "masked", "hidden_size": 16, "num_layers": 1},
    "data": {
        "inputs": ["molecules"],
        "targets": ["molecules"],
        "standardize": {"inputs": False, "targets": False},
    },
    "evaluation": {"metrics": ["accuracy"]},
}


def write_positions(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in positions(40).items():
            file[name] = array
    return path


def write_molecules(path: Path) -> Path:
    graphs = graphs_of([5] * 40)
    for graph in graphs:
        graph["nodes"] %= 100
        graph["edge_values"] %= 100
    with h5py.File(path, "w") as file:
        write_packed(file, "molecules", graphs)
    return path


def in_files(lab: Lab, made: Path) -> None:
    """Training, validation and test have the same samples, each in a file of its own."""
    content = made.read_bytes()
    lab.data.write_bytes(content)
    for part in PARTS:
        lab.held_out[part] = lab.root / f"{part}.h5"
        lab.held_out[part].write_bytes(content)


def refused(lab: Lab, patch: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told):
        lab.run(patch=merged(patch, {"data": {"split": SPLIT}}))
    (folder,) = (lab.runs / str(lab.count)).iterdir()
    phases = [event["phase"] for event in read_events(folder) if event["kind"] == "phase"]
    assert "training" not in phases


def spoil(path: Path, name: str, place: int, value: Any) -> None:
    with h5py.File(path, "r+") as file:
        file[name][place] = value


@pytest.mark.parametrize("part", PARTS)
def test_a_move_that_is_none_is_told_with_its_file(lab: Lab, part: str) -> None:
    in_files(lab, write_positions(lab.root / "made.h5"))
    spoil(lab.held_out[part], "move", 17, 99)
    refused(lab, PLAY, rf"'move' is 99 in row 17 of {part}\.h5, and a move is 0 to 31")


@pytest.mark.parametrize("part", PARTS)
def test_a_feature_of_an_atom_out_of_range_is_told_with_its_file(lab: Lab, part: str) -> None:
    in_files(lab, write_molecules(lab.root / "made.h5"))
    spoil(lab.held_out[part], "molecules/nodes", 5 * 23, 250)
    refused(lab, MASKED, rf"250 as feature 0.*row 23 of {part}\.h5")


def test_a_file_that_is_mended_is_looked_at_again(lab: Lab) -> None:
    """What was found of the others is kept by what all of them hold."""
    in_files(lab, write_positions(lab.root / "made.h5"))
    folder = lab.root / "data-cache"
    lab.data_cache = {"folder": str(folder), "most_bytes": 2**20}
    whole: Outcome = lab.run(patch=merged(PLAY, {"data": {"split": SPLIT}}))
    assert [one.content for one in entries(folder)].count("tables") == 1
    assert np.isfinite(whole.result["test"]["test_loss"])
    spoil(lab.held_out["test"], "value", 3, 5)
    refused(lab, PLAY, r"'value' is 5 in row 3 of test\.h5")
