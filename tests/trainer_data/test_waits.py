"""What a wait for a batch is put down to: reading, a copy, or a device that has enough to do.

The device is made up at its outermost edge, its events; no GPU is needed.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

from tests.trainer_data.factories import opener, transfer_of, write_arrays
from tests.trainer_data.test_reader import PART, GatedSource
from worker.trainer.data.batch import BatchPlan
from worker.trainer.data.counters import Counters
from worker.trainer.data.feed.cuda import CudaBatches, CudaDevice
from worker.trainer.data.feed.reader import POLL_SECONDS, ChunkPlan
from worker.trainer.data.feed.stream import Streamed
from worker.trainer.data.feed.transfer import HostDevice
from worker.trainer.data.order import Order
from worker.trainer.report.phases import PARTS, PhaseClock

POLLS = 50
CPU = torch.device("cpu")


class BusyDevice(HostDevice):
    """For so many polls the device has work, for as many a copy is missing, then the file is; the
    gate of the source is opened when it has been looked at so often once more.
    """

    gate: threading.Event

    def why_waiting(self) -> Any:
        told: Iterator[Any] = iter(["sync"] * POLLS + ["h2d"] * POLLS + [None] * POLLS)

        def why() -> Any:
            try:
                return next(told)
            except StopIteration:
                self.gate.set()
                return None

        return why


def test_each_part_of_a_wait_counts_for_its_cause_and_all_make_up_the_time(tmp_path: Any) -> None:
    path = tmp_path / "numbers.h5"
    write_arrays(path)
    source, device = GatedSource(path, 3), BusyDevice()
    device.gate, transfer = source.gate, transfer_of(path, device)
    chunks = ChunkPlan(lambda: source, PART, Order(100, 0, "none"), 10, 10)
    stream = Streamed(BatchPlan(100, 5, drop_last=False), chunks, transfer)
    began, clock = time.perf_counter(), PhaseClock()
    for _ in clock.waiting(stream.iterate(0), stream.counters.held_up):
        pass
    seconds, elapsed = clock.read(), time.perf_counter() - began
    stream.close()
    assert seconds.keys() == set(PARTS)
    assert sum(seconds.values()) == pytest.approx(elapsed, rel=0.02)
    for part in ("sync", "h2d", "data_wait"):
        assert seconds[part] >= POLLS * POLL_SECONDS
    assert stream.counters.held_up == {}


def test_a_host_is_never_asked_what_its_device_does(tmp_path: Any) -> None:
    path = tmp_path / "numbers.h5"
    write_arrays(path)
    chunks = ChunkPlan(opener(path), PART, Order(100, 0, "none"), 10, 10)
    transfer = transfer_of(path)
    stream = Streamed(BatchPlan(100, 5, drop_last=False), chunks, transfer)
    assert len(list(stream.iterate(0))) == 20
    stream.close()
    assert stream.counters.held_up == {}


class FakeEvent:
    """Of a device that is done when it is waited for, its copy of 20 ms among the rest."""

    done: ClassVar[bool] = False

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, _stream: Any) -> None:
        FakeEvent.done = False

    def query(self) -> bool:
        return FakeEvent.done

    def synchronize(self) -> None:
        time.sleep(0.05)
        FakeEvent.done = True

    def elapsed_time(self, _: Any) -> float:
        return 20.0


@pytest.fixture
def _made_up_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)


@pytest.mark.usefixtures("_made_up_device")
def test_a_batch_that_waits_for_the_device_counts_for_it_but_for_its_copy() -> None:
    counters, to_device = Counters(), CudaBatches(CPU, pinned=False)
    arrays = {"features": torch.ones(5, 3)}
    assert to_device.bring(arrays, counters).keys() == arrays.keys()
    assert counters.held_up["h2d"] == pytest.approx(0.02) == to_device.copy_seconds
    assert counters.held_up["sync"] >= 0.03


@pytest.mark.usefixtures("_made_up_device")
def test_a_batch_in_page_locked_memory_waits_for_nothing() -> None:
    """What its copy took is known when it is over."""
    counters, to_device = Counters(), CudaBatches(CPU, pinned=True)
    to_device.bring({"features": torch.ones(5, 3)}, counters)
    assert (counters.held_up, to_device.copy_seconds) == ({}, 0.0)
    FakeEvent.done = True
    to_device.close()
    assert to_device.copy_seconds == pytest.approx(0.02)


@pytest.mark.usefixtures("_made_up_device")
def test_a_stream_is_held_up_by_the_device_until_that_has_done_what_it_was_given(
    tmp_path: Any,
) -> None:
    path = tmp_path / "numbers.h5"
    write_arrays(path)
    why = CudaDevice(CPU).why_waiting()
    assert why() == "sync"
    FakeEvent.done = True
    assert why() is None
