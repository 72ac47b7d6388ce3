"""Files, specs and streams for the data plane's tests."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import torch

from app.planning.worker_pool import worker_pool_for
from app.spec.data import DataLoaderLoader
from app.spec.run import RunSpec
from worker.reporting import Pulse
from worker.trainer.data.batch import Batch, BatchPlan
from worker.trainer.data.checked import check_all
from worker.trainer.data.dataset import DataSet, open_data
from worker.trainer.data.feed.dataloader import BatchRows, DataLoaderBatches, OnHost
from worker.trainer.data.feed.reader import ChunkPlan
from worker.trainer.data.feed.resident import Resident
from worker.trainer.data.feed.samples import Batched, Samples
from worker.trainer.data.feed.stream import Streamed
from worker.trainer.data.feed.transfer import Device, HostDevice, Transfer
from worker.trainer.data.fingerprint import fingerprint
from worker.trainer.data.formats.hdf5 import Hdf5Source
from worker.trainer.data.layouts.plain import PlainLayout
from worker.trainer.data.order import Order
from worker.trainer.data.sample_source import SampleSource
from worker.trainer.data.source import OpenSource
from worker.trainer.data.split import Part
from worker.trainer.report.preparing import Preparing
from worker.trainer.stop import StopFlag

NAMES = ("features", "targets")


def children() -> set[psutil.Process]:
    """Of this process, but for Python's own that cleans up after others, which stays."""
    each = psutil.Process().children()
    return {one for one in each if not any("resource_tracker" in word for word in one.cmdline())}


def write_arrays(path: Path, samples: int = 100, **storage: Any) -> Path:
    """Row r has r as the first number of its features, and -r as its targets."""
    row = np.arange(samples, dtype=np.float32)
    features = np.random.default_rng(7).normal(size=(samples, 6, 3)).astype(np.float32)
    features[:, 0, 0] = row
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=features, **storage)
        file.create_dataset("targets", data=-row[:, None] * np.ones(4, np.float32), **storage)
    return path


def entry(path: Path) -> dict[str, Any]:
    """A dataset as spec.json has it."""
    return {"path": str(path), "fingerprint": fingerprint(path)}


def make_spec(data: dict[str, Any] | None = None, **parts: Any) -> RunSpec:
    document = {"recipe": {"kind": "sequence"}, "data": {"dataset": "numbers", **(data or {})}}
    return RunSpec.model_validate_json(json.dumps(document | parts))


def open_parts(
    name: str, path: Path, loader: dict[str, Any], batch_size: int = 16, **data: Any
) -> DataSet:
    """The file's array `name`, of which a tenth tests and a fifth validates."""
    split = {"method": "chronological", "validation_fraction": 0.2, "test_fraction": 0.1}
    spec = make_spec(
        {"inputs": [name], "loader": loader, "split": split} | data,
        training={"batch_size": batch_size},
    )
    found = {"numbers": entry(path)}
    return open_data(spec, found, torch.device("cpu"), preparing(path.parent), 2**30)


def rows_of(batches) -> list[int]:
    """The rows of the file that the batches hold, in order; checks that fields belong together."""
    rows: list[int] = []
    for batch in batches:
        features, targets = batch.arrays["features"], batch.arrays["targets"]
        assert len(features) == len(targets) == batch.size
        assert (features[:, 0, 0] == -targets[:, 0]).all()
        rows += features[:, 0, 0].int().tolist()
    return rows


def kept(batches: Iterable[Batch]) -> list[Batch]:
    """Batches in memory of their own, since that of one is used again for the next."""
    return [
        replace(batch, arrays={name: array.clone() for name, array in batch.arrays.items()})
        for batch in batches
    ]


def opener(path: Path) -> OpenSource:
    return partial(Hdf5Source, path, NAMES)


def fields_of(path: Path):
    source = Hdf5Source(path, NAMES)
    source.close()
    return source.fields


def samples_in(path: Path, **arrays: Any) -> SampleSource:
    """What a run reads of a file, if it names no other `inputs` and `targets`."""
    return check_all(make_spec(arrays).data, {"numbers": entry(path)})["numbers"].open()


def transfer_of(path: Path, device: Device | None = None) -> Transfer:
    """Of both arrays of the file; to the host, if to no other device."""
    layouts = [PlainLayout(name, field, 0) for name, field in fields_of(path).items()]
    return Transfer(layouts, device or HostDevice())


def preparing(folder: Path) -> Preparing:
    """That nobody stops; its pulse lies in the folder."""
    return Preparing(Pulse(folder / "pulse"), StopFlag())


def resident(
    path: Path, part: Part, order: Order, batch_size=8, drop_last=False, most_at_once=None
) -> Resident:
    plan = BatchPlan(len(part), batch_size, drop_last, most_at_once)
    return Resident(plan, order, part, opener(path), transfer_of(path), preparing(path.parent))


def streamed(
    path: Path, part: Part, order: Order, batch_size=8, drop_last=False, most_at_once=None,
    chunk_samples=16, first_samples=None, epochs=1,
) -> Streamed:  # fmt: skip
    plan, first = BatchPlan(len(part), batch_size, drop_last, most_at_once), first_samples
    chunks = ChunkPlan(opener(path), part, order, chunk_samples, first or chunk_samples, epochs)
    return Streamed(plan, chunks, transfer_of(path))


def loaded(
    path: Path,
    part: Part,
    order: Order,
    batch_size: int = 8,
    drop_last: bool = False,
    most_at_once: int | None = None,
    open_source: OpenSource | None = None,
    **settings: Any,
) -> DataLoaderBatches:
    """By the PyTorch loader, with as many processes as are asked for."""
    asked = DataLoaderLoader(kind="dataloader", **settings)
    plan = BatchPlan(len(part), batch_size, drop_last, most_at_once)
    pool = worker_pool_for(asked, 64, plan.epoch_micro_batches)
    rows = Batched(Samples(open_source or opener(path), len(part)))
    return DataLoaderBatches(plan, BatchRows(plan, order, part), rows, OnHost(), pool, asked)
