"""The molecules workload: pace over epochs of mixed sizes, memory, another loader, pretraining.

The report: 6.3 to 47.6 it/s from one moment to the next, a loss that stays where it was, and a host
with 32 GB on which the processes of the DataLoader began anew each epoch. Here the data are the
sample's: 4,991 molecules of 1 to 122 atoms, and 1,282 with their solubility. PyTorch Geometric's
DataLoader keeps its graphs as objects in memory, and trains the same model with the same batches.
Stoker's own batches are kept in memory, too, as the limit of what a loader can reach.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from app.guard.facts import DeviceFacts, HostFacts
from app.guard.memory.memory_plan import held_there
from app.guard.memory.workload import Workload, need_of
from app.planning.arithmetic import PartSizes
from app.planning.residency import GIB, MIB, Residency
from app.service.inventory import field_facts
from app.spec.run import RunSpec
from benchmarks.effort import Effort
from benchmarks.figures import Figure, figure_of, not_measured
from benchmarks.steps import spec_of, step_of, unstopped
from benchmarks.workloads import efficiency
from benchmarks.workloads.molecule_runs import Runs, dataset_of
from worker.trainer.data.batch import Batch
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.step import TrainingStep
from worker.trainer.tools.inspect import inspect

Epoch = Callable[[], Iterator[Batch]]

COMMAND = "python -m benchmarks workloads"
BATCH, WINDOWS, ROUNDS, SEEDS = 128, 20, 7, 5
CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[2] / "examples"
RESIDENT = {"kind": "chunked"}
STREAMED = {"kind": "chunked", "residency": "stream", "chunk_size": "1MiB"}
BESIDE_GEOMETRIC = "molecules: Stoker's samples/s over PyTorch Geometric's DataLoader"
# Of the report: processes, batches that each is ahead, and samples of a batch.
WORKERS, AHEAD = 8, 4


def measure(effort: Effort) -> list[Figure]:
    """Needs the extra that makes the sample."""
    if find_spec("rdkit") is None or find_spec("datamol") is None:
        why = "needs RDKit and datamol: pip install 'stoker[molecules]'"
        return [not_measured("molecules", why, COMMAND)]
    from worker.trainer.tools.molecules import sample  # needs that extra

    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        path = Path(folder)
        sample.build(path / "data")
        paths = {"molecules": path / "data/nci.h5", "solubility": path / "data/solubility.h5"}
        data, step = _opened(paths["molecules"], held)
        figures = _pace(data, step, effort.rounds(WINDOWS))
        figures += _beside_geometric(data, step, effort)
        figures += _efficiency(paths["molecules"], effort.rounds(efficiency.ROUNDS), held)
        figures.append(_host_plan(paths["molecules"]))
        if effort.own_processes:
            figures.append(_pretraining(paths, path, SEEDS))
        return figures


def _spec(loader: Mapping[str, Any]) -> RunSpec:
    """Of the pretraining, for more epochs than are measured."""
    request = _request("pretrain")
    request["data"]["loader"] = dict(loader)
    request["training"]["epochs"] = 10_000
    return spec_of(request)


def _request(stage: str) -> dict[str, Any]:
    """The example's, as it stands."""
    from ruamel.yaml import YAML  # late, for this alone

    document = YAML(typ="safe").load(EXAMPLES / f"molecule-{stage}.yaml")
    found: dict[str, Any] = json.loads(json.dumps(document))
    return found


def _opened(path: Path, held: ExitStack) -> tuple[DataSet, TrainingStep]:
    """As a run of the example opens them, on one thread."""
    torch.set_num_threads(1)
    spec = _spec(RESIDENT)
    data = _open(spec, path, held)
    return data, step_of(spec, data.fields)


def _open(spec: RunSpec, path: Path, held: ExitStack) -> DataSet:
    preparing = held.enter_context(unstopped())
    data = open_data(spec, dataset_of("molecules", path), CPU, preparing)
    held.callback(data.close)
    return data


def _efficiency(path: Path, rounds: int, held: ExitStack) -> list[Figure]:
    """Beside batches in memory."""
    spec = _spec(RESIDENT)
    loaders = {
        "Stoker, resident": _open(spec, path, held),
        "Stoker, a stream": _open(_spec(STREAMED), path, held),
    }
    return efficiency.beside_memory("molecules, masked", spec, loaders, rounds, COMMAND)


