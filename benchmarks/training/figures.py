"""Training fed by each loader, in turn, beside training on batches that are in memory already."""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.effort import Effort
from benchmarks.figures import Figure, figure_of
from benchmarks.loading.arms import BATCH, CORES, Arm, Batch
from benchmarks.loading.files import DataFile, write
from benchmarks.loading.peers import dataloader, naive_chunks
from benchmarks.loading.probes import load
from benchmarks.loading.stoker import by_torch, stoker, too_large
from benchmarks.training.captured import captured
from benchmarks.training.gpu import on_gpu, variants_on_gpu
from benchmarks.training.models import MODELS, Subject
from benchmarks.training.rounds import Ratios, beside, efficiency
from benchmarks.training.training import Epoch, Training

# On a host rounds differ by a tenth, on a GPU by a hundredth.
ROUNDS, PEER_ROUNDS = {"cpu": 40, "cuda": 8}, {"cpu": 9, "cuda": 5}
# Windows of 23 KiB, as weather; an epoch takes half a second or less.
SAMPLES = {"cpu": 2_560, "cuda": 24_576}
FEATURES = 16
# Of DataLoader. A machine with a GPU has more cores, of which it is given more.
WORKERS = {"cpu": (0, CORES), "cuda": (CORES,)}
# Asked for: of the limit where the model is the work, resident and stream, and over the peers where
# the data is.
LEAST_EFFICIENCY, LEAST_EFFICIENCY_OF_A_GPU = (0.97, 0.95), (0.98, 0.98)
OVER_ITEMS, OVER_BATCHES = 1 / (1 - 0.599), 1.3
DATA_HEAVY = "MLP"
COMMAND = "python -m benchmarks training"


def measure(effort: Effort, device: str = "cpu") -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        file = write(Path(folder), "contiguous", effort.samples(SAMPLES[device]), FEATURES)
        subjects = [Subject(name, device) for name in effort.variants(list(MODELS[device]))]
        figures = [figure for each in subjects for figure in _of_subject(each, file, effort)]
        if device != "cpu":
            for variant in variants_on_gpu(subjects):
                figures += _beside_the_limit(variant, file, effort.rounds(PEER_ROUNDS[device]))
            figures += on_gpu(file, subjects, COMMAND)
            figures += captured(file, device, effort.rounds(ROUNDS[device]), COMMAND)
        return figures


def _of_subject(subject: Subject, file: DataFile, effort: Effort) -> list[Figure]:
    return [
        *_beside_the_limit(subject, file, effort.rounds(ROUNDS[subject.device])),
        *_beside_peers(subject, file, effort.rounds(PEER_ROUNDS[subject.device])),
    ]


def _beside_the_limit(subject: Subject, file: DataFile, count: int) -> list[Figure]:
    name, device = subject.name, subject.device
    limit = ready(file, device)
    ours = [stoker(file, "resident", "full", device=device), too_large(file, device)]
    thrown_away = loaded_beside(limit, too_large(file, device))
    training = partial(Training, subject, file)
    rounds, ratios = beside(limit, [*ours, thrown_away], training, count)
    figures = [_rate(name, file, arm, epochs) for arm, epochs in rounds.items()]
    least = LEAST_EFFICIENCY if device == "cpu" else LEAST_EFFICIENCY_OF_A_GPU
    heavy = subject.model == DATA_HEAVY and device == "cpu"
    bounds = [None if heavy else bound for bound in least]
    for arm, bound in zip((*ours, thrown_away), (*bounds, None), strict=True):
        figures.append(efficiency(name, arm, ratios[arm.name], bound, COMMAND))
    return figures


def _beside_peers(subject: Subject, file: DataFile, count: int) -> list[Figure]:
    name, device = subject.name, subject.device
    loader = partial(dataloader, file, shuffled=True, device=device)
    ours = too_large(file, device)
    naive = naive_chunks(file, shuffled=True, device=device)
    items = [loader(n, batched=False) for n in WORKERS[device]]
    batches = [loader(n, batched=True) for n in WORKERS[device]]
    loaded = [by_torch(file, n, "full", device) for n in WORKERS[device]]
    others = [naive, *items, *batches, *loaded]
    rounds, ratios = beside(ours, others, partial(Training, subject, file), count)
    figures = [_rate(name, file, arm, rounds[arm]) for arm in rounds if arm != ours.name]
    heavy = name == DATA_HEAVY and device == "cpu"
    over = (OVER_ITEMS, OVER_BATCHES) if heavy else (1.0, 1.0)
    peers = ((items, over[0]), (batches, over[1]), ([naive], 1.0), (loaded, None))
    return [*figures, *(_over(name, ratios, ours, some, least) for some, least in peers)]


def ready(file: DataFile, device: str = "cpu") -> Arm:
    """All batches as they are needed, made beforehand: there is nothing left to load."""
    data = load(file, device)
    order = torch.randperm(file.samples, generator=torch.Generator().manual_seed(0)).to(device)
    cut = [
        {name: array[rows] for name, array in data.items()} for rows in torch.split(order, BATCH)
    ]
    return Arm("in memory", lambda number: iter(cut))


def loaded_beside(limit: Arm, loader: Arm) -> Arm:
    """Trains on what is in memory while a loader works for nothing: what its threads take away."""

    def epoch(number: int) -> Iterator[Batch]:
        for batch, _ in zip(limit.epoch(number), loader.epoch(number), strict=True):
            yield batch

    return Arm("in memory, a stream thrown away", epoch, loader.close)


def _rate(model: str, file: DataFile, arm: str, epochs: Sequence[Epoch]) -> Figure:
    rates = [file.samples / e.seconds for e in epochs]
    waited = statistics.median(100 * e.waited / e.seconds for e in epochs)
    figure = figure_of(f"{model}: {arm}", "samples/s", rates, COMMAND)
    return replace(figure, also={"% waiting for batches": waited})


def _over(
    model: str, ratios: Ratios, ours: Arm, others: Sequence[Arm], bound: float | None
) -> Figure:
    """Of several others, that which is fastest; `ratios`: of their rates over ours."""
    best = max(others, key=lambda arm: statistics.median(ratios[arm.name]))
    name = f"{model}: {ours.name} over {best.name}"
    return figure_of(name, "", [1 / ratio for ratio in ratios[best.name]], COMMAND, bound)
