"""Ridges of scikit-learn, as baselines fit them with a penalty of one strength."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from worker.trainer.recipes import fitting

Values = NDArray[Any]
STRENGTH = 1e-2


@pytest.fixture
def one_strength(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the fits no choice but the number of steps, which a baseline's name tells."""
    monkeypatch.setattr(fitting, "STRENGTHS", (STRENGTH,))


def plain_ridge(inputs: Values, targets: Values, steps: int = 1) -> Callable[[Values], Values]:
    """Fits targets (samples, outputs) by the last steps of inputs (samples, steps, features).

    Features are standardized by all steps. Returns what forecasts from such inputs.
    """
    mean, std = inputs.mean((0, 1)), inputs.std((0, 1), ddof=1)
    std = np.where(std > 0, std, 1.0)  # of a column that is the same everywhere

    def columns(given: Values) -> Values:
        scaled: Values = (given - mean) / std
        return scaled[:, -steps:].reshape(len(given), -1)

    plain = Ridge(alpha=STRENGTH * len(inputs)).fit(columns(inputs), targets)
    return lambda given: plain.predict(columns(given))
