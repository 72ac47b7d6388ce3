"""The board workload: legal beside play on one tower, and each habit of the report by itself.

The report: 3 it/s in stage legal where stage play made 20, and four fixes without effect. Here the
data are the board sample's (chess positions in 40 Feather files, LZ4), and everything but what a
row names is done as a run of Stoker does it. Each arm takes turns with the plain one, so a pace
that changes touches both. On a CPU the host is the device, and what only a GPU waits for shows
less: so each arm also says how many samples a second its batches come at without training. Beside
batches in memory the example's tower is trained, which is the work then.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from app.spec.run import RunSpec
from benchmarks.effort import Effort
from benchmarks.figures import Figure, figure_of, not_measured
from benchmarks.steps import spec_of, unstopped
from benchmarks.workloads import efficiency
from worker.trainer.build import build_step
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.data.source import Field
from worker.trainer.recipes.base import Batch, Statistics, Tables
from worker.trainer.recipes.board import BoardModel, BoardTask, as_bits
from worker.trainer.step import Precision, TrainingStep

COMMAND = "python -m benchmarks workloads"
BATCH, ROUNDS, GAMES, FILES = 256, 5, 60, 40
# Of 404 files a hundred were opened at a time.
FILES_AT_A_TIME = 10
MOVES, PLANES = 4_672, 18
CPU = torch.device("cpu")
Arrays = dict[str, NDArray[Any]]

# So narrow that the tower takes under half of a batch's time, and the rest can be seen.
RECIPE = {"kind": "board", "planes": PLANES, "moves": MOVES, "channels": 8, "blocks": 1}
# That of the example, where the tower is the work.
WIDER = {"channels": 32, "blocks": 2}
UNSCALED = {"inputs": False, "targets": False}
# As a run has it by itself: of 40 million positions 30 GB, packed, which lie on a large GPU.
RESIDENT = {"kind": "chunked"}
STREAMED = {"kind": "chunked", "residency": "stream", "chunk_size": "4MiB"}
ARRAYS: dict[str, tuple[list[str], list[str]]] = {
    "legal": (["planes"], ["legal"]),
    "play": (["planes"], ["move", "value"]),
}


@dataclass(frozen=True)
class Arm:
    """Epochs of training: `batches` gives those of one, and `step` trains on each."""

    name: str
    batches: Callable[[], Iterator[Batch]]
    step: TrainingStep
    waits: bool = False

    def epoch(self) -> float:
        """Samples a second."""
        samples, began = 0, time.perf_counter()
        for batch in self.batches():
            self.step.accumulate(batch, 1.0)
            self.step.apply(1e-3)
            if self.waits:
                self.step.loss_sums[0, 0].item()
            samples += batch.size
        return samples / (time.perf_counter() - began)

    def supply(self) -> float:
        """Samples a second without training: more than this no device can get."""
        began = time.perf_counter()
        samples = sum(batch.size for batch in self.batches())
        return samples / (time.perf_counter() - began)


def measure(effort: Effort) -> list[Figure]:
    """Needs the extra that makes the sample."""
    if find_spec("pyspiel") is None:
        return [not_measured("board", "needs OpenSpiel: pip install 'stoker[boards]'", COMMAND)]
    from worker.trainer.tools import sample_board  # needs that extra

    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_arms:
        path = Path(folder, "board")
        sample_board.build(path, sample_board.Size(GAMES, FILES))
        return [
            *_measure(path, effort.rounds(ROUNDS), open_arms),
            *_efficiency(path, effort.rounds(efficiency.ROUNDS), open_arms),
        ]


def _measure(path: Path, rounds: int, open_arms: ExitStack) -> list[Figure]:
    streams = {stage: _stream(path, stage, open_arms) for stage in ARRAYS}
    plain = Arm("legal", streams["legal"], _step("legal"))
    play = Arm("play", streams["play"], _step("play"))
    streamed = Arm(
        "streamed from the files", _stream(path, "legal", open_arms, STREAMED), _step("legal")
    )
    habits = [streamed, *_habits(path, streams["legal"])]
    rates, ratios = _in_turns(plain, [play, *habits], rounds)
    figures = [
        _inverse("legal, of play's samples/s", ratios[play.name], bound=0.9),
        _with_supply(figure_of("board: legal", "samples/s", rates[plain.name], COMMAND), plain),
        _tower_share(rates[plain.name], rounds),
    ]
    for arm in habits:
        name = f"board: {arm.name}, of legal's"
        figures.append(_with_supply(figure_of(name, "", ratios[arm.name], COMMAND), arm))
    by_report = {stage: _by_report(path, stage) for stage in ARRAYS}
    report = by_report["play"]
    _, ratios = _in_turns(by_report["legal"], [report], rounds)
    whole = _inverse("the report's legal, of its play's", ratios[report.name])
    figures.append(_with_supply(whole, by_report["legal"]))
    supplies = [by_report["legal"].supply() / report.supply() for _ in range(rounds)]
    name = "board: the report's legal, of its play's, without training"
    return [*figures, figure_of(name, "", supplies, COMMAND)]


def _efficiency(path: Path, rounds: int, open_arms: ExitStack) -> list[Figure]:
    """Beside batches in memory, by the tower of the example."""
    loaders = {
        "Stoker, resident": _opened(path, "legal", open_arms, RESIDENT),
        "Stoker, a stream": _opened(path, "legal", open_arms, STREAMED),
    }
    spec = _spec("legal", RESIDENT, **WIDER)
    return efficiency.beside_memory("board, legal", spec, loaders, rounds, COMMAND)


def _inverse(name: str, ratios: list[float], bound: float | None = None) -> Figure:
    return figure_of(f"board: {name}", "", [1 / ratio for ratio in ratios], COMMAND, bound)


def _with_supply(figure: Figure, arm: Arm) -> Figure:
    rate = float(np.median([arm.supply() for _ in range(3)]))
    return replace(figure, also={"samples/s without training": rate})


def _in_turns(
    plain: Arm, arms: list[Arm], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """By arm, samples a second; and those of the arms over the plain one's before and after."""
    rates: dict[str, list[float]] = {arm.name: [] for arm in (plain, *arms)}
    ratios: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in (plain, *arms):
        arm.epoch()  # memory and processes begin
    for _ in range(rounds):
        before = plain.epoch()
        for arm in arms:
            rate, after = arm.epoch(), plain.epoch()
            rates[arm.name].append(rate)
            rates[plain.name].append(after)
            ratios[arm.name].append(rate * (1 / before + 1 / after) / 2)
            before = after
    return rates, ratios


