"""How far the targets of a panel reach is said by its file, and a spec cannot say otherwise."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from app.recipes.panel_graph import PanelGraph
from app.service.inventory import field_facts
from app.spec.data import Data
from tests.trainer.recipes.panels import MASKS
from tests.trainer_data.tools.test_panels import converted, made_rows
from worker.trainer.tools.inspect import inspect


def test_the_horizons_of_a_spec_are_those_of_the_file(tmp_path: Path) -> None:
    """The gap between the parts and the names of metrics follow from them."""
    converted(tmp_path, made_rows())
    found = inspect(tmp_path / "panel.h5")
    assert found["problems"] == []
    assert found["fields"]["targets"]["horizons"] == [2, 5]
    assert found["fields"]["known"]["horizons"] is None
    fields = {name: field_facts(each) for name, each in found["fields"].items()}
    arrays = {name: array for each in fields for name, array in fields[each].arrays(each).items()}
    data = Data.model_validate_json(json.dumps({"dataset": "panel", **MASKS}))
    for horizons, refused in ((2, 5), False), ((2, 20), True), ((5,), True):
        recipe = PanelGraph(kind="panel-graph", horizons=horizons, graph=None, patch=1, highway=0)
        problems = list(recipe.problems(data, arrays))
        assert bool(problems) is refused
        for problem in problems:
            assert problem.message.startswith("'targets' reaches 2, 5 dates ahead, and recipe.hor")
            assert problem.fix == {"/recipe/horizons": [2, 5]}


@pytest.mark.parametrize("told", [[], "5", [0.5], [[5]], b"5", 5])
def test_an_attribute_that_says_no_horizons_is_not_read(tmp_path: Path, told: Any) -> None:
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["x"], file["y"] = np.ones((9, 2)), np.ones((9, 3))
        file["y"].attrs["horizons"] = told
    assert inspect(tmp_path / "file.h5")["fields"]["y"]["horizons"] is None
