"""Builds the sample `panel`: prices of 20 stocks since 1990, to forecast their volatility.

`python -m worker.trainer.tools.panel.sample_panel OUT.h5` writes windows of 60 days of all stocks,
and of each date ln of the realized volatility of the next 5 and 20 days.

`--made` writes prices that nobody ever paid: of as many entities as asked for, from a factor model
with a seed. Volatility comes and goes in the market, in sectors and in each entity; some entities
come later, and some are missing for months.
"""

import argparse
import csv
import gzip
import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.installing import pip_install
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import answer
from worker.trainer.tools.bad_rows import time_of
from worker.trainer.tools.panel.panel_cut import Floats, Panel, PanelCut, write_panel

PRICES_FILE = "skfolio/datasets/data/sp500_dataset.csv.gz"
WINDOW, HORIZONS = 60, (5, 20)
CUT = PanelCut(WINDOW, HORIZONS)
DAY_SECONDS = 86_400
# Of the made panel: entities of a sector, and how lasting volatility is from day to day.
SECTOR_SIZE, LASTING = 16, 0.97
MARKET, SECTOR, OWN = 0.007, 0.006, 0.012  # deviations of a day

REAL: dict[str, Any] = {
    "source": f"daily prices of 20 stocks of the S&P 500, adjusted; {PRICES_FILE} of the PyPI"
    " package skfolio, which has them from Yahoo Finance",
    "licence": "skfolio, which carries the file, is under the BSD 3-Clause licence.",
}


@dataclass(frozen=True)
class MadeSize:
    """Of a made panel, and the seed that it is drawn from."""

    entities: int = 256
    dates: int = 2_520
    seed: int = 0


def find_prices_file() -> Path:
    """Inside skfolio, which is not imported: it would load cvxpy, scikit-learn and plotly."""
    try:
        distribution = importlib.metadata.distribution("skfolio")
    except importlib.metadata.PackageNotFoundError:
        raise DataError(
            "The sample panel comes from the package skfolio, which is not installed: "
            f"{pip_install('stoker[panels]')}, or, without all that skfolio itself needs, "
            f"{pip_install('--no-deps', 'skfolio')}."
        ) from None
    path = Path(str(distribution.locate_file(PRICES_FILE)))
    if not path.is_file():
        raise DataError(
            f"skfolio {distribution.version} has no {PRICES_FILE}; install skfolio >= 0.10."
        )
    return path


def read_prices(path: Path) -> Panel:
    """A row a day, a column a stock."""
    with gzip.open(path, "rt", newline="") as file:
        rows = csv.reader(file)
        names = tuple(next(rows)[1:])
        read = list(rows)
    times = np.array([time_of(date).seconds for date, *_ in read], np.int64)
    prices = np.array([[float(one or "nan") for one in each] for _, *each in read])
    return Panel(times, names, ("close",), prices[..., None])


def made_prices(size: MadeSize) -> Panel:
    """From factors whose volatility comes and goes: the market's, each sector's, each entity's."""
    draw = np.random.default_rng(size.seed)
    sectors = np.arange(size.entities) // SECTOR_SIZE
    market = MARKET * _shocks(draw, size.dates, 1)
    by_sector = SECTOR * _shocks(draw, size.dates, int(sectors[-1]) + 1)
    own = OWN * _shocks(draw, size.dates, size.entities)
    loads = draw.uniform(0.5, 1.5, (2, size.entities))
    changes = loads[0] * market + loads[1] * by_sector[:, sectors] + own
    prices = 100 * np.exp(np.cumsum(changes, 0))
    _leave_out(draw, prices)
    days = np.arange(size.dates)
    times = (days // 5 * 7 + days % 5 + 4) * DAY_SECONDS  # Mondays to Fridays
    names = tuple(f"made-{number:03}" for number in range(size.entities))
    return Panel(times.astype(np.int64), names, ("close",), prices[..., None])


def _shocks(draw: np.random.Generator, dates: int, count: int) -> Floats:
    """(dates, count) of mean 0 and deviation about 1, in calm and in stormy times."""
    log, found = np.zeros(count), np.empty((dates, count))
    for date in range(dates):
        log = LASTING * log + 0.15 * draw.normal(size=count)
        found[date] = np.exp(log) * draw.normal(size=count)
    return found


def _leave_out(draw: np.random.Generator, prices: Floats) -> None:
    """An eighth of the entities come later, and an eighth are missing for three months."""
    dates, count = prices.shape
    chosen = draw.permutation(count)
    for entity in chosen[: count // 8].tolist():
        prices[: draw.integers(dates // 2), entity] = np.nan
    for entity in chosen[count // 8 : count // 4].tolist():
        begin = int(draw.integers(dates // 4, dates - dates // 4))
        prices[begin : begin + 63, entity] = np.nan


def build(out: Path) -> dict[str, Any]:
    return write_panel(out, read_prices(find_prices_file()), CUT, **REAL)


def make(out: Path, size: MadeSize) -> dict[str, Any]:
    source = f"made by a factor model, seed {size.seed}: nobody ever paid these prices"
    return write_panel(out, made_prices(size), CUT, source=source)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sample_panel", description="Prices of many stocks.")
    parser.add_argument("path", type=Path, metavar="OUT.h5")
    parser.add_argument("--made", action="store_true", help="prices from a factor model")
    parser.add_argument("--entities", type=int, default=MadeSize.entities, help="of a made panel")
    parser.add_argument("--dates", type=int, default=MadeSize.dates, help="of a made panel")
    parser.add_argument("--seed", type=int, default=MadeSize.seed, help="of a made panel")
    options = parser.parse_args(arguments)

    def work() -> dict[str, Any]:
        if options.made:
            return make(options.path, MadeSize(options.entities, options.dates, options.seed))
        return build(options.path)

    return answer(work, f"{options.path} cannot be written")


if __name__ == "__main__":
    sys.exit(main())
