"""Small made panels, each with a signal that one part of the recipe `panel-graph` is for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.tools.panel.panel_cut import Panel, PanelCut, write_panel

DATES, GROUPS, MEMBERS, WINDOW = 500, 4, 3, 12
SHAPE = (DATES, GROUPS * MEMBERS)
Columns = dict[str, NDArray[np.float64]]
# What the example changes for these panels.
SPEC: dict[str, Any] = {
    "recipe": {
        "patch": 3,
        "hidden_size": 16,
        "horizons": [1],
        "highway": WINDOW,
        "graph": {"neighbors": MEMBERS - 1, "lookback": 100},
    },
    "data": {"split": {"gap": WINDOW}},
    "training": {"epochs": 20, "batch_size": 16},
    "optimizer": {"lr": 0.01},
    "evaluation": {"metrics": ["mae", "rank_correlation"]},
}


def groups(random: np.random.Generator) -> Columns:
    """Each entity moves as its group's signals on average did on the date before."""
    signals = random.normal(size=SHAPE)
    means = signals.reshape(DATES, GROUPS, MEMBERS).mean(2).repeat(MEMBERS, 1)
    moves = 2 * _next(means) + 0.2 * random.normal(size=SHAPE)
    return {"move": moves, "signal": signals}


def regimes(random: np.random.Generator) -> Columns:
    """One of two features tells the next move, and a third one tells which. Twelve are noise."""
    first, second, which, *noise = (random.normal(size=SHAPE) for _ in range(15))
    moves = _next(np.where(which > 0, first, second)) + 0.2 * random.normal(size=SHAPE)
    others = {f"noise_{number}": one for number, one in enumerate(noise)}
    return {"move": moves, "first": first, "second": second, "which": which, **others}


def drift(random: np.random.Generator) -> Columns:
    """What tells the next move is seen at a level and on a scale that wander."""
    states = random.uniform(size=SHAPE)
    level = np.cumsum(0.3 * random.normal(size=SHAPE), 0) + 5 * random.normal(size=SHAPE[1])
    scale = np.exp(np.cumsum(0.03 * random.normal(size=SHAPE), 0) + random.normal(size=SHAPE[1]))
    moves = _next(np.sin(6 * states)) + 0.1 * random.normal(size=SHAPE)
    return {"move": moves, "seen": level + scale * states}


def shocks(random: np.random.Generator) -> Columns:
    """A shock of all entities hides what tells them apart."""
    signals = random.normal(size=SHAPE)
    shock = 5 * random.standard_t(2, size=(DATES, 1))
    moves = _next(np.tanh(2 * signals)) + shock + 0.5 * random.normal(size=SHAPE)
    return {"move": moves, "signal": signals}


MADE: dict[str, Callable[[np.random.Generator], Columns]] = {
    "groups": groups,
    "regimes": regimes,
    "drift": drift,
    "shocks": shocks,
}


def write(path: Path, kind: str) -> None:
    columns = MADE[kind](np.random.default_rng(0))
    values = np.stack(list(columns.values()), -1)
    names = tuple(f"entity-{number}" for number in range(SHAPE[1]))
    panel = Panel(86_400 * np.arange(DATES), names, tuple(columns), values)
    write_panel(path, panel, PanelCut(WINDOW, (1,), "move"))


def entities_of(path: Path) -> int:
    with h5py.File(path) as file:
        return int(file["targets"].shape[1])


def _next(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """What is of one date, a date later."""
    return np.roll(values, 1, 0)