def _pace(data: DataSet, step: TrainingStep, seconds: int) -> list[Figure]:
    """Samples, atoms and bonds in each second of epoch after epoch, by the clock and by that of the
    processor, which others do not slow; and the memory meanwhile.
    """
    process, done = psutil.Process(), list[list[int]]()
    for _ in _trained(data.train.iterate(0), step):
        pass
    epoch, taken = 1, list[int]()
    clocks = {"": time.perf_counter, " of the processor": time.process_time}
    began = {name: clock() for name, clock in clocks.items()}
    ends: dict[str, list[float]] = {name: [] for name in clocks}
    while any(not each or each[-1] < seconds for each in ends.values()):
        for batch in _trained(data.train.iterate(epoch), step):
            for name, clock in clocks.items():
                ends[name].append(clock() - began[name])
            done.append([batch.size, *batch.arrays["molecules/counts"].sum(0).tolist()])
        epoch += 1
        taken.append(process.memory_info().rss)
    half = len(taken) // 2
    grown = float(np.median(taken[half:]) / np.median(taken[:half]))
    figures = []
    for clock_name, each in ends.items():
        for column, what in enumerate(("samples", "atoms", "bonds")):
            counts = np.bincount(np.floor(each).astype(int), np.array(done)[:, column])[:seconds]
            slow, middle, fast = np.quantile(counts, [0.05, 0.5, 0.95])
            windows = f"95th over 5th percentile of windows of 1 s{clock_name}"
            ratio = Figure(
                f"molecules: {what}, {windows}", float(fast / slow), "", 1.5, seconds, COMMAND
            )
            figures.append(replace(ratio, also={f"{what}/s": float(middle)}))
    name = (
        "molecules: memory after the second half of the epochs over the first half, but the first"
    )
    return [*figures, Figure(name, grown, "", 1.02, len(taken), COMMAND)]


def _trained(batches: Iterator[Batch], step: TrainingStep) -> Iterator[Batch]:
    for batch in batches:
        step.accumulate(batch, 1.0)
        step.apply(1e-3)
        yield batch


def _beside_geometric(data: DataSet, step: TrainingStep, effort: Effort) -> list[Figure]:
    """The same molecules, batch size and model, in this process."""
    if find_spec("torch_geometric") is None:
        why = "needs PyTorch Geometric: pip install 'stoker[peers]'"
        return [not_measured(BESIDE_GEOMETRIC, why, COMMAND)]
    graphs, numbers = _geometric_graphs(data), iter(range(100, 10_000))

    def own() -> Iterator[Batch]:
        return data.train.iterate(next(numbers))

    loaders = {"Stoker": own, "PyTorch Geometric, 0 workers": _geometric(graphs, 0)}
    for stay, words in ((True, "that stay"), (False, "that end with the epoch")):
        loader = _geometric(graphs, WORKERS, stay, AHEAD)
        loaders[f"PyTorch Geometric, {WORKERS} workers {words}"] = loader
    seconds = effort.rounds(WINDOWS)
    swings = [_swing(name, epoch, step, seconds) for name, epoch in loaders.items()]
    return [*_rates(own, graphs, step, effort.rounds(ROUNDS)), *swings]


def _swing(name: str, epoch: Epoch, step: TrainingStep, seconds: int) -> Figure:
    """Steps in each second of epoch after epoch; the first epoch does not count."""
    for _ in _trained(epoch(), step):
        pass
    began, ends = time.perf_counter(), list[float]()
    while not ends or ends[-1] < seconds:
        ends += [time.perf_counter() - began for _ in _trained(epoch(), step)]
    counts = np.bincount(np.floor(ends).astype(int))[:seconds]
    slow, middle, fast = np.quantile(counts, [0.05, 0.5, 0.95])
    what = f"molecules: steps, 95th over 5th percentile of windows of 1 s, {name}"
    also = {"it/s": float(middle), "it/s (5th)": float(slow), "it/s (95th)": float(fast)}
    return Figure(what, float(fast / slow), "", None, seconds, COMMAND, also=also)


def _rates(own: Epoch, graphs: list[Any], step: TrainingStep, rounds: int) -> list[Figure]:
    """Epochs in turn."""
    figures, ours = [], partial(_rate, own, step)
    for workers in (0, 2):
        theirs = partial(_rate, _geometric(graphs, workers), step)
        ours(), theirs()  # memory and processes begin
        pairs = [(ours(), theirs()) for _ in range(rounds)]
        ratios = [one / other for one, other in pairs]
        figure = figure_of(f"{BESIDE_GEOMETRIC}, {workers} workers", "", ratios, COMMAND, 1.0)
        rates = {
            f"{who} samples/s": float(np.median(each))
            for who, each in zip(("own", "their"), zip(*pairs, strict=True), strict=True)
        }
        figures.append(replace(figure, also=rates))
    return figures


