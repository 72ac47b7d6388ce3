"""Builds the weather sample: a year of measured hours as windows.

`python -m worker.trainer.tools.sample_weather OUT.h5` writes features (4020, 360, 16) and targets
(4020, 36), float32: 36-hour temperature forecasts from 360 hours of weather at Greensboro, NC.

A typical meteorological year is made of twelve months measured in different years, so a window
lies inside one month. Windows ascend in time: the last 674 (a fraction of 0.1677) are those of
November and December, and as many before them those of September and October.
"""

import argparse
import csv
import importlib.metadata
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from app.installing import pip_install
from worker.trainer.checkpoints.whole_file import whole_file
from worker.trainer.data.formats.hdf5_file import write_roles
from worker.trainer.data.formats.window_files import STEP_SECONDS
from worker.trainer.errors import DataError
from worker.trainer.tools.answer import sample_command

WINDOW_HOURS, HORIZON_HOURS = 360, 36
STATION_FILE = "pvlib/data/723170TYA.CSV"
TEMPERATURE = "dry_bulb"

MEASURED = {  # feature → (column of the file, unit)
    "global_horizontal_irradiance": ("GHI (W/m^2)", "W/m^2"),
    "direct_normal_irradiance": ("DNI (W/m^2)", "W/m^2"),
    "diffuse_horizontal_irradiance": ("DHI (W/m^2)", "W/m^2"),
    "total_cloud": ("TotCld (tenths)", "tenths"),
    "opaque_cloud": ("OpqCld (tenths)", "tenths"),
    TEMPERATURE: ("Dry-bulb (C)", "degC"),
    "dew_point": ("Dew-point (C)", "degC"),
    "relative_humidity": ("RHum (%)", "%"),
    "pressure": ("Pressure (mbar)", "mbar"),
    "wind_speed": ("Wspd (m/s)", "m/s"),
}
CIRCULAR = ("wind_direction", "hour_of_day", "day_of_year")
FEATURES = (*MEASURED, *(f"{name}_{part}" for name in CIRCULAR for part in ("sin", "cos")))
UNITS = (*(unit for _, unit in MEASURED.values()), *("1",) * (2 * len(CIRCULAR)))
DAYS_BEFORE_MONTH = np.cumsum([0, 0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30]).tolist()

ATTRIBUTES = {
    "feature_names": list(FEATURES),
    STEP_SECONDS: 3_600,
    "feature_units": list(UNITS),
    "target_name": TEMPERATURE,
    "target_unit": "degC",
    "station": "723170 Greensboro Piedmont Triad Int, NC, USA (36.10 N, 79.95 W, 273 m)",
    "source": f"NREL National Solar Radiation Data Base, TMY3; {STATION_FILE} of the PyPI package",
    "licence": "TMY3 is a work of the U.S. Department of Energy, free to use with attribution to"
    " NREL/NSRDB; pvlib, which carries the file, is under the BSD 3-Clause licence.",
}


def find_station_file() -> Path:
    """The station's file inside pvlib, which is not imported: it would load pandas and scipy."""
    try:
        distribution = importlib.metadata.distribution("pvlib")
    except importlib.metadata.PackageNotFoundError:
        raise DataError(
            "The weather sample comes from the package pvlib, which is not installed: "
            f"{pip_install('stoker[samples]')}."
        ) from None
    path = Path(str(distribution.locate_file(STATION_FILE)))
    if not path.is_file():
        raise DataError(
            f"pvlib {distribution.version} has no {STATION_FILE}; install pvlib >= 0.12."
        )
    return path


def read_months(path: Path) -> list[NDArray[np.float32]]:
    """For each month, January first, its hours as (hours, len(FEATURES)) float32."""
    months: list[list[list[float]]] = [[] for _ in range(12)]
    with path.open(newline="") as file:
        next(file)  # the station's own line
        for row in csv.DictReader(file):
            months[int(row["Date (MM/DD/YYYY)"][:2]) - 1].append(_features(row))
    return [np.array(hours, dtype=np.float32) for hours in months]


def windows(months: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """For each month, its windows as (windows, WINDOW_HOURS + HORIZON_HOURS, features) views."""
    for hours in months:
        slides = np.lib.stride_tricks.sliding_window_view(hours, WINDOW_HOURS + HORIZON_HOURS, 0)
        yield slides.transpose(0, 2, 1)


def build(out: Path) -> dict[str, Any]:
    """Write the sample to `out`, as a whole or not at all; returns what it holds."""
    each = list(windows(read_months(find_station_file())))
    starts = np.cumsum([0, *(len(month) for month in each)]).tolist()
    with whole_file(out) as partial, h5py.File(partial, "w") as file:
        shape = (starts[-1], WINDOW_HOURS)
        features = file.create_dataset("features", (*shape, len(FEATURES)), "float32")
        targets = file.create_dataset("targets", (starts[-1], HORIZON_HOURS), "float32")
        for start, month in zip(starts, each, strict=False):
            rows = slice(start, start + len(month))
            features[rows] = month[:, :WINDOW_HOURS]
            targets[rows] = month[:, WINDOW_HOURS:, FEATURES.index(TEMPERATURE)]
        file.attrs.update(ATTRIBUTES | {"month_starts": starts[:-1]})
        write_roles(file, ["features"], ["targets"])
    return {"path": str(out), "samples": starts[-1], "features": list(FEATURES)}


def _features(row: Mapping[str, str]) -> list[float]:
    """The features of an hour, in the order of FEATURES."""
    month, day = int(row["Date (MM/DD/YYYY)"][:2]), int(row["Date (MM/DD/YYYY)"][3:5])
    hour = int(row["Time (HH:MM)"][:2])  # the end of the hour, 1 to 24
    turns = (
        float(row["Wdir (degrees)"]) / 360,
        hour / 24,
        (DAYS_BEFORE_MONTH[month] + day - 1 + hour / 24) / 365,
    )
    measured = [float(row[column]) for column, _ in MEASURED.values()]
    circular = [f(math.tau * turn) for turn in turns for f in (math.sin, math.cos)]
    return measured + circular


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sample_weather", description="The weather sample.")
    parser.add_argument("path", type=Path, metavar="OUT.h5")
    return sample_command(parser, build, arguments)


if __name__ == "__main__":
    sys.exit(main())
