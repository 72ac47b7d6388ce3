"""Opens a run's data: checks it against the spec, chooses the residency, gives batch streams."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from app.spec.arithmetic import evaluation_batch
from app.spec.data import ChunkedLoader, Data, DatasetsSplit
from app.spec.residency import Need, Residency
from app.spec.run import RunSpec
from worker.trainer.data.batch import Batches, BatchPlan
from worker.trainer.data.counters import Counters
from worker.trainer.data.cuda import CudaTransfer
from worker.trainer.data.fingerprint import check_fingerprint
from worker.trainer.data.hdf5 import Hdf5Source, Layout, Stamp
from worker.trainer.data.order import ORDER_VERSION, Order
from worker.trainer.data.reader import ChunkPlan
from worker.trainer.data.residency import choose_residency, device_memory
from worker.trainer.data.resident import Resident
from worker.trainer.data.rows import read_rows
from worker.trainer.data.shuffle import Shuffle, resolve_shuffle
from worker.trainer.data.source import Arrays, Field, bytes_per_sample
from worker.trainer.data.split import Part, Parts, split_samples
from worker.trainer.data.statistics import Moments, field_statistics
from worker.trainer.data.stream import Streamed
from worker.trainer.data.transfer import HostTransfer, piece_bounds
from worker.trainer.errors import DataError, SpecMismatch
from worker.trainer.preparing import Preparing


@dataclass(frozen=True)
class _Checked:
    """A dataset whose file was found to be the registered one, with the fields of the spec."""

    path: Path
    stamp: Stamp
    num_samples: int
    fields: Mapping[str, Field]
    layout: Layout
    """Of the fields that are read past HDF5."""

    def open(self) -> Hdf5Source:
        return self.open_fields(tuple(self.fields))

    def open_fields(self, names: Sequence[str]) -> Hdf5Source:
        return Hdf5Source(self.path, names, self.stamp, self.layout)


@dataclass(frozen=True)
class _Opener:
    """Opens parts on the device, as the residency says."""

    checked: Mapping[str, _Checked]
    residency: Residency
    device: torch.device
    preparing: Preparing

    def open(self, part: Part, order: Order, plan: BatchPlan, chunk_samples: int) -> Batches:
        dataset = self.checked[part.dataset]
        cuda = self.device.type == "cuda"
        fields = dataset.fields
        transfer = CudaTransfer(self.device, fields) if cuda else HostTransfer(fields)
        if self.residency.kind == "resident":
            return Resident(plan, order, part, dataset.open, transfer, self.preparing)
        chunks = ChunkPlan(dataset.open, part, order, chunk_samples)
        return Streamed(plan, chunks, transfer)

    def open_evaluation(self, part: Part | None, spec: RunSpec) -> Batches | None:
        """In the order of the file, every sample once; None for an empty part."""
        if not part:
            return None
        batch_size = evaluation_batch(spec.evaluation, spec.training)
        plan = BatchPlan(len(part), batch_size, drop_last=False)
        order = Order(len(part), spec.training.seed, "none")
        return self.open(part, order, plan, self.residency.evaluation_chunk_samples)


class DataSet:
    """A run's data: three batch streams (validation and test may be None) and what describes them.

    `fields` are those of the spec's inputs and targets, by name.
    """

    def __init__(
        self,
        data: Data,
        training: tuple[_Checked, Part],
        streams: tuple[Batches, Batches | None, Batches | None],
        description: Mapping[str, Any],
    ) -> None:
        self.train, self.validation, self.test = streams
        self._checked, self._part = training
        self.fields = self._checked.fields
        self._targets = data.targets
        self._description = description

    @property
    def counters(self) -> Counters:
        """Of all parts together; the queue is that of the training part."""
        each = [stream.counters for stream in self._streams()]
        copies = [one.copy_seconds for one in each if one.copy_seconds is not None]
        return Counters(
            sum(counters.bytes_read for counters in each),
            self.train.counters.queue_depth,
            sum(copies) if copies else None,
        )

    def statistics(self, names: Sequence[str], preparing: Preparing) -> dict[str, Moments]:
        """(mean, std) of each field over the training part, float64 on the CPU.

        Inputs: one value per feature, shape (last axis,), or () for one number a sample; targets:
        shape (), over all steps. A constant feature has std 1. DataError on NaN or infinity;
        StopRequested.
        """
        return field_statistics(self._training_pieces(names, preparing), self._targets)

    def describe(self) -> dict[str, Any]:
        """What was chosen and why, as JSON for applied.json."""
        return dict(self._description)

    def close(self) -> None:
        """Join every reader and give the memory back."""
        for stream in self._streams():
            stream.close()

    def _streams(self) -> list[Batches]:
        return [stream for stream in (self.train, self.validation, self.test) if stream]

    def _training_pieces(self, names: Sequence[str], preparing: Preparing) -> Iterator[Arrays]:
        """The training part in file order; a piece's arrays are overwritten by the next."""
        fields = {name: self.fields[name] for name in names}
        source = self._checked.open_fields(names)
        try:
            buffers: Arrays = {}
            for start, stop in piece_bounds(fields, len(self._part)):
                if not buffers:
                    buffers = {n: np.empty((stop, *f.shape), f.dtype) for n, f in fields.items()}
                piece = {name: array[: stop - start] for name, array in buffers.items()}
                read_rows(source, self._part.take(np.arange(start, stop)), piece)
                yield piece
                preparing.piece_done()
        finally:
            source.close()