def _rate(epoch: Epoch, step: TrainingStep) -> float:
    """Samples a second of an epoch."""
    began = time.perf_counter()
    samples = sum(batch.size for batch in _trained(epoch(), step))
    return samples / (time.perf_counter() - began)


def _geometric_graphs(data: DataSet) -> list[Any]:
    """The training part as objects of that library, in the types of the file."""
    from torch_geometric.data import Data  # a peer

    found = []
    for batch in data.train.iterate(0):
        arrays, node, edge = batch.arrays, 0, 0
        for nodes, edges in arrays["molecules/counts"].tolist():
            atoms, bonds = slice(node, node + nodes), slice(edge, edge + edges)
            found.append(
                Data(
                    x=arrays["molecules"][atoms].clone(),
                    edge_index=(arrays["molecules/edges"][bonds] - node).T.contiguous(),
                    edge_attr=arrays["molecules/edge_values"][bonds].clone(),
                )
            )
            node, edge = node + nodes, edge + edges
    return found


def _geometric(graphs: list[Any], workers: int, stay: bool = True, ahead: int = 2) -> Epoch:
    """`stay`: whether its processes outlive the epoch; `ahead`: batches of each."""
    from torch_geometric.loader import DataLoader  # a peer

    processes = {"persistent_workers": stay, "prefetch_factor": ahead} if workers else {}
    loader = DataLoader(graphs, BATCH, shuffle=True, num_workers=workers, **processes)

    def epoch() -> Iterator[Batch]:
        for one in loader:
            arrays = {
                "molecules": one.x,
                "molecules/samples": one.batch,
                "molecules/edges": one.edge_index.T,
                "molecules/edge_values": one.edge_attr,
            }
            yield Batch(arrays, one.num_graphs)

    return epoch


def _host_plan(path: Path) -> Figure:
    """What is planned of a GPU's host for this data, over that for the report's processes."""
    facts = field_facts(inspect(path)["fields"]["molecules"])
    sizes, arrays = PartSizes(3_992, 499, 500), {"molecules": facts}
    host = HostFacts(memory_bytes=32 * GIB, cores=16, torch_build="cuda")
    gpu = DeviceFacts("cuda", "GPU", 80 * GIB, 79 * GIB, (8, 0), host)
    loader = {"kind": "dataloader", "num_workers": WORKERS, "prefetch_factor": AHEAD}
    planned = {}
    for kind, chosen in (("resident", RESIDENT), ("batches", loader)):
        work = Workload(_spec(chosen), arrays, sizes, need_of([facts], sizes, 1), 0)
        settled = Residency(kind, "", 0, 0, 0)  # type: ignore[arg-type]
        planned[kind] = held_there(work, gpu, settled).beside_gpu(None).peak_bytes
    name = f"molecules: host memory of {WORKERS} workers × {AHEAD} × {BATCH} over Stoker's"
    also = {f"{kind} MiB": taken / MIB for kind, taken in planned.items()}
    ratio = planned["batches"] / planned["resident"]
    return Figure(name, ratio, "", 1.0, 1, COMMAND, at_least=True, also=also)


def _pretraining(paths: Mapping[str, Path], folder: Path, seeds: int) -> Figure:
    """Error on the given test part with the pretrained encoder, over that of new weights, of the
    same steps: by seed.
    """
    runs = Runs(folder, paths)
    first = runs.train(_request("pretrain"))["best"]["step"]
    best = folder / f"1/attempt-1/checkpoints/step-{first}"
    errors: dict[str, list[float]] = {"begun": [], "new": []}
    for seed in range(seeds):
        request = _request("finetune")
        request["training"] |= {"seed": seed}
        request["init_from"] |= {"run": 1}
        errors["begun"].append(runs.train(request, best)["test"]["test_mae"])
        del request["init_from"], request["optimizer"]["backbone_lr"]
        errors["new"].append(runs.train(request)["test"]["test_mae"])
    ratios = [one / other for one, other in zip(errors["begun"], errors["new"], strict=True)]
    name = "molecules: test error after pretraining over that of new weights"
    also: dict[str, float] = {}
    for which, each in errors.items():
        also |= {f"{which} MAE": float(np.mean(each)), f"{which} deviation": float(np.std(each))}
    spread = min(ratios), max(ratios)
    value = also["begun MAE"] / also["new MAE"]
    return Figure(name, value, "", 0.92, seeds, COMMAND, spread, also=also)
