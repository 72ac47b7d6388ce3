"""Test errors of the recipe `molecule` and of PyTorch Geometric's GINE, at the same budget.

The peer is the usual network of that library: embedded features, GINEConv layers, a sum over the
atoms, a head of two layers. It trains with batch norm and without, and the one with the smaller
error counts. Width, layers, optimizer, schedule, loss, batch size, epochs, seeds and parts are the
same, and so is the choice of the epoch by the validation error. The properties are the sample's
solubility, and the polar surface (TPSA), which is a sum over atoms.

`python -m benchmarks.workloads.molecule_peers` measures this alone, in about six minutes.
"""

import statistics
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.figures import Figure, not_measured, print_table
from benchmarks.workloads.molecule_runs import Runs
from worker.trainer.tools.bad_rows import Bad
from worker.trainer.tools.molecules import convert, records, sample

COMMAND = "python -m benchmarks.workloads.molecule_peers"
WIDTH, LAYERS, BATCH, RATE, DECAY = 64, 4, 32, 2e-3, 0.01
EPOCHS = {"solubility": 20, "tpsa": 10}
PARTS = {"solubility": "part", "tpsa": "scaffold_part"}
UNITS = {"solubility": "log mol/l", "tpsa": "Å²"}
SEEDS = (0, 1, 2)
TRAINING, VALIDATION, TEST = 0, 1, 2


def measure() -> list[Figure]:
    """Needs the extras that make the sample and that compare."""
    if find_spec("torch_geometric") is None or find_spec("rdkit") is None:
        why = "needs RDKit and PyTorch Geometric: pip install 'stoker[molecules,peers]'"
        return [not_measured("molecules: test error over PyTorch Geometric's GINE", why, COMMAND)]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        sample.build(path / "data")
        files = {"solubility": path / "data" / sample.SOLUBILITY, "tpsa": path / "tpsa.h5"}
        _write_surfaces(files["tpsa"])
        runs = Runs(path, files)
        return [_compared(name, runs, files[name]) for name in files]


def _write_surfaces(out: Path) -> None:
    """The polar surface of each molecule of the sample."""
    from rdkit.Chem.rdMolDescriptors import CalcTPSA  # an extra, for this alone

    path = sample.packaged("rdkit", "Data/NCI/first_5K.smi")
    molecules = records.read_molecules(path, records.Wanted(), Bad(skips=True))
    known = [one._replace(targets=(CalcTPSA(one.mol),)) for one in molecules]
    convert.write(out, known, ["TPSA"])


def _compared(name: str, runs: Runs, path: Path) -> Figure:
    ours = [runs.train(_request(name, seed))["test"]["test_mae"] for seed in SEEDS]
    peers = {
        norm: [_peer_error(name, path, seed, norm) for seed in SEEDS]
        for norm in (None, "batch_norm")
    }
    theirs = min(peers.values(), key=statistics.mean)
    own, their, spread = statistics.mean(ours), statistics.mean(theirs), statistics.stdev(theirs)
    also = {"own MAE": own, "own deviation": statistics.stdev(ours), "their MAE": their}
    also |= {"their deviation": spread, "with batch norm": statistics.mean(peers["batch_norm"])}
    title = f"molecules: test MAE of {name} ({UNITS[name]}) over PyTorch Geometric's GINE"
    return Figure(title, own / their, "", 1 + spread / their, len(SEEDS), COMMAND, also=also)


def _request(name: str, seed: int) -> dict[str, Any]:
    return {
        "recipe": {
            "kind": "molecule", "task": "regression", "hidden_size": WIDTH, "num_layers": LAYERS
        },
        "data": {
            "dataset": name,
            "inputs": ["molecules"],
            "targets": ["targets"],
            "split": {"method": "field", "field": PARTS[name]},
        },
        "training": {"epochs": EPOCHS[name], "batch_size": BATCH, "seed": seed},
        "optimizer": {"kind": "adamw", "lr": RATE, "weight_decay": DECAY},
        "schedule": {"kind": "onecycle"},
        "evaluation": {"metrics": ["mae"]},
        "checkpoint": {"monitor": "val_mae"},
    }  # fmt: skip


