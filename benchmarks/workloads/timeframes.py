"""The timeframes workload: an epoch by item, by the report's chunks, and by Stoker, in turn.

The report: 17 m 48 s an epoch by a DataLoader that reads a sample at a time from HDF5, 7 m 08 s by
chunks that go to GPU memory as a whole and are cut into batches there. Here the data are made, with
the report's 565 KB a sample: M1 480, M5 288, M15 192, H1 96 and H4 48 bars of 128 features in
float32, written out one by one as the report had them, and once more as the series that they slide
over. On a CPU the host is the device: what only a GPU gains shows less. The model reads each number
once and does little else, as a model on a GPU beside its loader. Beside batches in memory an LSTM
for each timeframe is trained, which is the work then.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from app.spec.run import RunSpec
from benchmarks.effort import Effort
from benchmarks.figures import Figure, figure_of
from benchmarks.steps import spec_of, unstopped
from benchmarks.workloads import efficiency
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.data.formats.window_files import WindowArray, read_windows
from worker.trainer.tools.timeframes import Bars, Cut, align, timeframes_of, write

COMMAND = "python -m benchmarks workloads"
TIMEFRAMES, HORIZON, FEATURES = "M1:480,M5:288,M15:192,H1:96,H4:48", 36, 128
SAMPLES, BATCH, ROUNDS = 512, 64, 7
CHUNK_SAMPLES = 128
# Of the longest window in minutes, so that the first sample has its bars.
WARM_UP = 48 * 240
OVER_ITEMS = 2.5
NAMES = ("m1", "m5", "m15", "h1", "h4")
Batch = Mapping[str, Tensor]


class Pooled(nn.Module):
    """The mean of each window, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(len(NAMES) * FEATURES, HORIZON)

    def forward(self, batch: Batch) -> Tensor:
        return self.head(torch.cat([batch[name].mean(1) for name in NAMES], 1))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Arm:
    """Epochs of training by one loader."""

    name: str
    batches: Callable[[], Iterator[Batch]]

    def epoch(self, model: Pooled, optimizer: torch.optim.Optimizer) -> float:
        """Seconds. RuntimeError if samples were missing."""
        began, samples = time.perf_counter(), 0
        for batch in self.batches():
            loss = functional.mse_loss(model(batch), batch["targets"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            samples += len(batch["targets"])
        if samples != SAMPLES:
            raise RuntimeError(f"{self.name} brought {samples} samples, not {SAMPLES}")
        return time.perf_counter() - began


def measure(effort: Effort) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder, ExitStack() as held:
        series, tables = make(Path(folder))
        workers = len(os.sched_getaffinity(0))
        ours = Arm("Stoker, a stream", _stoker(tables, "full", held))
        in_order = Arm("Stoker, a stream in order", _stoker(tables, "none", held))
        peers = {
            Arm(f"DataLoader by item, {workers} workers", _items(tables, workers)): OVER_ITEMS,
            Arm("DataLoader by item, 0 workers", _items(tables, 0)): None,
        }
        printed = Arm("the report's chunks", _chunks(tables))
        kept = Arm("Stoker, kept as series", _stoker(series, "full", held, "resident"))
        rounds = effort.rounds(ROUNDS)
        figures = _over(ours, {**peers, kept: None}, rounds)
        figures += _over(in_order, {printed: 1.0}, rounds)
        return figures + _efficiency(series, tables, effort.rounds(efficiency.ROUNDS), held)


def _over(ours: Arm, others: Mapping[Arm, float | None], rounds: int) -> list[Figure]:
    """Seconds of each, and of the others over ours in the same round; each warmed up."""
    model = Pooled()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    arms = (ours, *others)
    found: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(rounds):
        for arm in arms:
            # One before: memory that was not in use for a while is slow at first on a virtual
            # machine, and what the arm before reads ahead is read meanwhile.
            arm.epoch(model, optimizer)
            found[arm.name].append(arm.epoch(model, optimizer))
    figures = [figure_of(f"timeframes: {n}, an epoch", "s", s, COMMAND) for n, s in found.items()]
    for arm, bound in others.items():
        ratios = [
            theirs / own for theirs, own in zip(found[arm.name], found[ours.name], strict=True)
        ]
        name = f"timeframes: {arm.name} over {ours.name}"
        figures.append(figure_of(name, "", ratios, COMMAND, bound))
    return figures


def _efficiency(series: Path, tables: Path, rounds: int, held: ExitStack) -> list[Figure]:
    """Beside batches in memory."""
    loaders = {
        "Stoker, a stream": _opened(_spec("full"), tables, held),
        "Stoker, kept as series": _opened(_spec("full", "resident"), series, held),
    }
    return efficiency.beside_memory("timeframes", _spec("full"), loaders, rounds, COMMAND)


def make(folder: Path) -> tuple[Path, Path]:
    """Files of the same samples: as series, and written out."""
    minutes = WARM_UP + SAMPLES + HORIZON
    values = np.random.default_rng(0).normal(size=(minutes, FEATURES))
    bars = Bars(60 * np.arange(minutes), values)
    cut = Cut(timeframes_of(TIMEFRAMES), HORIZON)
    made = align([(bars, values[:, 0])], ["last"] * FEATURES, cut)
    for name, starts in made.starts.items():
        made.starts[name] = [starts[0][-SAMPLES:]]
    made.target_starts, made.ends = [made.target_starts[0][-SAMPLES:]], [made.ends[0][-SAMPLES:]]
    series, tables = folder / "series.h5", folder / "tables.h5"
    write(series, made, cut, [str(number) for number in range(FEATURES)])
    with h5py.File(series) as source, h5py.File(tables, "w") as file:
        for name in (*NAMES, "targets"):
            file[name] = WindowArray(source[name]["series"], read_windows(source[name], name))[:]
    return series, tables


def _stoker(
    path: Path, shuffle: str, held: ExitStack, residency: str = "stream"
) -> Callable[[], Iterator[Batch]]:
    """What streams is read anew in each epoch."""
    data = _opened(_spec(shuffle, residency), path, held)
    numbers = iter(range(10_000))
    return lambda: (batch.arrays for batch in data.train.iterate(next(numbers)))


def _spec(shuffle: str, residency: str = "stream") -> RunSpec:
    loader: dict[str, Any] = {"kind": "chunked", "residency": residency, "shuffle": shuffle}
    if residency == "stream":
        loader["chunk_size"] = "128MiB"
    split = {"method": "chronological", "validation_fraction": 0.0}
    return spec_of(
        {
            "recipe": {"kind": "sequence", "hidden_size": 128, "patch": 12},
            "data": {"dataset": "bars", "inputs": NAMES, "loader": loader, "split": split},
            "training": {"batch_size": BATCH, "epochs": 10_000},
        }
    )


def _opened(spec: RunSpec, path: Path, held: ExitStack) -> DataSet:
    """As a run opens it."""
    datasets = {"bars": {"path": str(path), "fingerprint": fingerprint(path)}}
    preparing = held.enter_context(unstopped())
    data = open_data(spec, datasets, torch.device("cpu"), preparing, 2**40)
    held.callback(data.close)
    return data


class Items(Dataset[dict[str, Tensor]]):
    """A sample at a time, from a file that each worker opens for itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: h5py.File | None = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        if self._file is None:
            self._file = h5py.File(self._path)
        return {name: torch.from_numpy(self._file[name][row]) for name in (*NAMES, "targets")}


def _items(path: Path, workers: int) -> Callable[[], Iterator[Batch]]:
    loader = DataLoader(
        Items(path), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    return lambda: iter(loader)


def _chunks(path: Path) -> Callable[[], Iterator[Batch]]:
    """The report's: open, slice a chunk, bring it to the device, slice batches; then the next."""

    def epoch() -> Iterator[Batch]:
        for start in range(0, SAMPLES, CHUNK_SAMPLES):
            rows = slice(start, start + CHUNK_SAMPLES)
            with h5py.File(path) as file:
                chunk = {name: torch.from_numpy(file[name][rows]) for name in (*NAMES, "targets")}
            for at in range(0, CHUNK_SAMPLES, BATCH):
                yield {name: array[at : at + BATCH] for name, array in chunk.items()}

    return epoch