def _tower_share(rates: list[float], rounds: int) -> Figure:
    """Seconds of the tower alone, forward and backward, over those of a whole batch."""
    model, planes = _step("legal").model, torch.rand(BATCH, PLANES, 8, 8)
    tower, seconds = model.get_submodule("tower"), list[float]()
    for _ in range(8 * rounds):
        began = time.perf_counter()
        tower(planes).sum().backward()
        seconds.append(time.perf_counter() - began)
    whole = BATCH / float(np.median(rates))
    shares = [float(one) / whole for one in np.quantile(seconds[4:], [0.25, 0.5, 0.75])]
    figure = figure_of("board: the tower's share of a batch's time", "", shares, COMMAND)
    return replace(figure, bound=0.5, at_least=False, n=len(seconds) - 4)


def _spec(stage: str, loader: dict[str, str] = RESIDENT, **recipe: int) -> RunSpec:
    inputs, targets = ARRAYS[stage]
    data = {"dataset": "board", "inputs": inputs, "targets": targets, "standardize": UNSCALED}
    split = {"method": "field", "field": "game_part"}
    return spec_of(
        {
            "recipe": RECIPE | {"stage": stage} | recipe,
            "data": data | {"split": split, "loader": loader},
            "training": {"epochs": 10_000, "batch_size": BATCH},
        }
    )


