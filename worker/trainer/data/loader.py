"""Opens a run's data: checks it against the spec, splits and orders it, gives batch streams."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.planning.arithmetic import evaluation_batch
from app.planning.ladder import NO_RUNG, Rung, Use
from app.planning.residency import PIECE_BYTES, Need
from app.spec.data import ChunkedLoader, Data
from app.spec.run import RunSpec
from worker.trainer.data.batch import Batches, BatchPlan
from worker.trainer.data.checked import Checked, check_all
from worker.trainer.data.counters import Counters
from worker.trainer.data.dataloader import Loaded
from worker.trainer.data.group_source import as_groups
from worker.trainer.data.opening import (
    ChunkedOpener,
    LoadedOpener,
    Opener,
    PartName,
    Plans,
    Warnings,
)
from worker.trainer.data.order import ORDER_VERSION, Order
from worker.trainer.data.ragged import one_behind_another
from worker.trainer.data.read_queue import why_one_by_one
from worker.trainer.data.residency import choose_residency, device_memory
from worker.trainer.data.rows import read_rows
from worker.trainer.data.shuffle import Shuffle, resolve_shuffle
from worker.trainer.data.source import Arrays, Rows, Source, bytes_per_sample
from worker.trainer.data.split import Part, Parts, split_samples
from worker.trainer.data.statistics import Moments, field_statistics, series_statistics
from worker.trainer.data.transfer import empty_arrays, piece_bounds
from worker.trainer.errors import DataError, SpecMismatch
from worker.trainer.preparing import Preparing


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
        warnings: Warnings,
    ) -> None:
        """`warnings`: codes and sentences of what is not as it was asked for."""
        self.train, self.validation, self.test = streams
        self._checked, self._part = training
        self.fields = self._checked.fields
        self._targets = data.targets
        self._description = description
        self.warnings = warnings

    @property
    def pids(self) -> list[int]:
        """Of the processes that read for it now."""
        return [pid for each in self._streams() if isinstance(each, Loaded) for pid in each.pids]

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
        windows, ragged = self._checked.groups.windows, self._checked.groups.ragged
        series = [
            n for n in names if n in windows and (n in self._targets or windows[n].step.shape)
        ]
        others = [name for name in names if name not in (*series, *ragged)]
        found = field_statistics(self._training_pieces(others, preparing), self._targets)
        for name in series:
            pieces = self._series_pieces(name, preparing)
            found[name] = series_statistics(name, pieces, pooled=name in self._targets)
        for name in names:
            if name in ragged:
                found |= field_statistics(self._values_pieces(name, preparing), self._targets)
        return found

    def first_samples(self, most: int) -> dict[str, torch.Tensor]:
        """The first so many of the training part in the file's order, on the host."""
        rows = self._part.all_rows()[:most]
        found = empty_arrays(self.fields, len(rows), "cpu", pin_memory=False)
        with closing(self._checked.open()) as source:
            read_rows(source, rows, {name: array.numpy() for name, array in found.items()})
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

    def _values_pieces(self, name: str, preparing: Preparing) -> Iterator[Arrays]:
        """The values of the training part's samples, whatever sample they are of."""
        ragged, rows = self._checked.groups.ragged[name], self._part.all_rows()
        most = max(1, PIECE_BYTES // ragged.value.sample_bytes)
        buffer = np.empty((0, *ragged.value.shape), ragged.value.dtype)
        with closing(self._checked.open_fields([name])) as source:
            for places, extents in one_behind_another(ragged, rows, most):
                count = places.stop - places.start
                if not len(buffer):
                    buffer = np.empty((count, *ragged.value.shape), ragged.value.dtype)
                as_groups(source).read_values(name, extents, buffer[:count])
                yield {name: buffer[:count]}
                preparing.piece_done()
        if not len(buffer):
            raise DataError(
                f"The training part of {name!r} has samples without a value alone, so there is no"
                " mean to standardize by. Set data.standardize to false for it, or train on others."
            )

    def _series_pieces(
        self, name: str, preparing: Preparing
    ) -> Iterator[tuple[NDArray[Any], Rows]]:
        """Steps of the series of the training part's windows, and how many hold each."""
        times = self._checked.groups.windows[name].times(self._part.all_rows())
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
    beside_bytes: int | None = None,
) -> DataSet:
    """Open the datasets of spec.json (name → path, fingerprint, …) for `spec` on `device`.

    `host_budget_bytes`: host memory that data may take on a CPU device; None: half of what is
    available. `rung`: how much data and how many samples at once, where the spec's were too much.
    `beside_bytes`: what the memory plan has beside the data.
    Raises DataError, DatasetChanged, SpecMismatch, StopRequested.
    """
    data, seed = spec.data, spec.training.seed
    checked = check_all(data, datasets)
    training = checked[data.dataset]
    parts = split_samples(data, {n: one.num_samples for n, one in checked.items()}, seed)
    sample_bytes = training.kept_bytes
    shuffle = resolve_shuffle(data.loader, training.num_samples, sample_bytes)
    held_out = tuple(len(part) for part in parts.non_empty[1:])
    saved = sum(checked[part.dataset].saved_bytes(part.all_rows()) for part in parts.non_empty)
    longest = sum(one.field.sample_bytes for one in training.groups.ragged.values())
    need = Need(sample_bytes, shuffle.group, len(parts.train), held_out, saved, longest)
    plans = _plans(spec, parts, rung)
    opener: Opener
    if isinstance(data.loader, ChunkedLoader):
        memory = device_memory(device, host_budget_bytes, beside_bytes)
        residency = choose_residency(data.loader, need, memory, rung)
        epochs = spec.training.epochs
        opener = ChunkedOpener(checked, need, residency, device, rung, preparing, epochs)
    else:
        opener = LoadedOpener(checked, data.loader, plans, device, rung)
    filling = max(0, bytes_per_sample(training.fields) - sample_bytes)
    preparing.will_use(opener.use(_use(need, filling, plans, device)))
    train = opener.open("train", parts.train, shuffle.order(len(parts.train), seed), plans["train"])
    validation = _held_out(opener, "validation", parts.validation, plans, seed)
    test = _held_out(opener, "test", parts.test, plans, seed)
    description = opener.describe() | _describe(training, parts, shuffle, need)
    streams = train, validation, test
    return DataSet(data, (training, parts.train), streams, description, opener.warnings())


