"""Targets of one number a sample, (samples,), which most people's are: as (samples, 1)."""

import json
from typing import Any

import h5py
import numpy as np

from tests.cli.data.test_data import LOADERS


def test_targets_of_one_number_train_as_a_horizon_of_one(cli, up):
    noise = np.random.default_rng(0)
    x = noise.normal(size=(600, 12, 2)).astype("float32")
    y = x[:, -1, 0] + 0.1 * noise.normal(size=600).astype("float32")
    for name, targets in (("flat", y), ("column", y[:, None])):
        with h5py.File(up / "data" / f"{name}.h5", "w") as file:
            file["x"], file["y"] = x, targets
        assert cli("data", "register", name, f"{name}.h5").code == 0
    spec = up / "one-number.yaml"
    spec.write_text(
        "recipe: {kind: sequence, hidden_size: 4, patch: 6}\n"
        "data: {dataset: flat, inputs: [x], targets: [y]}\n"
        "training: {epochs: 2, batch_size: 32}\n"
        "evaluation: {metrics: [mae, rmse]}\n"
    )

    def trained(name: str, loader: Any) -> dict[str, float]:
        options = "--set", f"data.dataset={name}", "--set", f"data.loader={json.dumps(loader)}"
        run = cli("submit", str(spec), *options, "--watch")
        assert run.code == 0, run.err
        last: dict[str, float] = cli("ls", "--json").document["data"][0]["result"]["last"]
        return last

    expected = trained("column", LOADERS[0])
    assert expected["val_mae"] < 1
    assert [trained("flat", loader) for loader in LOADERS] == [expected] * 3