def open_data(
    spec: RunSpec,
    datasets: Mapping[str, Mapping[str, Any]],
    device: torch.device,
    preparing: Preparing,
    host_budget_bytes: int | None = None,
) -> DataSet:
    """Open the datasets of spec.json (name → path, fingerprint, …) for `spec` on `device`.

    `host_budget_bytes`: host memory that data may take on a CPU device; None: half of what is
    available. Raises DataError, DatasetChanged, SpecMismatch, StopRequested.
    """
    data, loader = spec.data, spec.data.loader
    if not isinstance(loader, ChunkedLoader):
        raise SpecMismatch("data.loader.kind dataloader is not available yet; use chunked.")
    checked = _check_all(data, datasets)
    samples = {name: one.num_samples for name, one in checked.items()}
    parts = split_samples(data, samples, spec.training.seed)
    sample_bytes = bytes_per_sample(checked[data.dataset].fields)
    shuffle = resolve_shuffle(loader, samples[data.dataset], sample_bytes)
    held_out = tuple(len(part) for part in parts.non_empty[1:])
    need = Need(sample_bytes, shuffle.group, len(parts.train), held_out)
    residency = choose_residency(loader, need, device_memory(device, host_budget_bytes))
    opener = _Opener(checked, residency, device, preparing)
    plan = _training_plan(spec, len(parts.train))
    order = shuffle.order(len(parts.train), spec.training.seed)
    streams = (
        opener.open(parts.train, order, plan, residency.chunk_samples),
        opener.open_evaluation(parts.validation, spec),
        opener.open_evaluation(parts.test, spec),
    )
    training = checked[data.dataset]
    description = _describe(training, parts, shuffle, need, residency)
    return DataSet(data, (training, parts.train), streams, description)


def _training_plan(spec: RunSpec, num_samples: int) -> BatchPlan:
    plan = BatchPlan(num_samples, spec.training.batch_size, spec.training.drop_last)
    if not plan.num_batches:
        raise SpecMismatch(
            f"training.drop_last leaves nothing to train on: the training part has {num_samples:,}"
            f" samples, fewer than one batch of {plan.batch_size:,}. Lower training.batch_size, or"
            " set drop_last to false."
        )
    return plan


def _check_all(data: Data, datasets: Mapping[str, Mapping[str, Any]]) -> Mapping[str, _Checked]:
    """Every dataset that the spec names, by name."""
    names = [data.dataset]
    if isinstance(data.split, DatasetsSplit):
        names += [data.split.validation, *([data.split.test] if data.split.test else [])]
    checked = {name: _check(name, datasets[name], data) for name in names}
    reference = checked[data.dataset].fields
    for name, one in checked.items():
        if one.fields != reference:
            raise SpecMismatch(
                f"Dataset {name!r} has {_shapes(one.fields)} while {data.dataset!r} has"
                f" {_shapes(reference)}; a validation or test dataset needs the same arrays."
            )
    return checked


def _check(name: str, dataset: Mapping[str, Any], data: Data) -> _Checked:
    path, expected = Path(dataset["path"]), dataset["fingerprint"]
    check_fingerprint(name, path, expected)
    names = tuple(dict.fromkeys((*data.inputs, *data.targets)))
    source = Hdf5Source(path, names, Stamp(expected["size"], expected["mtime_ns"]))
    source.close()
    if not source.num_samples:
        raise DataError(f"{path} holds no samples; write at least one row, then register it again.")
    return _Checked(path, source.stamp, source.num_samples, source.fields, source.layout)


def _shapes(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name} {field.dtype.name}{field.shape}" for name, field in fields.items())


def _describe(
    training: _Checked, parts: Parts, shuffle: Shuffle, need: Need, residency: Residency
) -> dict[str, Any]:
    streamed = residency.kind == "stream"
    chunk = min(residency.chunk_samples, len(parts.train))
    return {
        "residency": residency.kind,
        "residency_reason": residency.why,
        "chunk_samples": chunk if streamed else None,
        "chunk_bytes": chunk * need.sample_bytes if streamed else None,
        "shuffle": shuffle.kind,
        "shuffle_group": shuffle.group if shuffle.kind == "block" else None,
        "shuffle_block": shuffle.block if shuffle.kind == "block" else None,
        "order_version": ORDER_VERSION,
        "sample_bytes": need.sample_bytes,
        "data_bytes": need.data_bytes,
        "train_samples": len(parts.train),
        "validation_samples": len(parts.validation),
        "test_samples": len(parts.test) if parts.test else 0,
        "read_directly": list(training.layout.names),
    }
