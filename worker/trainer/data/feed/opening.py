"""How each kind of loader opens the parts of a run, and what it says of itself."""

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import Any, Literal, Protocol

import numpy as np
import torch

from app.container import usable_cores
from app.planning.imports import IMPORTS, build_of
from app.planning.ladder import Rung, Use
from app.planning.residency import PIECE_BYTES, Need, Residency, in_gib
from app.planning.worker_pool import WorkerPool, process_bytes, worker_pool_for
from app.spec.data import ChunkedLoader, DataLoaderLoader
from worker.trainer.data.batch import ONE_SHAPE, Batches, BatchPlan, BatchShapes
from worker.trainer.data.checked import Checked
from worker.trainer.data.feed.cuda import CudaBatches, CudaDevice
from worker.trainer.data.feed.dataloader import (
    BatchRows,
    DataLoaderBatches,
    OnHost,
    ToDevice,
    require_shared_memory,
)
from worker.trainer.data.feed.reader import ChunkPlan
from worker.trainer.data.feed.resident import Resident
from worker.trainer.data.feed.samples import (
    Batched,
    BatchSource,
    MadeSamples,
    MakeDataset,
    Samples,
)
from worker.trainer.data.feed.stream import Streamed
from worker.trainer.data.feed.transfer import HostDevice, Transfer
from worker.trainer.data.order import Order
from worker.trainer.data.shapes import batch_shapes
from worker.trainer.data.source import Field, bytes_per_sample
from worker.trainer.data.split import Part
from worker.trainer.errors import SpecMismatch
from worker.trainer.report.preparing import Preparing

# A hundredth of a second to read. Scattered rows take twice the time of neighbours, which a chunk
# of less than so many times as much is read too soon to be worth.
FIRST_CHUNK_BYTES = 8 * 2**20
LEAST_SHARED = 32

PartName = Literal["train", "validation", "test"]
Plans = dict[PartName, BatchPlan]
PART_WORDS: dict[PartName, str] = {"train": "training", "validation": "validation", "test": "test"}
Warnings = list[tuple[str, str]]
"""Codes and sentences of what is not as it was asked for."""


class Opener(Protocol):
    """Opens the parts of one run, each once."""

    def use(self, use: Use) -> Use:
        """With what the memory ladder can make smaller of this loader; nothing is taken yet."""

    def open(self, name: PartName, part: Part, order: Order, plan: BatchPlan) -> Batches:
        """A part's batches."""

    def describe(self) -> dict[str, Any]:
        """What was chosen and why, as JSON."""

    def warnings(self) -> Warnings:
        """What is not done as it was asked for."""


class ChunkedOpener:
    """On the device, as the residency says."""

    def __init__(
        self,
        checked: Mapping[str, Checked],
        settings: ChunkedLoader,
        need: Need,
        residency: Residency,
        device: torch.device,
        rung: Rung,
        preparing: Preparing,
        epochs: int,
    ) -> None:
        self._checked = checked
        self._settings = settings
        self._epochs = epochs
        self._need = need
        self._residency = residency
        self._device = device
        self._rung = rung
        self._preparing = preparing
        self._scattered_rate: float | None = None
        """The bytes a second of rows in full order; None while none are read from the file."""

    def use(self, use: Use) -> Use:
        residency = self._residency
        staging = self._rung.staging_bytes or PIECE_BYTES
        return replace(
            use,
            residency=residency.kind,
            data_bytes=residency.needed_bytes,
            staging_bytes=staging if use.device == "cuda" else 0,
        )

    def open(self, name: PartName, part: Part, order: Order, plan: BatchPlan) -> Batches:
        dataset, residency = self._checked[part.dataset], self._residency
        in_training = name == "train"
        epochs = self._epochs if in_training else 1
        shapes = batch_shapes(dataset.layouts.values(), part, order, plan)
        if residency.kind == "resident":
            transfer = self._transfer(dataset)
            return Resident(
                plan, order, part, dataset.open, transfer, self._preparing, epochs, shapes
            )
        samples = residency.chunk_samples if in_training else residency.evaluation_chunk_samples
        if order.shuffle == "full" and samples < len(part):
            self._scattered_rate = _scattered_rate(dataset, part, samples)
        first = _first_samples(dataset, order, min(samples, len(part)))
        chunks = ChunkPlan(dataset.open, part, order, samples, first, epochs)
        return Streamed(plan, chunks, self._transfer(dataset), shapes)

    def _transfer(self, dataset: Checked) -> Transfer:
        on_gpu, staging = self._device.type == "cuda", self._rung.staging_bytes
        device = CudaDevice(self._device, staging) if on_gpu else HostDevice()
        return Transfer(dataset.layouts.values(), device)

    def describe(self) -> dict[str, Any]:
        residency, need = self._residency, self._need
        streamed = residency.kind == "stream"
        chunk = min(residency.chunk_samples, need.train_samples)
        return {
            "loader": "chunked",
            "residency": residency.kind,
            "residency_reason": residency.why,
            "chunk_samples": chunk if streamed else None,
            "chunk_bytes": chunk * need.sample_bytes if streamed else None,
            "scattered_bytes_per_second": self._scattered_rate,
        }

    def warnings(self) -> Warnings:
        """Warns of a full order that was settled for data on the device, and now reads the file."""
        if self._scattered_rate is None or self._settings.residency == "stream":
            return []
        chunk, samples = self._residency.chunk_samples, self._need.train_samples
        return [
            (
                "full_order_streamed",
                f"The order of samples stays as it was settled: data.loader.shuffle is full, and "
                f"the data is read in chunks of {chunk:,} of {samples:,} samples "
                f"({self._residency.why}). Each epoch reads scattered rows, here at "
                f"{in_gib(round(self._scattered_rate))} a second. If the steps wait for them, "
                "restart with data.loader.shuffle: block, or free memory for the data.",
            )
        ]


