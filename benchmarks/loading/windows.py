"""Windows stored one by one beside the series that they slide over: room, rate, first batch."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import torch

from benchmarks.effort import Effort
from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import Arm
from benchmarks.loading.files import HORIZON, NAMES, WINDOW, WRITTEN_AT_ONCE, DataFile
from benchmarks.loading.rounds import ROUNDS, in_turn, rates, ratio
from benchmarks.loading.stoker import open_file, stoker
from benchmarks.steps import unstopped
from worker.trainer.tools.convert import convert

# The reference's row, 360 × 167 float32: 0.9 GiB of 4,096 windows.
SAMPLES, FEATURES = 4096, 167
COMMAND = "python -m benchmarks windows"


def measure(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        expanded = write(Path(folder) / "windows.h5", effort.samples(SAMPLES))
        began = time.perf_counter()
        made = convert(expanded.path, Path(folder) / "series.h5")
        seconds = time.perf_counter() - began
        series = replace(expanded, path=Path(folder) / "series.h5")
        _require_the_same(expanded, series)
        return [
            Figure("windows: seconds of data convert", seconds, "s", None, 1, COMMAND),
            figure_of(
                "windows: bytes of the windows over those of the series",
                "", [made["bytes_before"] / made["bytes"]], COMMAND, 100,
            ),
            *_rates(expanded, series, effort),
            *_first_batches(expanded, series, effort),
        ]  # fmt: skip


def write(path: Path, samples: int) -> DataFile:
    """Windows that move on by one step, and what follows each of them of the first feature."""
    random = np.random.default_rng(7)
    series = random.normal(size=(samples + WINDOW + HORIZON - 1, FEATURES)).astype(np.float32)
    slides = np.lib.stride_tricks.sliding_window_view(series, WINDOW + HORIZON, 0)
    checksum = 0.0
    with h5py.File(path, "w") as file:
        features = file.create_dataset("features", (samples, WINDOW, FEATURES), "f4")
        targets = file.create_dataset("targets", (samples, HORIZON), "f4")
        for start in range(0, samples, WRITTEN_AT_ONCE):
            rows = slice(start, min(start + WRITTEN_AT_ONCE, samples))
            features[rows] = slides[rows, :, :WINDOW].transpose(0, 2, 1)
            targets[rows] = slides[rows, 0, WINDOW:]
    checksum = float(series[WINDOW : WINDOW + samples, 0].sum(dtype=np.float64))
    return DataFile(path, samples, FEATURES, checksum)


def _require_the_same(expanded: DataFile, series: DataFile) -> None:
    """Every batch of an epoch, to the last bit."""
    sides = [open_file(file, "resident", "full") for file in (expanded, series)]
    try:
        for one, other in zip(*(data.train.iterate(0) for data in sides), strict=True):
            if not all(torch.equal(array, other.arrays[n]) for n, array in one.arrays.items()):
                raise RuntimeError("the batches of the series are not those of its windows")
    finally:
        for data in sides:
            data.close()


def _rates(expanded: DataFile, series: DataFile, effort: Effort) -> list[Figure]:
    def arm(file: DataFile, name: str) -> Arm:
        return replace(stoker(file, "resident", "full"), name=name)

    windows, ours = arm(expanded, "resident windows"), arm(series, "resident series")
    rounds = in_turn(expanded, [windows, ours], effort.rounds(ROUNDS))
    title = "windows shuffled"
    figures = rates(title, expanded, rounds, COMMAND)
    return [*figures, ratio(title, rounds, ours, [windows], None, COMMAND)]


def _first_batches(expanded: DataFile, series: DataFile, effort: Effort) -> list[Figure]:
    """Seconds from opening the file to the first batch, with the statistics in between."""
    found: dict[str, list[float]] = {"windows": [], "series": []}
    for _ in range(effort.rounds(ROUNDS)):
        for name, file in (("windows", expanded), ("series", series)):
            found[name].append(_first_batch(file))
    ratios = [one / other for one, other in zip(found["windows"], found["series"], strict=True)]
    title = "windows: first batch, with statistics"
    return [
        *(figure_of(f"{title}: {name}", "s", values, COMMAND) for name, values in found.items()),
        figure_of(f"{title}: windows over series", "", ratios, COMMAND),
    ]


def _first_batch(file: DataFile) -> float:
    with unstopped() as preparing:
        began = time.perf_counter()
        data = open_file(file, "resident", "full")
        data.statistics(NAMES, preparing)
        next(data.train.iterate(0))
        seconds = time.perf_counter() - began
        data.close()
    return seconds