def _held_out(
    opener: Opener, name: PartName, part: Part | None, plans: Plans, seed: int
) -> Batches | None:
    """In the order of the file, every sample once; None for an empty part."""
    return opener.open(name, part, Order(len(part), seed, "none"), plans[name]) if part else None


def _plans(spec: RunSpec, parts: Parts, rung: Rung) -> Plans:
    """Of the parts that have samples."""
    training, batch = spec.training, evaluation_batch(spec.evaluation, spec.training)
    plans: Plans = {
        "train": BatchPlan(len(parts.train), training.batch_size, training.drop_last, rung.batch)
    }
    if not plans["train"].num_batches:
        raise SpecMismatch(
            "training.drop_last leaves nothing to train on: the training part has"
            f" {len(parts.train):,} samples, fewer than one batch of {training.batch_size:,}. Lower"
            " training.batch_size, or set drop_last to false."
        )
    if parts.validation:
        plans["validation"] = BatchPlan(len(parts.validation), batch, False, rung.evaluation_batch)
    if parts.test:
        plans["test"] = BatchPlan(len(parts.test), batch, False, rung.evaluation_batch)
    return plans


def _use(need: Need, filling: int, plans: Plans, device: torch.device) -> Use:
    """Of what every loader has; nothing of its own yet."""
    held_out = [plan.largest_micro_batch for name, plan in plans.items() if name != "train"]
    return Use(
        device="cuda" if device.type == "cuda" else "cpu",
        residency="batches",
        data_bytes=0,
        sample_bytes=need.slot_sample_bytes,
        parts=len(plans),
        batch=plans["train"].largest_micro_batch,
        evaluation_batch=max(held_out, default=0),
        staging_bytes=0,
        filling_bytes=filling,
    )


def _describe(training: Checked, parts: Parts, shuffle: Shuffle, need: Need) -> dict[str, Any]:
    in_blocks = shuffle.kind == "block"
    return {
        "shuffle": shuffle.kind,
        "shuffle_group": shuffle.group if in_blocks else None,
        "shuffle_block": shuffle.block if in_blocks else None,
        "order_version": ORDER_VERSION,
        "sample_bytes": need.sample_bytes,
        "data_bytes": need.data_bytes,
        "longest": {name: one.field.longest for name, one in training.groups.ragged.items()},
        "series_steps": {name: one.series_steps for name, one in training.groups.windows.items()},
        "train_samples": len(parts.train),
        "validation_samples": len(parts.validation),
        "test_samples": len(parts.test) if parts.test else 0,
        "read_directly": list(training.stored.read_directly),
        "read_one_by_one_because": why_one_by_one(),
    }