def _scattered_rate(dataset: Checked, part: Part, chunk_samples: int) -> float:
    """Measures the bytes a second of rows that lie as far apart as those of a chunk in full order.
    The page cache may have a part in it.
    """
    count = min(chunk_samples, max(1, FIRST_CHUNK_BYTES // dataset.kept_bytes))
    rows = part.take(np.arange(count, dtype=np.int64) * len(part) // chunk_samples)
    transfer = Transfer(dataset.layouts.values(), HostDevice())
    slot = transfer.slot_of(rows, 0)
    with closing(dataset.open()) as source:
        began = time.perf_counter()
        read = sum(transfer.load(source, rows, slot))
        return read / max(time.perf_counter() - began, 1e-9)


def _first_samples(dataset: Checked, order: Order, chunk_samples: int) -> int:
    """Of an iteration's first chunk, where the others have so many."""
    small = max(1, FIRST_CHUNK_BYTES // dataset.kept_bytes)
    if order.shuffle == "none":
        return min(small, chunk_samples)
    # Packed rows are unpacked together: a few scattered ones would take as long as all.
    is_worth_it = dataset.reads_apart and chunk_samples >= LEAST_SHARED * small
    return small if is_worth_it else chunk_samples


class DataLoaderOpener:
    """By torch.utils.data.DataLoader, with processes of its own for each part."""

    def __init__(
        self,
        checked: Mapping[str, Checked],
        settings: DataLoaderLoader,
        plans: Plans,
        device: torch.device,
        rung: Rung,
        fields: Mapping[str, Field],
        make: MakeDataset | None,
    ) -> None:
        """`fields`: of a batch; `make`: what makes its samples of the file's, if the recipe does.
        Raises SpecMismatch.
        """
        if settings.pin_memory and device.type != "cuda":
            raise SpecMismatch(
                "data.loader.pin_memory is for copies to a GPU, and this run is on the CPU, whose "
                "batches are not copied at all; set it to false."
            )
        self._checked = checked
        self._settings = settings
        self._plans = plans
        self._device = device
        self._fields, self._make = fields, make
        self._cores = usable_cores()
        self._pools: dict[PartName, WorkerPool] = {
            name: worker_pool_for(settings, self._cores, plan.epoch_micro_batches, rung)
            for name, plan in plans.items()
        }

    def use(self, use: Use) -> Use:
        pool, imports = self._pools["train"], IMPORTS[build_of(metadata.version("torch"))]
        return replace(
            use,
            workers=pool.workers,
            prefetch_factor=pool.prefetch_factor,
            process_bytes=process_bytes(self._settings, imports),
        )

    def open(self, name: PartName, part: Part, order: Order, plan: BatchPlan) -> Batches:
        pool, dataset = self._pools[name], self._checked[part.dataset]
        shapes = batch_shapes(dataset.layouts.values(), part, order, plan)
        if pool.workers:
            batch_bytes = plan.largest_micro_batch * bytes_per_sample(self._fields)
            require_shared_memory(pool.slots * batch_bytes)
        samples = batch_source(dataset, self._fields, self._make, pool.workers, shapes)
        asked, to_device = BatchRows(plan, order, part), self._to_device()
        return DataLoaderBatches(
            plan, asked, Batched(samples), to_device, pool, self._settings, shapes
        )

    def _to_device(self) -> ToDevice:
        if self._device.type == "cuda":
            return CudaBatches(self._device, pinned=self._settings.pin_memory)
        return OnHost()

    def describe(self) -> dict[str, Any]:
        asked, used = self._settings, any(pool.workers for pool in self._pools.values())
        return {
            "loader": "dataloader",
            "num_workers": {name: pool.workers for name, pool in self._pools.items()},
            "num_workers_asked": asked.num_workers,
            "prefetch_factor": self._pools["train"].prefetch_factor if used else None,
            "persistent_workers": asked.persistent_workers,
            "multiprocessing_context": asked.multiprocessing_context if used else None,
            "pin_memory": asked.pin_memory,
        }

    def warnings(self) -> Warnings:
        asked = self._settings.num_workers
        fewer = [
            f"{pool.workers} for the {PART_WORDS[name]} part ({self._limit(name, pool)})"
            for name, pool in self._pools.items()
            if pool.workers < asked
        ]
        if not fewer:
            return []
        told = f"data.loader.num_workers is {asked}, and fewer are started: {', '.join(fewer)}."
        return [("fewer_loader_processes", told)]

    def _limit(self, name: PartName, pool: WorkerPool) -> str:
        batches = self._plans[name].epoch_micro_batches
        if pool.workers == batches:
            return f"batches: {batches:,}"
        if pool.workers == self._cores:
            return f"cores that may be used: {self._cores}"
        return "the memory ladder"


def batch_source(
    dataset: Checked,
    fields: Mapping[str, Field],
    make: MakeDataset | None,
    workers: int = 0,
    shapes: BatchShapes = ONE_SHAPE,
) -> BatchSource:
    """The file's samples, or what the recipe makes of them. A process reads with one thread, the
    trainer with several: there are many processes.
    """
    opened = partial(dataset.open, threads=1) if workers else dataset.open
    stored = Samples(opened, dataset.num_samples, dataset.layouts.values(), shapes)
    return MadeSamples(make, stored, fields) if make else stored
