"""What shuffling in blocks does to a training on data that is sorted by its target.

The weather sample's windows of January to September, sorted by the mean of their targets, are
trained on in each order that the loader has, and once more after one pass has shuffled the file.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.effort import Effort
from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import Arm
from benchmarks.loading.files import DataFile
from benchmarks.loading.rounds import ROUNDS, in_turn, rates, ratio
from benchmarks.loading.stoker import stoker
from benchmarks.training.models import Recurrent
from worker.trainer.tools import sample_weather

# A group has 16 blocks, which is the fewest that the loader makes of one, and a chunk holds it.
GROUP, CHUNK_BYTES = 512, 16 * 2**20
ORDERS, EPOCHS, RATE = 5, 6, 1e-3
HIDDEN = 64
FIRST_HELD_OUT_MONTH = 9  # October
# After one pass, blocks should train as a full shuffle does.
MOST_OF_FULL = 1.1
COMMAND = "python -m benchmarks sorted"
Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Way:
    """A file, and how it is shuffled."""

    name: str
    file: DataFile
    shuffle: str

    def arm(self) -> Arm:
        group = GROUP if self.shuffle == "block" else None
        opened = stoker(self.file, "stream", self.shuffle, CHUNK_BYTES, group)
        return replace(opened, name=self.name)


def measure(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as name:
        training, held_out = weather(Path(name))
        by_target = np.argsort(training["targets"].mean(axis=1, dtype=np.float64), kind="stable")
        in_order = write(Path(name) / "sorted.h5", training, by_target)
        began = time.perf_counter()
        once = shuffle_once(in_order, Path(name) / "shuffled.h5")
        seconds = time.perf_counter() - began
        ways = [
            Way("full shuffle", in_order, "full"),
            Way("blocks", in_order, "block"),
            Way("no shuffle", in_order, "none"),
            Way("blocks, after one pass", once, "block"),
        ]
        return [
            *_errors(ways, held_out, effort.rounds(ORDERS)),
            Figure("sorted: seconds of the one pass", seconds, "s", None, 1, COMMAND),
            *_rates(ways, effort),
        ]


def weather(folder: Path) -> tuple[Arrays, Arrays]:
    """The windows of January to September, and those after."""
    path = folder / "weather.h5"
    sample_weather.build(path)
    with h5py.File(path) as file:
        cut = int(file.attrs["month_starts"][FIRST_HELD_OUT_MONTH])
        names = ("features", "targets")
        return {n: file[n][:cut] for n in names}, {n: file[n][cut:] for n in names}


def write(path: Path, arrays: Arrays, order: NDArray[np.int64]) -> DataFile:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array[order]
    checksum = float(arrays["targets"][:, 0].sum(dtype=np.float64))
    return DataFile(path, len(order), arrays["features"].shape[2], checksum)


def shuffle_once(file: DataFile, path: Path) -> DataFile:
    """A copy whose rows come in a random order."""
    with h5py.File(file.path) as source:
        arrays = {name: source[name][:] for name in ("features", "targets")}
    order = np.random.default_rng(7).permutation(file.samples)
    return write(path, arrays, order)


def _errors(ways: Sequence[Way], held_out: Arrays, orders: int) -> list[Figure]:
    """What is held out is forecast by models that began with the same weights and took as many
    steps, in several orders of each kind.
    """
    found = {way.name: [_trained(way, held_out, n) for n in range(orders)] for way in ways}
    full, *others = found
    figures = [
        figure_of(f"sorted: error after training, {name}", "°C", errors, COMMAND)
        for name, errors in found.items()
    ]
    for name in others:
        ratios = [mine / best for mine, best in zip(found[name], found[full], strict=True)]
        bound = MOST_OF_FULL if name == ways[-1].name else None
        figure = figure_of(f"sorted: error, {name} over {full}", "", ratios, COMMAND, bound)
        figures.append(replace(figure, at_least=False))
    return figures


def _trained(way: Way, held_out: Arrays, order: int) -> float:
    """Mean absolute error, °C, on what is held out, after some epochs in this order."""
    scale = _Scale(way.file)
    torch.manual_seed(0)
    model = Recurrent(way.file.features, HIDDEN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    arm = way.arm()
    try:
        for epoch in range(order * EPOCHS, (order + 1) * EPOCHS):
            for batch in arm.epoch(epoch):
                targets = (batch["targets"] - scale.target_mean) / scale.target_std
                loss = nn.functional.l1_loss(model(scale.inputs(batch["features"])), targets)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # PyTorch has no type for it
                optimizer.step()
    finally:
        arm.close()
    with torch.no_grad():
        forecast = model(scale.inputs(torch.from_numpy(held_out["features"])))
    forecast = forecast * scale.target_std + scale.target_mean
    return float((forecast - torch.from_numpy(held_out["targets"])).abs().mean())


class _Scale:
    """Mean and deviation of what is trained on."""

    def __init__(self, file: DataFile) -> None:
        with h5py.File(file.path) as source:
            features = torch.from_numpy(source["features"][:])
            targets = torch.from_numpy(source["targets"][:])
        self._std, self._mean = torch.std_mean(features, dim=(0, 1))
        self._std[self._std == 0] = 1.0
        self.target_std, self.target_mean = torch.std_mean(targets)

    def inputs(self, features: Tensor) -> Tensor:
        return (features - self._mean) / self._std


def _rates(ways: Sequence[Way], effort: Effort) -> list[Figure]:
    arms = [way.arm() for way in ways]
    rounds = in_turn(ways[0].file, arms, effort.rounds(ROUNDS))
    title = "sorted, chunks of a group"
    return [
        *rates(title, ways[0].file, rounds, COMMAND),
        *(ratio(title, rounds, arm, arms[:1], None, COMMAND) for arm in arms[1:]),
    ]
