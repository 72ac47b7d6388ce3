"""Levels of quantile forecasts: their defaults, and the problems that a spec may have with them."""

from collections.abc import Iterator
from itertools import pairwise

from app.spec.recipe import Problem

USUAL_LEVELS = (0.1, 0.5, 0.9)


def levels_of(loss: str, quantiles: tuple[float, ...] | None) -> tuple[float, ...]:
    """Returns the levels that are forecast, ascending; none unless the loss is `quantile`."""
    return (quantiles or USUAL_LEVELS) if loss == "quantile" else ()


def point_level(levels: tuple[float, ...]) -> int:
    """Returns the place of the level nearest 0.5, whose forecast is the point forecast."""
    return min(range(len(levels)), key=lambda place: abs(levels[place] - 0.5))


def quantile_problems(loss: str, quantiles: tuple[float, ...] | None) -> Iterator[Problem]:
    """Yields a problem for levels without the loss that trains them, and for unusable levels."""
    if quantiles is None:
        return
    place = ("recipe", "quantiles")
    if loss != "quantile":
        yield Problem(
            place,
            f"recipe.quantiles names levels, and recipe.loss is {loss}.",
            "Only the loss quantile trains levels; with another one they would change nothing.",
            {"/recipe/quantiles": None},
        )
        return
    fitting = tuple(sorted({level for level in quantiles if 0 < level < 1}))
    fix = {"/recipe/quantiles": list(fitting) if len(fitting) > 1 else None}
    if outside := [level for level in quantiles if not 0 < level < 1]:
        yield Problem(
            place,
            f"recipe.quantiles has {', '.join(f'{level:g}' for level in outside)}, which is not "
            "between 0 and 1.",
            "A level is the share of targets that lie below its forecast, such as 0.9.",
            fix,
        )
    elif len(quantiles) < 2:
        yield Problem(
            place,
            f"recipe.quantiles names {len(quantiles)} level, and at least two are needed.",
            "The outermost levels are the band whose coverage is measured. For one number a target"
            " take the loss mae, which trains the median.",
            fix,
        )
    elif any(low >= high for low, high in pairwise(quantiles)):
        yield Problem(
            place,
            f"The levels of recipe.quantiles ({', '.join(f'{level:g}' for level in quantiles)}) do "
            "not ascend.",
            "Forecasts are sorted, so the first one has to be that of the lowest level.",
            fix,
        )
