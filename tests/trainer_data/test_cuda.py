"""On a GPU: the same batches as on the host, with copies beside the computation."""

from dataclasses import replace

import pytest
import torch

from app.planning.ladder import NO_RUNG, Rung
from tests.trainer_data.factories import (
    entry,
    kept,
    make_spec,
    opener,
    rows_of,
    streamed,
    transfer_of,
    write_arrays,
)
from tests.trainer_data.test_ragged_batches import (
    KINDS,
    RESIDENT,
    STREAM,
    many,
    rows_checked,
    samples_of,
    write,
)
from worker.trainer.data.batch import BatchPlan
from worker.trainer.data.dataset import open_data
from worker.trainer.data.feed.cuda import CudaDevice
from worker.trainer.data.feed.reader import ChunkPlan
from worker.trainer.data.feed.resident import Resident
from worker.trainer.data.feed.stream import Streamed
from worker.trainer.data.order import Order
from worker.trainer.data.split import Part

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("rung", [NO_RUNG, Rung(1, staging_bytes=8_000)])
@pytest.mark.parametrize("residency", ["resident", "stream"])
def test_batches_are_those_of_the_host(tmp_path, unstopped, residency, rung):
    datasets = {"numbers": entry(write_arrays(tmp_path / "numbers.h5", samples=5_000))}
    loader = {"kind": "chunked", "residency": residency, "chunk_size": "64KiB"}
    spec = make_spec({"loader": loader | {"shuffle": "block", "shuffle_group": 512}})
    seen = []
    for device in ("cpu", "cuda:0"):
        data = open_data(spec, datasets, torch.device(device), unstopped, rung=rung)
        parts = [part for part in (data.train, data.validation) if part]
        seen.append([rows_of(part.iterate(1)) for part in parts])
        assert (data.counters.copy_seconds is None) is (device == "cpu")
        data.close()
    assert seen[0] == seen[1]


BY_TORCH = {"kind": "dataloader", "pin_memory": True}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("loader", "staging"),
    [(RESIDENT, None), (RESIDENT, 8_000), (STREAM, None), (STREAM, 8_000), (BY_TORCH, None)],
)
def test_ragged_batches_are_those_of_the_host(tmp_path, unstopped, loader, kind, staging):
    samples = samples_of(many(3_000, longest=40), kind)
    datasets = {"numbers": entry(write(tmp_path / "a.h5", samples))}
    rung = Rung(1, staging_bytes=staging) if staging else NO_RUNG
    busy, seen = torch.randn(1_000, 1_000, device="cuda:0"), []
    for device, way in (("cpu", RESIDENT), ("cuda:0", loader)):
        spec = make_spec({"inputs": ["atoms"], "loader": {**way, "shuffle": "full"}})
        data = open_data(spec, datasets, torch.device(device), unstopped, rung=rung)
        for epoch in range(2):
            batches = []
            for batch in data.train.iterate(epoch):
                busy = (busy @ busy).tanh()
                batches += kept([batch])
            on_host = [
                replace(one, arrays={name: array.cpu() for name, array in one.arrays.items()})
                for one in batches
            ]
            seen.append(rows_checked(on_host, samples))
        data.close()
    assert seen[:2] == seen[2:]


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_of_the_pytorch_loader_are_those_of_the_host(tmp_path, unstopped, pinned):
    """While slow kernels read them, and its processes fill the slots that they came from."""
    datasets = {"numbers": entry(write_arrays(tmp_path / "numbers.h5", samples=4_000))}
    processes = {"num_workers": 2, "multiprocessing_context": "forkserver"}
    seen = []
    busy = torch.randn(2_000, 2_000, device="cuda:0")
    for device, loader in (
        ("cpu", {"kind": "chunked", "shuffle": "full"}),
        ("cuda:0", {"kind": "dataloader", "pin_memory": pinned, **processes}),
    ):
        data = open_data(make_spec({"loader": loader}), datasets, torch.device(device), unstopped)
        batches = []
        for batch in data.train.iterate(1):
            for _ in range(4):
                busy = (busy @ busy).tanh()
            batches += kept([batch])
        seen.append(rows_of(batches))
        assert (data.counters.copy_seconds is None) is (device == "cpu")
        data.close()
    assert seen[0] == seen[1]


def test_a_slot_is_not_overwritten_while_slow_kernels_read_it(tmp_path):
    """Each batch is followed by work that keeps the device busy while the reader is ahead."""
    path = write_arrays(tmp_path / "numbers.h5", samples=4_000)
    part, device = Part("numbers", range(4_000)), torch.device("cuda:0")
    order = Order(4_000, 0, "full")
    chunks = ChunkPlan(opener(path), part, order, 50, 50)
    plan = BatchPlan(4_000, 25, drop_last=False)
    batches = Streamed(plan, chunks, transfer_of(path, CudaDevice(device)))
    busy = torch.randn(2_000, 2_000, device=device)
    seen = []
    for batch in batches.iterate(0):
        for _ in range(4):
            busy = (busy @ busy).tanh()
        seen += kept([batch])  # copied by the device when it comes to it
    batches.close()
    reference = streamed(path, part, order, 25, chunk_samples=50)
    assert rows_of(seen) == rows_of(reference.iterate(0))
    reference.close()


def test_the_next_epochs_order_is_set_without_waiting_for_the_device(tmp_path, unstopped):
    path = write_arrays(tmp_path / "numbers.h5", samples=4_000)
    part, device = Part("numbers", range(4_000)), torch.device("cuda:0")
    plan = BatchPlan(4_000, 500, drop_last=False)
    order = Order(4_000, 0, "full")
    transfer = transfer_of(path, CudaDevice(device))
    resident = Resident(plan, order, part, opener(path), transfer, unstopped)
    next(resident.iterate(0))
    busy = torch.randn(4_000, 4_000, device=device)
    torch.cuda.synchronize()
    for _ in range(200):
        busy = (busy @ busy).tanh()
    done = torch.cuda.Event()
    done.record()
    seen = kept(resident.iterate(1))
    assert not done.query()
    assert rows_of(seen) == order.rows(1, 0, 4_000).tolist()
    resident.close()
