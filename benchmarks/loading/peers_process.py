"""The process of the peers that have an environment of their own; nothing else imports it."""

import importlib.metadata
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import spdl.pipeline
import torch
from numpy.typing import NDArray

from benchmarks.loading.arms import BATCH, CORES, Arm, Batch
from benchmarks.loading.files import HORIZON, WINDOW, WRITTEN_AT_ONCE, DataFile
from benchmarks.loading.peers import BatchedWindows, Windows
from benchmarks.loading.serving import serve

# Of streaming only the readers of its own format are used. Its pictures need torchvision, which
# PyPI has for CUDA builds of PyTorch alone: beside a CPU build it cannot be imported.
sys.modules["streaming.vision"] = types.ModuleType("streaming.vision")

import streaming  # noqa: E402 - after the stand-in

WORKERS = (0, CORES)
THREADS, AHEAD = CORES, CORES + 1


def arms(file: DataFile, shuffled: bool) -> Iterator[Arm]:
    streaming.base.util.clean_stale_shared_memory()  # of one that was ended
    yield from _streaming(_shards(file), shuffled)
    yield _spdl(file, shuffled)


def _shards(file: DataFile) -> Path:
    """The same samples as MDS, its own format, of 64 MiB a shard (its default)."""
    folder = file.path.with_suffix(".mds")
    if folder.exists():
        return folder
    columns = {
        "features": f"ndarray:float32:{WINDOW},{file.features}",
        "targets": f"ndarray:float32:{HORIZON}",
    }
    arrays = Windows(file).arrays
    with streaming.MDSWriter(columns=columns, out=str(folder)) as writer:
        for start in range(0, file.samples, WRITTEN_AT_ONCE):
            piece = {n: array[start : start + WRITTEN_AT_ONCE] for n, array in arrays.items()}
            for row in range(len(piece["targets"])):
                writer.write({name: array[row] for name, array in piece.items()})
    return folder


def _streaming(shards: Path, shuffled: bool) -> Iterator[Arm]:
    """Its own loader over its own shuffle; batches are stacked once, workers stay."""
    for workers in WORKERS:
        dataset = streaming.StreamingDataset(local=str(shards), shuffle=shuffled, batch_size=BATCH)
        stay = {"persistent_workers": True} if workers else {}
        loader = streaming.StreamingDataLoader(
            dataset, batch_size=BATCH, num_workers=workers, collate_fn=_stack, **stay
        )
        version = importlib.metadata.version("mosaicml-streaming")
        name = f"mosaicml-streaming {version}, {workers} workers"
        yield Arm(name, lambda number, loader=loader: iter(loader))  # type: ignore[misc]


def _stack(samples: Sequence[dict[str, NDArray[Any]]]) -> Batch:
    return {
        name: torch.from_numpy(np.stack([sample[name] for sample in samples]))
        for name in samples[0]
    }


def _spdl(file: DataFile, shuffled: bool) -> Arm:
    """Threads that read batches as DataLoader's processes do, a few ahead."""
    windows = BatchedWindows(file)
    _ = windows.arrays  # opened here, not by two threads at once

    def epoch(number: int) -> Iterator[Batch]:
        rows = torch.arange(file.samples)
        if shuffled:
            rows = torch.randperm(file.samples, generator=torch.Generator().manual_seed(number))
        batches = [part.tolist() for part in torch.split(rows, BATCH)]
        builder = spdl.pipeline.PipelineBuilder().add_source(batches)
        reading = builder.pipe(windows.__getitems__, concurrency=THREADS).add_sink(AHEAD)
        pipeline = reading.build(num_threads=THREADS)
        with pipeline.auto_stop():
            yield from pipeline

    version = importlib.metadata.version("spdl-core")
    return Arm(f"spdl {version}, {THREADS} threads", epoch)


if __name__ == "__main__":
    serve(arms)
