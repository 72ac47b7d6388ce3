"""docs/recipes.md, followed word by word: a package is written, installed, tested and trained."""

import re
from collections.abc import Iterator

import pytest

from tests.e2e.environment import ROOT, Reader, new_environment
from tests.pages import blocks

GUIDE = (ROOT / "docs" / "recipes.md").read_text()
# A name in bold, the rest of its paragraph, and the block behind that.
A_FILE = re.compile(r"\*\*`([\w./-]+)`\*\*(?:(?!\n\n).)*\n\n```\w+\n(.*?)```", re.DOTALL)
FILES = dict(A_FILE.findall(GUIDE))
(COMMANDS,) = blocks("sh", GUIDE)
MORE = re.findall(r"```python\n((?:class|def) .*?)```", GUIDE, re.DOTALL)

# The code of the last part, used as the loop would.
USE_MORE = """
import json, torch
from collections.abc import Mapping
from torch import Tensor, nn
from torch.utils.data import Dataset
from app.spec.data import Data
from app.spec.recipe import Array
from app.spec.run import RunSpec
from worker.trainer.recipes.base import Exported, Samples, WeightedLoss
from walks_recipe.recipe import Walks
from test_walks import FIELDS, SPEC
from walks_recipe.task import *

{blocks}

CPU = torch.device("cpu")
batch = Valid.for_run(SPEC, FIELDS).made_up(5, CPU)
assert batch.arrays["label"].tolist() == [0, 1, 0, 1, 0]
assert batch.arrays["tokens"].shape == (5, 16)
assert HalfWalks(kind="walks").dataset_arrays(SPEC.data, {{}})["tokens"].shape == (8,)
made = HalfWalksTask.dataset(SPEC, [{{"tokens": torch.arange(16), "label": 1}}])
assert len(made) == 1
assert made[0]["tokens"].tolist() == list(range(8))
task = Portable.for_run(SPEC, FIELDS)
batch = task.made_up(2, CPU)
assert task.exported(batch).inputs["tokens"].dtype is torch.int64
task = Balanced.for_run(SPEC, FIELDS)
weights = torch.tensor([0.5, 3.0])
model = task.build_model({{}}, {{}})
batch = Batch(Valid.for_run(SPEC, FIELDS).made_up(5, CPU).arrays, 5, {{"weights": weights}})
expected = functional.cross_entropy(*task._forecast(model, batch), weights)
torch.testing.assert_close(task.loss(model, batch).means()["loss"], expected)
task = Carrying.for_run(SPEC, FIELDS)
tables = task.made_up_tables()
model = task.build_model({{}}, tables)
batch = Batch(task.made_up(4, CPU).arrays, 4, tables)
for _ in range(3):
    task.loss(model, batch)
assert task.carried(model)["seen"] == 12
task.begin("evaluation", model)
assert task.carried(model)["seen"] == 12
task.begin("epoch", model)
assert task.carried(model)["seen"] == 0
assert "seen" not in model.state_dict()
counts = torch.tensor([[2, 1], [1, 0], [0, 0]])
graphs = {{"graphs/samples": torch.tensor([0, 0, 1, 3]), "graphs/counts": counts}}
means = mean_of_nodes(torch.tensor([[1.0], [3.0], [5.0], [9.0]]), Batch(graphs, 3))
assert means.tolist() == [[2.0], [5.0], [0.0]]
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    new_environment(folder / ".venv")
    reader = Reader(folder)
    for name, content in FILES.items():
        (reader.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (reader.folder / name).write_text(content)
    yield reader
    reader.leave()


def test_every_file_of_the_guide_is_found() -> None:
    assert set(FILES) == {
        "train.py",
        "walks.yaml",
        "walks-recipe/pyproject.toml",
        "walks-recipe/walks_recipe/__init__.py",
        "walks-recipe/walks_recipe/recipe.py",
        "walks-recipe/walks_recipe/task.py",
        "walks-recipe/test_walks.py",
    }
    assert len(MORE) == 6


@pytest.mark.minutes
def test_its_commands_install_and_train_it(reader: Reader) -> None:
    told = reader.type(COMMANDS)
    assert "walks 0.1.0" in told
    assert re.search(r"succeeded|Trained \d+ of \d+ steps", told), told
    best = re.search(r"best val_recall ([0-9.]+)", told)
    assert best, told
    assert float(best[1]) > 0.8
    assert re.search(r"[0-9a-f]{32} +walks 0.1.0 +tables +walks", told), told


@pytest.mark.minutes
def test_the_packages_own_test_and_what_more_there_is(reader: Reader) -> None:
    reader.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "walks-recipe")
    reader.run("python", "-c", USE_MORE.format(blocks="\n".join(MORE)), cwd="walks-recipe")
