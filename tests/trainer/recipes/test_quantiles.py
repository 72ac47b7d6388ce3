"""Quantile forecasts: the loss against scikit-learn's, their order, coverage, and bad levels."""

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss
from torch import nn

from app.recipes.quantiles import levels_of, point_level, quantile_problems
from worker.trainer.recipes.quantiles import Banded, covered, error_quantiles, in_order, pinball

LEVELS = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)


def forecasts_and_targets() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    forecasts = torch.randn(200, 3, generator=random, dtype=torch.float64)
    return forecasts, torch.randn(200, generator=random, dtype=torch.float64)


def test_the_loss_is_that_of_scikit_learn_averaged_over_levels() -> None:
    forecasts, targets = forecasts_and_targets()
    each = [
        mean_pinball_loss(targets.numpy(), forecasts[:, place].numpy(), alpha=float(level))
        for place, level in enumerate(LEVELS)
    ]
    assert float(pinball(forecasts, targets, LEVELS).mean()) == pytest.approx(np.mean(each))


def test_sorted_forecasts_do_not_cross_and_lose_nothing() -> None:
    forecasts, targets = forecasts_and_targets()
    ordered = in_order(forecasts)
    assert (ordered.diff(dim=-1) >= 0).all()
    before, after = (pinball(one, targets, LEVELS).mean() for one in (forecasts, ordered))
    assert after < before


def test_a_target_on_the_bound_is_covered() -> None:
    forecasts = torch.tensor([[0.0, 1.0, 2.0]]).expand(4, 3)
    targets = torch.tensor([-0.1, 0.0, 2.0, 2.1])
    assert covered(forecasts, targets).tolist() == [False, True, True, False]


def test_the_band_of_a_baseline_covers_as_many_training_samples_as_its_levels_say() -> None:
    targets = torch.randn(1_001, 2, generator=torch.Generator().manual_seed(1)).double()
    offsets = error_quantiles(targets - 3.0, LEVELS)
    torch.testing.assert_close(offsets, (targets - 3.0).quantile(LEVELS, 0).T)
    point = nn.Identity()
    forecasts = Banded(point, offsets)(torch.full((1_001, 2), 3.0, dtype=torch.float64))
    below = (targets[..., None] <= forecasts).double().mean(0)
    assert below == pytest.approx(LEVELS.expand(2, 3), abs=2e-3)


@pytest.mark.parametrize(
    ("loss", "quantiles", "told", "fixed"),
    [
        ("mae", (0.1, 0.9), "loss is mae", None),
        ("quantile", (0.1, 1.0, 0.5), "has 1, which is not between 0 and 1", [0.1, 0.5]),
        ("quantile", (-1.0, 0.5), "has -1", None),
        ("quantile", (0.5,), "at least two", None),
        ("quantile", (0.9, 0.1), "do not ascend", [0.1, 0.9]),
        ("quantile", (0.1, 0.1), "do not ascend", None),
    ],
)
def test_levels_that_cannot_be_used_come_with_a_fix(
    loss: str, quantiles: tuple[float, ...], told: str, fixed: list[float] | None
) -> None:
    (problem,) = quantile_problems(loss, quantiles)
    assert told in problem.message
    assert problem.fix == {"/recipe/quantiles": fixed}
    mended = None if fixed is None else tuple(fixed)
    assert not list(quantile_problems(loss, mended))


def test_levels_have_a_default_and_the_one_nearest_the_median_is_the_point_forecast() -> None:
    assert levels_of("quantile", None) == (0.1, 0.5, 0.9)
    assert levels_of("mae", None) == ()
    assert not list(quantile_problems("quantile", None))
    assert point_level((0.05, 0.45, 0.6, 0.95)) == 1
