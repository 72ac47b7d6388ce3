"""Specs of the other recipes whose plan of memory is held against what training them takes.

Their data are made, of the sizes that the examples' samples have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from app.guard.facts import DatasetFacts
from app.service.inventory import field_facts
from benchmarks.memory.memory_cases import MemoryCase
from worker.trainer.data.formats.packed_files import write_packed
from worker.trainer.tools.inspect import inspect
from worker.trainer.tools.panel.sample_panel import MadeSize, make
from worker.trainer.tools.timeframes import Bars, Cut, align, timeframes_of, write

UNSCALED = {"inputs": False, "targets": False}
FRAMES, FEATURES = "H1:96,H3:72,H6:48,H12:24,D1:12", 16


@dataclass(frozen=True)
class Made:
    """A dataset of which is known what an inspection finds in its file."""

    name: str
    make: Callable[[Path], Any]

    def write(self, folder: Path) -> Path:
        """The file, made once."""
        path = folder / f"{self.name}.h5"
        if not path.exists():
            self.make(path)
        return path

    def facts(self, path: Path) -> DatasetFacts:
        found = inspect(path)
        fields = {name: field_facts(one) for name, one in found["fields"].items()}
        size = path.stat().st_size
        return DatasetFacts(self.name, "ready", found["samples"], fields, size_bytes=size)


def _positions(path: Path) -> None:
    """Of chess, as many bits as they have: 20,000, of which no rule holds."""
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, size in (("planes", 144), ("legal", 584)):
            file[name] = random.integers(0, 256, (20_000, size), np.uint8)


def _bars(path: Path) -> None:
    """A year of hours and the slower bars, kept as series."""
    hours = 8_760
    values = np.random.default_rng(0).normal(size=(hours, FEATURES))
    bars, cut = Bars(3_600 * np.arange(hours), values), Cut(timeframes_of(FRAMES), 36)
    made = align([(bars, values[:, 0])], ["last"] * FEATURES, cut)
    write(path, made, cut, [str(number) for number in range(FEATURES)])


def _panel(path: Path) -> None:
    """Two years of days."""
    make(path, MadeSize(256, 480))


def _molecules(path: Path) -> None:
    """5,000 chains of 2 to 31 atoms."""
    random = np.random.default_rng(0)
    graphs = []
    for atoms in random.integers(2, 32, 5_000).tolist():
        forward = np.stack([np.arange(atoms - 1), np.arange(1, atoms)], 1)
        edges = np.concatenate([forward, forward[:, ::-1]]).astype(np.uint16)
        graphs.append(
            {
                "nodes": random.integers(0, 40, (atoms, 6), np.uint8),
                "edges": edges,
                "edge_values": random.integers(0, 4, (len(edges), 3), np.uint8),
            }
        )
    with h5py.File(path, "w") as file:
        write_packed(file, "molecules", graphs)


def _rows(path: Path) -> None:
    """20,000 rows of 64 columns."""
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["features"] = random.normal(size=(20_000, 64)).astype(np.float32)
        file["targets"] = random.normal(size=20_000).astype(np.float32)


RECIPE_CASES = (
    MemoryCase("board, stage legal", Made("board", _positions),
               {"kind": "board", "stage": "legal", "planes": 18, "channels": 32, "blocks": 2}, 128,
               {"data": {"inputs": ["planes"], "targets": ["legal"], "standardize": UNSCALED}}),
    MemoryCase("timeframes, a transformer each", Made("bars", _bars),
               {"encoder": "transformer", "hidden_size": 32, "patch": 6, "dropout": 0.1}, 128,
               {"data": {"inputs": ["h1", "h3", "h6", "h12", "d1"]}}),
    MemoryCase("panel-graph, 256 entities", Made("panel", _panel),
               {"kind": "panel-graph", "encoder": "gru", "patch": 5, "horizons": [5, 20],
                "graph": {"neighbors": 10}}, 16,
               {"data": {"inputs": ["features", "present", "date"],
                         "targets": ["targets", "known"]}}),
    MemoryCase("molecule, masked atoms", Made("molecules", _molecules),
               {"kind": "molecule", "task": "masked", "hidden_size": 64, "num_layers": 4}, 128,
               {"data": {"inputs": ["molecules"], "targets": ["molecules"],
                         "standardize": UNSCALED}}),
    MemoryCase("tabular, of the example plugin", Made("table", _rows),
               {"kind": "tabular", "hidden_size": 1024}, 512),
)  # fmt: skip
