"""Writes a panel as samples: all entities of a date, with the dates before it.

The file has `features` (dates, entities, features) and `present` (dates, entities) as windows of
one series, `date`, the number of each sample's last date, `targets` and `known` (entities,
horizons), and `ends`, when that date was (epoch seconds). What is not there is 0, as is its mask.

The target is ln of the realized volatility over the dates to come (`volatility`: the root of the
mean square of a price's logarithmic changes), or the mean of a column over them. Of what a window
or a target looks at, three quarters have to be there.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import write_roles
from worker.trainer.data.formats.window_files import HORIZONS, VOLATILITY, write_windows
from worker.trainer.data.source import Field, Rows
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import require_new

PRICES = ("close", "price", "adj close")
# Of a price: its change, its size, and the volatility so far over so many dates, as logarithms.
TRAILING = (5, 20, 60)
OF_A_PRICE = ("change", "size", *(f"{VOLATILITY}_{dates}" for dates in TRAILING))
LEAST_SHARE = 0.75

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Panel:
    """Rows of all entities: `values` (dates, entities, columns), NaN where there is none."""

    times: Rows
    """Epoch seconds, ascending."""
    entities: tuple[str, ...]
    columns: tuple[str, ...]
    values: Floats


@dataclass(frozen=True)
class PanelCut:
    """Dates of a window, what is forecast and how many dates ahead, every how many dates."""

    window: int
    horizons: tuple[int, ...]
    target: str = VOLATILITY
    every: int = 1


def write_panel(
    out: Path,
    panel: Panel,
    cut: PanelCut,
    max_gap: int | None = None,
    *,
    force: bool = True,
    **attributes: Any,
) -> dict[str, Any]:
    """Write `out`, as a whole or not at all; says what it holds. `max_gap`: seconds from one date
    to the next that no window reaches over. `force`: whether `out` may be replaced. DataError when
    there is not one sample.
    """
    begins = np.diff(panel.times, prepend=panel.times[0]) > (max_gap or np.inf)
    names, features, target = _features(panel, cut.target, begins)
    present = np.asarray(np.isfinite(features).all(-1))
    targets = np.stack([target(horizon) for horizon in cut.horizons], -1)
    known = np.isfinite(targets) & present[..., None] & _without_gap(begins, cut)[:, None]
    samples = _samples(present, known, begins, cut)
    series = np.where(present[..., None], features, 0.0).astype(np.float32)
    require_new(out, force=force)
    with whole_file(out) as partial, h5py.File(partial, "w") as file:
        starts = samples - cut.window + 1
        for name, steps in (("features", series), ("present", present.astype(np.uint8))):
            step = Field(steps.shape[1:], steps.dtype)
            write_windows(file, name, io.BytesIO(steps.tobytes()), step, starts, cut.window)
        file["date"] = samples.astype(np.int32)
        file["targets"] = np.where(known, targets, 0.0)[samples].astype(np.float32)
        file["targets"].attrs[HORIZONS] = list(cut.horizons)
        file["known"] = known[samples].astype(np.uint8)
        file["ends"] = panel.times[samples]
        file.attrs.update({
            "feature_names": list(names), "entities": list(panel.entities),
            "forecasts": cut.target, **attributes,
        })  # fmt: skip
        write_roles(file, ["features", "present", "date"], ["targets", "known"])
    return {
        "path": str(out),
        "bytes": out.stat().st_size,
        "samples": len(samples),
        "dates": len(panel.times),
        "entities": len(panel.entities),
        "features": list(names),
        "target": cut.target,
        "horizons": list(cut.horizons),
        "present": float(present[samples].mean()),
    }


def _samples(
    present: NDArray[np.bool_], known: NDArray[np.bool_], begins: NDArray[np.bool_], cut: PanelCut
) -> Rows:
    """The last date of each: of whole windows over which no gap reaches, and with something to
    look at and to forecast.
    """
    dates = np.arange(len(present))
    stretch_begin = np.maximum.accumulate(np.where(begins, dates, 0))
    whole = np.asarray(dates - stretch_begin >= cut.window - 1)
    # Before any entity has its features there is nothing to learn from.
    first = int(np.argmax(present.any(1))) + cut.window - 1
    samples = dates[whole & known.any((1, 2)) & (dates >= first)][:: cut.every]
    if not len(samples):
        raise DataError(
            f"Not one sample fits: {cut.window:,} dates, and {max(cut.horizons):,} behind them, are"
            f" more than the {len(present):,} dates have without a gap. Ask for shorter windows and"
            " horizons, or allow longer gaps (--max-gap)."
        )
    return samples.astype(np.int64)


def _without_gap(begins: NDArray[np.bool_], cut: PanelCut) -> NDArray[np.bool_]:
    """(dates, horizons): whether none lies between a date and the last of its horizon."""
    stretch = np.cumsum(begins)
    last = np.arange(len(begins))[:, None] + np.array(cut.horizons)
    reached = stretch[np.minimum(last, len(begins) - 1)]
    return np.asarray(reached == stretch[:, None])


def _features(
    panel: Panel, target: str, begins: NDArray[np.bool_]
) -> tuple[tuple[str, ...], Floats, Any]:
    """Their names, (dates, entities, features), and what a horizon's target is."""
    if target != VOLATILITY:
        column = panel.values[..., panel.columns.index(target)]
        return panel.columns, panel.values, lambda dates: _mean_ahead(column, dates)
    place = panel.columns.index(price_of(panel.columns))
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.diff(np.log(panel.values[..., place]), axis=0, prepend=np.nan)
    changes[begins] = np.nan
    squares = np.square(changes)
    made = [changes, np.abs(changes), *(_log_root(_mean_behind(squares, n)) for n in TRAILING)]
    others = [panel.values[..., i] for i in range(len(panel.columns)) if i != place]
    names = (*OF_A_PRICE, *(name for name in panel.columns if name != panel.columns[place]))
    features = np.stack([*made, *others], -1)
    return names, features, lambda dates: _log_root(_mean_ahead(squares, dates))


def price_of(columns: Sequence[str]) -> str:
    """The column of prices. DataError with those there are."""
    for name in PRICES:
        if name in columns:
            return name
    raise DataError(
        f"Volatility is that of a price, and there is no column {' or '.join(PRICES)}, only"
        f" {', '.join(columns)}. Rename one, or name another column to forecast (--target)."
    )


def _mean_behind(values: Floats, dates: int) -> Floats:
    """Over the last so many dates and the date itself, NaN where too few are there."""
    padded = np.concatenate([np.full((dates - 1, *values.shape[1:]), np.nan), values])
    return _mean_of(padded, dates)


def _mean_ahead(values: Floats, dates: int) -> Floats:
    """Over the next so many dates, without the date itself; NaN where the series ends before."""
    behind = np.concatenate([values[1:], np.full((dates, *values.shape[1:]), np.nan)])
    found = _mean_of(behind, dates)
    found[max(0, len(values) - dates) :] = np.nan
    return found


def _mean_of(values: Floats, dates: int) -> Floats:
    """(dates, entities): of each so many dates in a row the mean of those that are there."""
    windows = np.lib.stride_tricks.sliding_window_view(values, dates, 0)
    counts = np.isfinite(windows).sum(-1)
    sums = np.where(np.isfinite(windows), windows, 0.0).sum(-1)
    enough = counts >= np.ceil(LEAST_SHARE * dates)
    return np.where(enough, sums / np.maximum(counts, 1), np.nan)


def _log_root(squares: Floats) -> Floats:
    """ln of the root; NaN of what never moved, whose logarithm is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(squares > 0, 0.5 * np.log(squares), np.nan)