class Peer(nn.Module):
    """GINE as PyTorch Geometric's users build it."""

    def __init__(self, features: tuple[int, int], norm: str | None, values: int = 128) -> None:
        from torch_geometric.nn import MLP, GINEConv  # a peer

        super().__init__()
        self.values = values
        self.atoms, self.bonds = (nn.Embedding(each * values, WIDTH) for each in features)
        shape = [WIDTH, 2 * WIDTH, WIDTH]
        self.layers = nn.ModuleList(GINEConv(MLP(shape, norm=norm)) for _ in range(LAYERS))
        self.norms = nn.ModuleList(
            nn.Identity() if norm is None else nn.BatchNorm1d(WIDTH) for _ in range(LAYERS)
        )
        self.head = MLP([WIDTH, WIDTH, 1], norm=None)

    def forward(self, batch: Any) -> Tensor:
        from torch_geometric.nn import global_add_pool  # a peer

        atoms = self._embedded(self.atoms, batch.x)
        bonds = self._embedded(self.bonds, batch.edge_attr)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            atoms = norm(layer(atoms, batch.edge_index, bonds)).relu()
        answers: Tensor = self.head(global_add_pool(atoms, batch.batch, batch.num_graphs))
        return answers[:, 0]

    def _embedded(self, table: nn.Embedding, features: Tensor) -> Tensor:
        first = torch.arange(features.shape[1]) * self.values
        embedded: Tensor = table(features.long() + first)
        return embedded.sum(1)


def _peer_error(name: str, path: Path, seed: int, norm: str | None) -> float:
    """The test error of the epoch with the least validation error."""
    from torch_geometric.loader import DataLoader  # a peer

    torch.manual_seed(seed)
    graphs = _graphs_by_part(path, PARTS[name])
    loaders = {
        part: DataLoader(each, BATCH, shuffle=part == TRAINING) for part, each in graphs.items()
    }
    targets = torch.cat([graph.y for graph in graphs[TRAINING]])
    mean, std = targets.mean(), targets.std(correction=0)
    first = graphs[TRAINING][0]
    model = Peer((first.x.shape[1], first.edge_attr.shape[1]), norm)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    steps = EPOCHS[name] * len(loaders[TRAINING])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)

    def error_on(part: int) -> float:
        with torch.inference_mode():
            off = [(model(one) * std + mean - one.y).abs().sum() for one in loaders[part]]
        return float(sum(off)) / len(graphs[part])

    errors: list[tuple[float, float]] = []
    for _ in range(EPOCHS[name]):
        model.train()
        for batch in loaders[TRAINING]:
            loss = functional.l1_loss(model(batch), (batch.y - mean) / std)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        model.eval()
        errors.append((error_on(VALIDATION), error_on(TEST)))
    return min(errors)[1]


def _graphs_by_part(path: Path, part_field: str) -> Mapping[int, list[Any]]:
    """The file's molecules as objects of that library; each bond in both directions."""
    from torch_geometric.data import Data  # a peer

    by_part: dict[int, list[Any]] = {TRAINING: [], VALIDATION: [], TEST: []}
    with h5py.File(path) as file:
        group = file["molecules"]
        nodes, edges = group["nodes"][:], group["edges"][:].astype(np.int64)
        values = group["edge_values"][:]
        node_ends, edge_ends = group["node_offsets"][:], group["edge_offsets"][:]
        parts, targets = file[part_field][:], file["targets"][:]
    for row, part in enumerate(parts):
        atoms, bonds = slice(*node_ends[row : row + 2]), slice(*edge_ends[row : row + 2])
        ends = torch.from_numpy(edges[bonds]).T
        data = Data(
            x=torch.from_numpy(nodes[atoms]),
            edge_index=torch.cat([ends, ends.flip(0)], 1),
            edge_attr=torch.from_numpy(values[bonds]).repeat(2, 1),
            y=torch.tensor([targets[row]]),
        )
        by_part[int(part)].append(data)
    return by_part


if __name__ == "__main__":
    print_table(measure())
