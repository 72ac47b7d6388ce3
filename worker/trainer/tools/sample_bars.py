"""Builds the sample `bars`: a year of measured weather in bars of 1, 3, 6, 12 and 24 hours.

`python -m worker.trainer.tools.sample_bars OUT.h5` writes h1, h3, h6, h12 and d1, windows of 16
features, and targets (36,): the temperatures of the next 36 hours at Greensboro, NC.

It is the year of `worker.trainer.tools.sample_weather`: no sample reaches from one month into the
next, and the last sixth of the samples are those of November and December. Slower bars are means of
their hours; hour and day are those of a bar's end.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from worker.trainer.tools.answer import sample_command
from worker.trainer.tools.sample_weather import (
    ATTRIBUTES,
    DAYS_BEFORE_MONTH,
    FEATURES,
    HORIZON_HOURS,
    TEMPERATURE,
    find_station_file,
    read_months,
)
from worker.trainer.tools.timeframes import Bars, Cut, align, timeframes_of, write

TIMEFRAMES = "H1:96,H3:72,H6:48,H12:24,D1:12"
HOUR_SECONDS, DAY_SECONDS = 3_600, 86_400
OF_THE_END = ("hour_of_day", "day_of_year")
HOW = ["last" if name.startswith(OF_THE_END) else "mean" for name in FEATURES]
COLUMN = FEATURES.index(TEMPERATURE)


def build(out: Path) -> dict[str, Any]:
    """Write the sample to `out`, as a whole or not at all; returns what it holds."""
    stretches = []
    for number, hours in enumerate(read_months(find_station_file()), start=1):
        begin = DAYS_BEFORE_MONTH[number] * DAY_SECONDS
        bars = Bars(begin + HOUR_SECONDS * np.arange(len(hours)), hours.astype(np.float64))
        stretches.append((bars, bars.values[:, COLUMN]))
    cut = Cut(timeframes_of(TIMEFRAMES), HORIZON_HOURS)
    made = align(stretches, HOW, cut)
    starts = np.cumsum([0, *map(len, made.ends)])[:-1].tolist()
    write(out, made, cut, FEATURES, **ATTRIBUTES, month_starts=starts)
    names = [frame.name for frame in cut.frames]
    return {"path": str(out), "samples": made.samples, "inputs": names, "features": list(FEATURES)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sample_bars", description="The weather in bars.")
    parser.add_argument("path", type=Path, metavar="OUT.h5")
    return sample_command(parser, build, arguments)


if __name__ == "__main__":
    sys.exit(main())
