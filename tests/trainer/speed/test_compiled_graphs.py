"""Compiled steps of packed graphs: one for each shape of a batch, all of them before the first."""

import shutil
from pathlib import Path

import pytest

from app.spec.stored import read_stored
from tests.trainer.lab import BASE_SPEC, Lab, merged
from tests.trainer.recipes.molecules import CPU, run_of, write
from tests.trainer.speed.test_compilation import applied, forget
from tests.trainer_data.factories import preparing
from worker.trainer.data.dataset import open_data
from worker.trainer.speed.compiled import _evaluated_shapes
from worker.trainer.speed.compiler import count

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.minutes,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler"),
]
# Of weights that stay, so that both evaluations ask the same of the same.
SMALL = {
    "recipe": {"hidden_size": 8, "num_layers": 1},
    "data": {"split": {"test_fraction": 0.0}},
    "training": {"batch_size": 12, "drop_last": True},
    "evaluation": {"batch_size": 12},
    "optimizer": {"kind": "sgd", "lr": 1e-30, "weight_decay": 0.0},
}


def test_each_shape_is_compiled_once_and_none_in_the_training(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    write(lab.data, 60)
    patch = merged(run_of("masked", epochs=3), SMALL)
    launched = lab.run(patch=patch)
    spec = read_stored(merged(BASE_SPEC, patch))  # as the attempt reads it
    data = open_data(spec, lab.datasets(), CPU, preparing(lab.root), 2**30)
    shapes = [*data.train.shapes.each(data.train.plan.sizes), *_evaluated_shapes(data)]
    data.close()
    forget()
    compiled = lab.run(patch=merged(patch, {"runtime": {"compile": {"mode": "default"}}}))
    assert applied(compiled)["compile"]["graphs"] == count().graphs == len(shapes) > 3
    assert compiled.of_kind("warning") == launched.of_kind("warning") == []
    scores = [one.result["last"]["val_loss"] for one in (launched, compiled)]
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)
    forget()
