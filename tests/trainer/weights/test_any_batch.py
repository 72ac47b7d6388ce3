"""An exported file takes batches of any size, also where it was exported with a single sample."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from app.lifecycle import Reason
from tests.trainer.lab import Lab
from tests.trainer.recipes.panels import WINDOW, made_panel, with_recipe
from tests.trainer.weights.test_exports import answers, order_for, trained
from worker.trainer.errors import TrainerError
from worker.trainer.recipes.base import Exported
from worker.trainer.tools.panel.panel_cut import PanelCut, write_panel
from worker.trainer.weights.any_batch import of_several, require_any_batch
from worker.trainer.weights.make import make_export

TRANSFORMER: dict[str, Any] = {"recipe": {"encoder": "transformer", "num_heads": 2}}
ONE_AT_A_TIME: dict[str, Any] = {"evaluation": {"batch_size": 1}}
ONE_HELD_OUT: dict[str, Any] = {"data": {"split": {"validation_fraction": 0.02}}}
EXAMPLE = Exported({"x": torch.arange(6.0).reshape(3, 2)})


@pytest.mark.parametrize(
    "patch",
    [ONE_AT_A_TIME, pytest.param(ONE_HELD_OUT, marks=pytest.mark.minutes)],
    ids=["batches", "part"],
)
def test_what_is_exported_with_one_sample_takes_several(lab: Lab, patch: dict[str, Any]) -> None:
    made = make_export(order := order_for(lab, trained(lab, TRANSFORMER | patch), "onnx"))
    assert made["facts"]["batch_size"] == 1
    with h5py.File(lab.data) as file:
        features = file["features"][:7]
    (together,) = answers(Path(order["out"]), features=features)
    for number, expected in enumerate(together):
        (alone,) = answers(Path(order["out"]), features=features[number : number + 1])
        np.testing.assert_allclose(alone[0], expected, rtol=1e-5)


@pytest.mark.minutes
def test_panels_exported_one_date_at_a_time_take_several(lab: Lab) -> None:
    write_panel(lab.data, made_panel(), PanelCut(WINDOW, (1, 3), "own"))
    patch = with_recipe(graph=None) | {"evaluation": {"metrics": ["mae"], "batch_size": 1}}
    make_export(order := order_for(lab, trained(lab, patch), "onnx"))
    features = np.random.default_rng(0).normal(size=(5, WINDOW, 6, 2)).astype(np.float32)
    present = np.ones((5, WINDOW, 6), bool)
    (forecast,) = answers(Path(order["out"]), features=features, present=present)
    assert forecast.shape == (5, 6, 2)


def test_a_file_for_one_sample_alone_is_not_kept(lab: Lab, monkeypatch: Any) -> None:
    """As PyTorch writes it where the example has one."""
    monkeypatch.setattr("worker.trainer.weights.onnx_export.of_several", lambda wanted: wanted)
    order = order_for(lab, trained(lab, TRANSFORMER | ONE_AT_A_TIME), "onnx")
    with pytest.raises(TrainerError, match=r"The ONNX file .* for batches of 1 sample alone \(w"):
        make_export(order)
    assert list(Path(order["out"]).parent.iterdir()) == []


def test_an_example_of_several_samples_stays_as_it_is() -> None:
    assert of_several(EXAMPLE) is EXAMPLE
    single = Exported({"x": torch.ones(1, 2), "lengths": torch.ones(1)})
    shapes = {name: tuple(one.shape) for name, one in of_several(single).inputs.items()}
    assert shapes == {"x": (2, 2), "lengths": (2,)}


def _fails(x: Tensor) -> list[Tensor]:
    if len(x) != 3:
        cause = RuntimeError("Got: 4 Expected: 3\nmore")
        raise TrainerError(Reason.trainer_error, "wrong") from cause
    return [x]


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (_fails, r"\(with 4: Got: 4 Expected: 3\)"),
        (lambda x: [x[:3]], r"its output output has the shape \(3, 2\) for 4\)"),
        (lambda x: [x - x.mean()], r"its output output differs by up to 0\.5 for the same s"),
        (lambda x: [x if len(x) == 3 else x * torch.nan], "differs by up to nan"),
    ],
    ids=["fails", "shape", "mixes samples", "nan"],
)
def test_what_depends_on_the_size_of_the_batch_is_refused(
    run: Callable[..., list[Tensor]], told: str
) -> None:
    with pytest.raises(TrainerError, match=f"The ONNX file .* of 3 samples alone .*{told}"):
        require_any_batch({"onnx": run}, EXAMPLE)


def test_weights_of_8_bits_may_round_otherwise_but_no_more_than_they_do_anyway() -> None:
    def plain(x: Tensor) -> list[Tensor]:
        return [x]

    def rounded(x: Tensor) -> list[Tensor]:
        return [x + 0.1 * (len(x) == 3)]

    def broken(x: Tensor) -> list[Tensor]:
        return [x + 0.1 * (len(x) == 3) - 0.5 * (len(x) == 4)]

    require_any_batch({"onnx": plain, "int8": rounded}, EXAMPLE)
    with pytest.raises(TrainerError, match=r"The INT8 file .* differs by up to 0\.6"):
        require_any_batch({"onnx": plain, "int8": broken}, EXAMPLE)
    with pytest.raises(TrainerError, match=r"The ONNX file .* differs by up to 0\.1"):
        require_any_batch({"onnx": rounded}, EXAMPLE)
