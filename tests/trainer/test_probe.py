"""The child that measures one step: what it says when a step cannot be made."""

import json
import os
import resource
import subprocess
import sys

import pytest

from app.planning.imports import IMPORTS
from app.spec.run import RunSpec
from benchmarks.memory.memory_cases import BUILD
from tests.trainer.recipes.molecules import FIELDS as FIELDS_OF_MOLECULES
from tests.trainer.recipes.molecules import request_of

FIELDS = {
    "features": {"shape": [24, 3], "dtype": "float32"},
    "targets": {"shape": [4], "dtype": "float32"},
}
COMMAND = [sys.executable, "-P", "-m", "worker.trainer.tools.probe"]


RAGGED = {**FIELDS, "features": {"shape": [25, 3], "dtype": "float32", "ragged": True}}


def probe(
    *, data_bytes: int | None = None, path: str = "", batch: int = 16, fields=FIELDS, **recipe
):
    recipe = {"kind": "sequence", "patch": 4, "residual": "none", "highway": 0, **recipe}
    request = {"recipe": recipe, "data": {"dataset": "waves"}}
    return measured(request, batch, fields, path=path, data_bytes=data_bytes)


def measured(request, batch, fields, *, path="", data_bytes=None, **more):
    spec = RunSpec.model_validate_json(json.dumps(request)).model_dump(mode="json")
    order = {"spec": spec, "fields": fields, "device": "cpu", "threads": 1, "batch_size": batch,
             "evaluation_batch_size": 2 * batch, **more}  # fmt: skip
    paths = [part for part in (path, os.environ.get("PYTHONPATH", "")) if part]
    child = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    if data_bytes is not None:
        resource.prlimit(child.pid, resource.RLIMIT_DATA, (data_bytes, data_bytes))
    out, err = child.communicate(json.dumps(order), timeout=120)
    assert child.returncode == 0, err
    return json.loads(out)


def test_a_step_and_an_evaluation_are_measured():
    found = probe()
    assert [batch for batch, _ in found["training"]] == [2, 16]
    small, large = (peak for _, peak in found["training"])
    assert 0 < small <= large <= found["accumulating"]
    batch, peak = found["evaluation"]
    assert batch == 32
    assert peak > 0
    assert found["reserved_bytes"] is None
    assert all(rate > 0 for rate in found["samples_per_second"])
    assert found["parameters"] > 0


def test_a_step_of_ragged_samples_is_measured_with_the_longest():
    found = probe(fields=RAGGED, batch=4096, hidden_size=64)
    assert "error" not in found
    small, large = (peak for _, peak in found["training"])
    assert large - small > 3000 * 7 * 64 * 4


def test_a_step_of_graphs_is_measured_with_as_many_rows_as_are_captured():
    """Of four deviations above the mean: half of the batches are larger than that."""
    fields = {
        name: {"shape": list(one.shape), "dtype": one.dtype.name, "rows": one.rows}
        for name, one in FIELDS_OF_MOLECULES.items()
    }
    spread = {"mean": 6.5, "std": 500.0, "most": 10_000}
    spreads = {name: spread for name, one in fields.items() if one["rows"] is not None}
    request = request_of("regression", recipe={"hidden_size": 64})
    found = measured(request, 256, fields, spreads=spreads)
    assert "error" not in found
    _, (_, large) = found["training"]
    captured = 256 * 6.5 + 4 * 16 * 500
    assert large > captured * 10 * 64 * 4  # at the least: of the means a twentieth


def test_a_larger_batch_takes_more():
    found = probe(batch=4096, hidden_size=64)
    small, large = (peak for _, peak in found["training"])
    assert large - small > 3000 * 6 * 64 * 4  # at the least its states


def test_memory_that_runs_out_is_told_with_the_batch():
    found = probe(batch=60_000, hidden_size=64, data_bytes=655 * 2**20 + IMPORTS[BUILD].trainer)
    assert found["out_of_memory"] == ["training", 60_000]
    assert found["least_bytes"] > 300 * 2**20  # all that it was given beside its imports
    assert found["error"].startswith("The host ran out of memory while training with a batch of")


def test_a_model_that_cannot_be_built_is_told():
    found = probe(patch=5)
    assert found["out_of_memory"] is None
    assert "patch of 5 does not divide" in found["error"]


@pytest.mark.parametrize("text", ["raise ImportError('no CUDA library')", "import nothing_at_all"])
def test_a_torch_that_does_not_load_is_told(tmp_path, text):
    (tmp_path / "torch.py").write_text(text)
    found = probe(path=str(tmp_path))
    assert found["error"].startswith("PyTorch cannot be used there: ")
    assert "worker extra" in found["error"]
