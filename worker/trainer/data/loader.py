"""Opens a run's data: checks it against the spec, chooses the residency, gives batch streams."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.spec.arithmetic import evaluation_batch
from app.spec.data import ChunkedLoader, Data
from app.spec.ladder import NO_RUNG, Rung, Use
from app.spec.residency import PIECE_BYTES, Need, Residency
from app.spec.run import RunSpec
from worker.trainer.data.batch import Batches, BatchPlan
from worker.trainer.data.checked import Checked, check_all
from worker.trainer.data.counters import Counters
from worker.trainer.data.cuda import CudaTransfer
from worker.trainer.data.order import ORDER_VERSION, Order
from worker.trainer.data.reader import ChunkPlan
from worker.trainer.data.residency import choose_residency, device_memory
from worker.trainer.data.resident import Resident
from worker.trainer.data.rows import read_rows
from worker.trainer.data.shuffle import Shuffle, resolve_shuffle
from worker.trainer.data.source import Arrays, Field, Rows, Source, bytes_per_sample
from worker.trainer.data.split import Part, Parts, split_samples
from worker.trainer.data.statistics import Moments, field_statistics, series_statistics
from worker.trainer.data.stream import Streamed
from worker.trainer.data.transfer import HostTransfer, Transfer, piece_bounds
from worker.trainer.errors import SpecMismatch
from worker.trainer.preparing import Preparing

# A hundredth of a second to read. Scattered rows take twice the time of neighbours, which a chunk
# of less than so many times as much is read too soon to be worth.
FIRST_CHUNK_BYTES = 8 * 2**20
LEAST_SHARED = 32


@dataclass(frozen=True)
class _Opener:
    """Opens parts on the device, as the residency says."""

    checked: Mapping[str, Checked]
    residency: Residency
    device: torch.device
    rung: Rung
    preparing: Preparing

    def open(self, part: Part, order: Order, plan: BatchPlan, chunk_samples: int) -> Batches:
        dataset = self.checked[part.dataset]
        if self.residency.kind == "resident":
            return Resident(plan, order, part, dataset.open, self._transfer, self.preparing)
        first = _first_samples(dataset, order, min(chunk_samples, len(part)))
        chunks = ChunkPlan(dataset.open, part, order, chunk_samples, first)
        return Streamed(plan, chunks, self._transfer(dataset.fields))

    def _transfer(self, fields: Mapping[str, Field]) -> Transfer:
        if self.device.type == "cuda":
            return CudaTransfer(self.device, fields, self.rung.staging_bytes)
        return HostTransfer(fields)

    def open_evaluation(self, part: Part | None, spec: RunSpec) -> Batches | None:
        """In the order of the file, every sample once; None for an empty part."""
        if not part:
            return None
        plan = _evaluation_plan(spec, len(part), self.rung)
        order = Order(len(part), spec.training.seed, "none")
        return self.open(part, order, plan, self.residency.evaluation_chunk_samples)


def _first_samples(dataset: Checked, order: Order, chunk_samples: int) -> int:
    """Of an iteration's first chunk, where the others have so many."""
    small = max(1, FIRST_CHUNK_BYTES // bytes_per_sample(dataset.fields))
    if order.shuffle == "none":
        return min(small, chunk_samples)
    # Packed rows are unpacked together: a few scattered ones would take as long as all.
    is_worth_it = dataset.reads_apart and chunk_samples >= LEAST_SHARED * small
    return small if is_worth_it else chunk_samples


class DataSet:
    """A run's data: three batch streams (validation and test may be None) and what describes them.

    `fields` are those of the spec's inputs and targets, by name.
    """

    def __init__(
        self,
        data: Data,
        training: tuple[Checked, Part],
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
        # Windows count each step of their series as often as they hold it, unless each place in a
        # window is a feature of its own.
        windows = self._checked.windows
        series = [
            n for n in names if n in windows and (n in self._targets or windows[n].step.shape)
        ]
        others = [name for name in names if name not in series]
        found = field_statistics(self._training_pieces(others, preparing), self._targets)
        for name in series:
            pieces = self._series_pieces(name, preparing)
            found[name] = series_statistics(name, pieces, pooled=name in self._targets)
        return found

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
        if names:
            with closing(self._checked.open_fields(names)) as source:
                yield from _pieces(source, self._part.all_rows(), preparing)

    def _series_pieces(
        self, name: str, preparing: Preparing
    ) -> Iterator[tuple[NDArray[Any], Rows]]:
        """Steps of the series of the training part's windows, and how many hold each."""
        times = self._checked.windows[name].times(self._part.all_rows())
        first, last = np.flatnonzero(times)[[0, -1]].tolist()
        steps = np.arange(first, last + 1)
        with closing(self._checked.open_series(name)) as source:
            start = first
            for piece in _pieces(source, steps, preparing):
                [array] = piece.values()
                yield array, times[start : start + len(array)]
                start += len(array)


def _pieces(source: Source, rows: Rows, preparing: Preparing) -> Iterator[Arrays]:
    """These rows, in pieces; a piece's arrays are overwritten by the next."""
    buffers: Arrays = {}
    for start, stop in piece_bounds(source.fields, len(rows)):
        if not buffers:
            buffers = {n: np.empty((stop, *f.shape), f.dtype) for n, f in source.fields.items()}
        piece = {name: array[: stop - start] for name, array in buffers.items()}
        read_rows(source, rows[start:stop], piece)
        yield piece
        preparing.piece_done()


def open_data(
    spec: RunSpec,
    datasets: Mapping[str, Mapping[str, Any]],
    device: torch.device,
    preparing: Preparing,
    host_budget_bytes: int | None = None,
    rung: Rung = NO_RUNG,
) -> DataSet:
    """Open the datasets of spec.json (name → path, fingerprint, …) for `spec` on `device`.

    `host_budget_bytes`: host memory that data may take on a CPU device; None: half of what is
    available. `rung`: how much data and how many samples at once, where the spec's were too much.
    Raises DataError, DatasetChanged, SpecMismatch, StopRequested.
    """
    data, loader = spec.data, spec.data.loader
    if not isinstance(loader, ChunkedLoader):
        raise SpecMismatch("data.loader.kind dataloader is not available yet; use chunked.")
    checked = check_all(data, datasets)
    samples = {name: one.num_samples for name, one in checked.items()}
    parts = split_samples(data, samples, spec.training.seed)
    sample_bytes = bytes_per_sample(checked[data.dataset].fields)
    shuffle = resolve_shuffle(loader, samples[data.dataset], sample_bytes)
    held_out = tuple(len(part) for part in parts.non_empty[1:])
    saved = sum(checked[part.dataset].saved_bytes(part.all_rows()) for part in parts.non_empty)
    need = Need(sample_bytes, shuffle.group, len(parts.train), held_out, saved)
    residency = choose_residency(loader, need, device_memory(device, host_budget_bytes), rung)
    plan = _training_plan(spec, len(parts.train), rung)
    preparing.will_use(_use(spec, need, residency, device, rung))
    opener = _Opener(checked, residency, device, rung, preparing)
    order = shuffle.order(len(parts.train), spec.training.seed)
    train = opener.open(parts.train, order, plan, residency.chunk_samples)
    validation = opener.open_evaluation(parts.validation, spec)
    test = opener.open_evaluation(parts.test, spec)
    training = checked[data.dataset]
    description = _describe(training, parts, shuffle, need, residency)
    return DataSet(data, (training, parts.train), (train, validation, test), description)


def _use(spec: RunSpec, need: Need, residency: Residency, device: torch.device, rung: Rung) -> Use:
    on_gpu = device.type == "cuda"
    training = _training_plan(spec, need.train_samples, rung)
    held_out = [_evaluation_plan(spec, samples, rung) for samples in need.held_out]
    return Use(
        device="cuda" if on_gpu else "cpu",
        residency=residency.kind,
        data_bytes=residency.needed_bytes,
        sample_bytes=need.slot_sample_bytes,
        parts=1 + len(need.held_out),
        batch=training.largest_micro_batch,
        evaluation_batch=max((plan.largest_micro_batch for plan in held_out), default=0),
        staging_bytes=(rung.staging_bytes or PIECE_BYTES) if on_gpu else 0,
    )


def _training_plan(spec: RunSpec, num_samples: int, rung: Rung) -> BatchPlan:
    training = spec.training
    plan = BatchPlan(num_samples, training.batch_size, training.drop_last, rung.batch)
    if not plan.num_batches:
        raise SpecMismatch(
            f"training.drop_last leaves nothing to train on: the training part has {num_samples:,}"
            f" samples, fewer than one batch of {plan.batch_size:,}. Lower training.batch_size, or"
            " set drop_last to false."
        )
    return plan


def _evaluation_plan(spec: RunSpec, num_samples: int, rung: Rung) -> BatchPlan:
    batch_size = evaluation_batch(spec.evaluation, spec.training)
    return BatchPlan(num_samples, batch_size, drop_last=False, most_at_once=rung.evaluation_batch)


def _describe(
    training: Checked, parts: Parts, shuffle: Shuffle, need: Need, residency: Residency
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
        "series_steps": {name: one.series_steps for name, one in training.windows.items()},
        "train_samples": len(parts.train),
        "validation_samples": len(parts.validation),
        "test_samples": len(parts.test) if parts.test else 0,
        "read_directly": list(training.layout.names),
    }
