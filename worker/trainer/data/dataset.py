"""Opens a run's data: checks it against the spec, splits and orders it, gives batch streams."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from app.planning.arithmetic import evaluation_batch, group_parts
from app.planning.ladder import NO_RUNG, Rung, Use
from app.planning.residency import Need
from app.planning.shuffle import Shuffle, stored_shuffle
from app.spec.data import ChunkedLoader, Data, FieldSplit, GroupSplit
from app.spec.recipe import past_of_target
from app.spec.run import RunSpec
from worker.trainer.data.batch import Batches, BatchPlan, BatchShapes, Bucket
from worker.trainer.data.checked import Checked, check_all, check_field
from worker.trainer.data.counters import Counters
from worker.trainer.data.feed.dataloader import DataLoaderBatches
from worker.trainer.data.feed.opening import (
    ChunkedOpener,
    DataLoaderOpener,
    Opener,
    PartName,
    Plans,
    Warnings,
    batch_source,
)
from worker.trainer.data.feed.residency import choose_residency, device_memory
from worker.trainer.data.feed.rows import piece_bounds, read_rows
from worker.trainer.data.feed.samples import BatchSource, MakeDataset
from worker.trainer.data.feed.transfer import HostDevice, Transfer
from worker.trainer.data.groups import group_buckets
from worker.trainer.data.labels import judge_labels
from worker.trainer.data.lanes import LaneBreaks, lane_breaks
from worker.trainer.data.order import ORDER_VERSION, Order
from worker.trainer.data.source import (
    Arrays,
    Field,
    Rows,
    Source,
    arrays_of,
    bytes_per_sample,
    fields_of,
)
from worker.trainer.data.split import Part, Parts, parts_by_number, split_samples
from worker.trainer.data.statistics import Moments, array_statistics, field_statistics
from worker.trainer.data.training_data import TrainingData
from worker.trainer.errors import SpecMismatch
from worker.trainer.report.preparing import Preparing

# Samples that stand for the training part, where reading all would take too long: how many, their
# bytes on the host, and from how many places of the part they come.
MOST_SAMPLES, MOST_BYTES, STRETCHES = 100_000, 64 * 2**20, 16


class DataSet:
    """A run's data: three batch streams (validation and test may be None) and what describes them.
    That of the validation part has only the batches that `evaluation.max_batches` leaves.

    `fields` are those of the spec's inputs and targets, by name.
    """

    def __init__(
        self,
        data: Data,
        checked: Mapping[str, Checked],
        part: Part,
        streams: tuple[Batches, Batches | None, Batches | None],
        description: Mapping[str, Any],
        warnings: Warnings,
        samples: BatchSource,
        breaks: LaneBreaks | None = None,
        *,
        is_cut: bool = False,
    ) -> None:
        """`checked`: as `check_all` gives them. `part`: the training part. `warnings`: codes and
        sentences of what is not as it was asked for. `samples`: those of the dataset that is
        trained on, one by one. `breaks`: of what is carried in lanes.
        """
        self.train, self.validation, self.test = streams
        self._every, self._part = checked, part
        self._checked = checked[data.dataset]
        self.fields = dict(self._checked.fields)
        for name in (one for one in data.inputs if one in self.fields):
            feature = self._checked.stored.target_feature(name)
            self.fields[name] = replace(self.fields[name], target_feature=feature)
        self._samples, self._breaks = samples, breaks
        self._data = data
        self._description = description
        self.warnings = warnings
        self.is_cut = is_cut
        """True if `evaluation.max_batches` leaves a part of the validation samples out."""

    @property
    def pids(self) -> list[int]:
        """Of the processes that read for it now."""
        return [
            pid
            for each in self._streams()
            if isinstance(each, DataLoaderBatches)
            for pid in each.pids
        ]

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
        rows, found = self._part.all_rows(), dict[str, Moments]()
        fields: dict[str, Field] = {}  # whose samples are read together
        with closing(self._checked.open_some(names)) as source:
            for name in names:
                layout, pooled = self._checked.layouts[name], name in self._data.targets
                pieces = layout.pieces_to_sum(source, rows, pooled=pooled)
                if pieces is None:
                    fields[name] = source.fields[name]
                else:
                    found[name] = array_statistics(name, _each(pieces, preparing), pooled=pooled)
            if fields:
                samples = _each(_pieces(source, fields, rows), preparing)
                found |= field_statistics(samples, self._data.targets)
        return found

    def spaced_samples(self) -> tuple[dict[str, torch.Tensor], int]:
        """Returns samples of the training part on the host, in the file's order, and their number:
        at most `MOST_SAMPLES` and `MOST_BYTES`, in `STRETCHES` of neighbours, which are read as few
        pieces.
        """
        rows = self._part.all_rows()
        most = min(MOST_SAMPLES, max(1, MOST_BYTES // max(1, bytes_per_sample(self.fields))))
        each = most // STRETCHES
        if each and STRETCHES * each < len(rows):
            begins = np.linspace(0, len(rows) - each, STRETCHES).astype(np.int64)
            rows = rows[np.unique(begins[:, None] + np.arange(each))]
        else:
            rows = rows[:most]
        with closing(self._samples) as samples:
            return samples.batch(rows), len(rows)

    def first_samples(self, most: int) -> dict[str, torch.Tensor]:
        """The first so many of the training part in the file's order, on the host."""
        with closing(self._samples) as samples:
            return samples.batch(self._part.all_rows()[:most])

    def small_batches(
        self, size: int, bucket: Bucket, count: int
    ) -> Iterator[dict[str, torch.Tensor]]:
        """Batches of that shape on the host, of the smallest samples of the training part, in
        memory of their own: the smallest half of them twice, the smallest third thrice, …
        """
        layouts = self._checked.layouts.values()
        every = self._part.all_rows()
        rows = sum(rows for one in layouts for rows in one.rows_in_batch(every).values())
        small = np.sort(np.argsort(rows, kind="stable")[:size])
        ascending, by_size = every[small], np.argsort(np.asarray(rows)[small], kind="stable")
        transfer = Transfer(layouts, HostDevice())
        slot = transfer.slot_of(ascending, size)
        with closing(self._checked.open()) as source:
            for _ in transfer.load(source, ascending, slot):
                pass
        for number in range(count):
            transfer.arrange(slot, by_size[np.arange(size) // (number + 1)])
            memory = transfer.new_batch(size, BatchShapes({size: (bucket,)}))
            memory.add(slot, 0, size)
            yield memory.batch()

    def past_of_target(self) -> tuple[str, int, float | None] | None:
        """Returns the input that holds the target's own past, with the last step at its end, which
        of its features that is, and the seconds of a step; None if the file does not say so.
        """
        found = past_of_target(self._data, arrays_of(self.fields))
        return None if found is None else (*found, self._checked.stored.step_seconds(found[0]))

    def past_features(self) -> Mapping[int, int]:
        """Returns the features of the first input, a panel, that are the target's own past: the
        index of each by the number of dates that it looks back over. Empty if no file says so.
        """
        return self._checked.stored.past_features(self._data.inputs[0])

    def for_recipe(self, preparing: Preparing) -> TrainingData:
        """What a recipe may read of it before the training."""
        return TrainingData(tuple(self._every.values()), self._part, preparing)

    def lane_breaks_at(self, position: int) -> torch.Tensor | None:
        """Bool (batch,) on the device: in which places of the training's next batch another series
        begins. None where nothing is carried, or all go on.
        """
        return self._breaks.at(position) if self._breaks else None

    def describe(self) -> dict[str, Any]:
        """What was chosen and why, as JSON for applied.json."""
        return dict(self._description)

    def close(self) -> None:
        """Join every reader and give the memory back."""
        for stream in self._streams():
            stream.close()

    def _streams(self) -> list[Batches]:
        return [stream for stream in (self.train, self.validation, self.test) if stream]


Piece = TypeVar("Piece")


def _each(pieces: Iterator[Piece], preparing: Preparing) -> Iterator[Piece]:
    """The same, after each of which a stop may end it."""
    for piece in pieces:
        yield piece
        preparing.piece_done()


def _pieces(source: Source, fields: Mapping[str, Field], rows: Rows) -> Iterator[Arrays]:
    """These rows, in pieces; a piece's arrays are overwritten by the next."""
    buffers: Arrays = {}
    for start, stop in piece_bounds(fields, len(rows)):
        if not buffers:
            buffers = {n: np.empty((stop, *f.shape), f.dtype) for n, f in fields.items()}
        piece = {name: array[: stop - start] for name, array in buffers.items()}
        read_rows(source, rows[start:stop], piece)
        yield piece


def open_data(
    spec: RunSpec,
    datasets: Mapping[str, Mapping[str, Any]],
    device: torch.device,
    preparing: Preparing,
    host_budget_bytes: int | None = None,
    rung: Rung = NO_RUNG,
    beside_bytes: int | None = None,
    make_dataset: MakeDataset | None = None,
) -> DataSet:
    """Open the datasets of spec.json (name → path, fingerprint, …) for `spec` on `device`.

    `host_budget_bytes`: host memory that data may take on a CPU device; None: half of what is
    available. `rung`: how much data and how many samples at once, where the spec's were too much.
    `beside_bytes`: what the memory plan has beside the data. `make_dataset`: `Task.dataset`, for a
    recipe that declares what it gives.
    Raises DataError, DatasetChanged, SpecMismatch, StopRequested.
    """
    data, seed = spec.data, spec.training.seed
    checked = check_all(data, datasets)
    training = checked[data.dataset]
    samples = {name: one.num_samples for name, one in checked.items()}
    whole = split_samples(data, samples, _part_numbers(data, datasets, preparing))
    batch = evaluation_batch(spec.evaluation, spec.training)
    parts = replace(whole, validation=whole.validation.spaced(batch, spec.evaluation.max_batches))
    shuffle = stored_shuffle(data.loader, training.num_samples, training.kept_bytes)
    need = _need(checked, training, parts, shuffle)
    plans = _plans(spec, parts, rung)
    made = spec.recipe.dataset_arrays(data, arrays_of(training.fields))
    fields, make = (training.fields, None) if made is None else (fields_of(made), make_dataset)
    has_labels = made is None and "class_weights" in spec.recipe.takes_weights
    judged = judge_labels(spec, checked, parts, preparing) if has_labels else []
    opener: Opener
    if isinstance(data.loader, ChunkedLoader):
        memory = device_memory(device, host_budget_bytes, beside_bytes)
        residency = choose_residency(data.loader, need, memory, rung)
        epochs = spec.training.epochs
        opener = ChunkedOpener(
            checked, data.loader, need, residency, device, rung, preparing, epochs
        )
    else:
        opener = DataLoaderOpener(checked, data.loader, plans, device, rung, fields, make)
    filling = max(0, bytes_per_sample(fields) - need.sample_bytes)
    preparing.will_use(opener.use(_use(need, filling, plans, device, spec, rung)))
    lanes = plans["train"].batch_size
    order = Order(len(parts.train), seed, shuffle.kind, shuffle.group, shuffle.block, lanes)
    train = opener.open("train", parts.train, order, plans["train"])
    validation = _held_out(opener, "validation", parts.validation, plans, seed)
    test = _held_out(opener, "test", parts.test, plans, seed)
    description = opener.describe() | _describe(training, whole, shuffle, need)
    streams, read = (train, validation, test), batch_source(training, fields, make)
    if (breaks := _lane_breaks(spec, training, parts.train, order, device)) is not None:
        description["lane_breaks"] = int(breaks.marks.sum())
    warnings = opener.warnings() + judged
    is_cut = parts.validation is not whole.validation
    return DataSet(
        data, checked, parts.train, streams, description, warnings, read, breaks, is_cut=is_cut
    )


def _lane_breaks(
    spec: RunSpec, training: Checked, part: Part, order: Order, device: torch.device
) -> LaneBreaks | None:
    carried = spec.recipe.carried_inputs(spec.data)
    if order.shuffle != "lanes" or not carried:
        return None
    return lane_breaks(order, part, spec.training.batch_size, training.breaks(carried), device)


def _need(
    checked: Mapping[str, Checked], training: Checked, parts: Parts, shuffle: Shuffle
) -> Need:
    held_out = tuple(len(part) for part in parts.non_empty[1:])
    saved = sum(checked[part.dataset].saved_bytes(part.all_rows()) for part in parts.non_empty)
    spare = sum(one.spare_bytes for one in training.layouts.values())
    return Need(training.kept_bytes, shuffle.group, len(parts.train), held_out, saved, spare)


def _part_numbers(
    data: Data, datasets: Mapping[str, Mapping[str, Any]], preparing: Preparing
) -> NDArray[np.int8] | None:
    """Which part each sample belongs to, where a field says it."""
    if isinstance(data.split, GroupSplit):
        path, part_of = Path(datasets[data.dataset]["path"]), np.array(group_parts(data.split))
        pieces = _each(group_buckets(path, data.split.field), preparing)
        return np.concatenate([part_of[piece] for piece in pieces]).astype(np.int8)
    if not isinstance(data.split, FieldSplit):
        return None
    name = data.split.field
    checked = check_field(data, datasets, name)
    numbers = np.empty(checked.num_samples, np.int8)
    begin = 0
    with closing(checked.open()) as source:
        for piece in _each(_pieces(source, source.fields, np.arange(len(numbers))), preparing):
            values = piece[name]
            numbers[begin : begin + len(values)] = parts_by_number(name, begin, values)
            begin += len(values)
    return numbers


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


def _use(
    need: Need, filling: int, plans: Plans, device: torch.device, spec: RunSpec, rung: Rung
) -> Use:
    """Of what every loader has; nothing of its own yet."""
    recomputes = spec.runtime.activation_checkpointing or rung.activation_checkpointing
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
        whole_batches=spec.recipe.carries_state,
        recomputable=spec.recipe.has_blocks and not recomputes,
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
        "longest": training.facts("longest"),
        "series_steps": training.facts("series_steps"),
        "train_samples": len(parts.train),
        "validation_samples": len(parts.validation),
        "test_samples": len(parts.test) if parts.test else 0,
        "read_directly": list(training.stored.read_directly),
    }
