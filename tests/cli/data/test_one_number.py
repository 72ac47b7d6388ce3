"""Targets of one number a sample, (samples,), which most people's are: as (samples, 1)."""

import h5py
import numpy as np
import pytest

from tests.cli.data.test_data import trained


@pytest.mark.minutes
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

    column, flat = (
        trained(cli, spec, "--set", f"data.dataset={name}") for name in ("column", "flat")
    )
    assert column["val_mae"] < 1
    assert flat == column