FIELDS = {
    "planes": Field((PLANES * 8,), np.dtype("uint8")),
    "legal": Field((MOVES // 8,), np.dtype("uint8")),
    "move": Field((), np.dtype("int16")),
    "value": Field((), np.dtype("int8")),
}


def _step(stage: str, task: type[BoardTask] = BoardTask) -> TrainingStep:
    spec = _spec(stage)
    return build_step(spec, task.for_run(spec, FIELDS), {}, Precision("fp32", CPU))


def _stream(
    path: Path, stage: str, open_arms: ExitStack, loader: dict[str, str] = RESIDENT
) -> Callable[[], Iterator[Batch]]:
    """The samples of each epoch in an order of its own."""
    data = _opened(path, stage, open_arms, loader)
    numbers = iter(range(10_000))
    return lambda: data.train.iterate(next(numbers))


def _opened(path: Path, stage: str, open_arms: ExitStack, loader: dict[str, str]) -> DataSet:
    """As a run opens them."""
    datasets = {"board": {"path": str(path), "fingerprint": fingerprint(path)}}
    preparing = open_arms.enter_context(unstopped())
    data = open_data(_spec(stage, loader), datasets, CPU, preparing)
    open_arms.callback(data.close)
    return data


def _habits(path: Path, stream: Callable[[], Iterator[Batch]]) -> list[Arm]:
    """Of the report, each alone."""
    items = partial(_collated, Items(_rows(_train_files(path))))
    return [
        Arm("bits to float32 on the host", lambda: map(_as_floats, stream()), _step("legal")),
        Arm("an .item() a batch", stream, _step("legal"), waits=True),
        Arm("collated by item, 0 processes", items(0), _step("legal")),
        Arm("collated by item, 2 processes", items(2), _step("legal")),
        Arm("dummy values", stream, _step("legal", DummyValues)),
        Arm("a quarter of the files at a time", partial(_in_heaps, path), _step("legal")),
    ]


def _by_report(path: Path, stage: str) -> Arm:
    """All of it at once: items in float32, collated by 2 processes, waited for."""
    rows = _rows(_train_files(path))
    items = Items(rows, stage=stage, as_floats=True)
    return Arm(f"the report's {stage}", _collated(items, 2), _step(stage), waits=True)


def _as_floats(batch: Batch) -> Batch:
    return Batch({n: torch.from_numpy(_floats(a.numpy())) for n, a in batch.arrays.items()
                  if n in ("planes", "legal")}, batch.size)  # fmt: skip


def _floats(packed: NDArray[Any]) -> NDArray[np.float32]:
    return np.unpackbits(packed, axis=-1).astype(np.float32)


class DummyValues(BoardTask):
    """Stage legal that computes the heads of play as well, towards values that mean nothing."""

    def build_model(self, statistics: Statistics, tables: Tables) -> nn.Module:
        return BoardModel(self.recipe.model_copy(update={"stage": "play"}))

    def loss(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits, value = model(batch.arrays["planes"])
        legal = as_bits(batch.arrays["legal"], MOVES).float()
        loss = functional.binary_cross_entropy_with_logits(logits, legal)
        return {"loss": loss + 0.0 * functional.mse_loss(value, torch.zeros_like(value))}


class Items(Dataset[dict[str, Any]]):
    """Rows in memory, given one by one."""

    def __init__(self, rows: Arrays, stage: str = "legal", *, as_floats: bool = False) -> None:
        self._rows, self._as_floats = rows, as_floats
        self._names = [*ARRAYS[stage][0], *ARRAYS[stage][1]]

    def __len__(self) -> int:
        return len(self._rows["move"])

    def __getitem__(self, row: int) -> dict[str, Any]:
        found = {name: self._rows[name][row] for name in self._names}
        if self._as_floats:
            for name in {"planes", "legal"} & found.keys():
                found[name] = _floats(found[name])
        return found


def _collated(items: Items, processes: int) -> Callable[[], Iterator[Batch]]:
    """By torch.utils.data.DataLoader; its processes stay between epochs."""
    loader = DataLoader(
        items, BATCH, shuffle=True, num_workers=processes, persistent_workers=processes > 0
    )
    return lambda: (Batch(arrays, len(arrays["planes"])) for arrays in loader)


def _train_files(path: Path) -> list[Path]:
    return sorted(path.glob("*.feather"))


def _rows(files: list[Path]) -> Arrays:
    """The training part of these files, bits packed."""
    from pyarrow import concat_tables, feather  # an extra

    table = concat_tables(feather.read_table(file) for file in files).combine_chunks()
    train = table["game_part"].to_numpy() == 0
    rows: Arrays = {name: table[name].to_numpy()[train] for name in ("move", "value")}
    for name in ("planes", "legal"):
        stored = table[name].chunk(0).buffers()[1]
        rows[name] = np.frombuffer(stored, np.uint8).reshape(len(train), -1)[train]
    return rows


def _in_heaps(path: Path) -> Iterator[Batch]:
    """Opens some files, shuffles their rows, trains on them, and opens the next."""
    files = _train_files(path)
    for start in range(0, len(files), FILES_AT_A_TIME):
        rows = _rows(files[start : start + FILES_AT_A_TIME])
        order = np.random.default_rng(start).permutation(len(rows["move"]))
        for first in range(0, len(order), BATCH):
            chosen = order[first : first + BATCH]
            arrays = {name: torch.from_numpy(rows[name][chosen]) for name in ("planes", "legal")}
            yield Batch(arrays, len(chosen))
