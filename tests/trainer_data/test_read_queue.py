"""Many reads by one call of the system: what they bring, and what is left to be read one by one."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer_data.factories import entry, make_spec, preparing, write_arrays
from worker.trainer.data import read_queue
from worker.trainer.data.loader import open_data
from worker.trainer.data.parts import Parts
from worker.trainer.data.read_queue import (
    MOST_AT_ONCE,
    Memories,
    ReadQueue,
    read_together,
    why_one_by_one,
)

ROW, ROWS = 1_000, 1_000
APART = 40 * ROW  # too far to read on


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file: Path = tmp_path_factory.mktemp("queue") / "rows"
    file.write_bytes(np.random.default_rng(3).bytes(ROWS * APART))
    return file


@pytest.fixture
def file(path: Path) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY)
    yield number
    os.close(number)


def scattered(count: int = ROWS) -> tuple[Parts, np.ndarray]:
    """Rows far from each other, to places in another order."""
    out = np.zeros((count, ROW), np.uint8)
    each = np.arange(count)
    parts = Parts(
        out.reshape(-1).data, each * APART, each[::-1] * ROW, np.full(count, ROW, np.int64)
    )
    return parts, out


def wanted(path: Path, count: int = ROWS) -> np.ndarray:
    whole = np.fromfile(path, np.uint8).reshape(ROWS, APART)
    return whole[:count, :ROW][::-1]


def test_more_reads_than_the_kernel_has_room_for_come_to_their_places(path, file):
    assert MOST_AT_ONCE < ROWS
    parts, out = scattered()
    runs = parts.runs()
    assert len(runs) == ROWS
    left = read_together(parts, runs, np.full(ROWS, file), parts.offsets)
    assert not len(left)
    np.testing.assert_array_equal(out, wanted(path))


@pytest.mark.parametrize("bad", [0, 300, ROWS - 1])
def test_what_cannot_be_read_is_left_and_the_rest_is_not(path, file, bad):
    """A file that is not open is an order that the kernel does not take: those behind it in the
    same call are left too.
    """
    parts, out = scattered()
    files = np.full(ROWS, file)
    files[bad] = 1_000_000
    left = read_together(parts, parts.runs(), files, parts.offsets)
    behind = min(ROWS, (bad // MOST_AT_ONCE + 1) * MOST_AT_ONCE)
    assert left.tolist() == list(range(bad, behind))
    read = np.setdiff1d(np.arange(ROWS), left)
    np.testing.assert_array_equal(out[::-1][read], wanted(path)[::-1][read])
    again, out = scattered()  # nothing is left in the queue of what went wrong
    assert not len(read_together(again, again.runs(), np.full(ROWS, file), again.offsets))
    np.testing.assert_array_equal(out, wanted(path))


def test_a_file_that_ends_early_leaves_what_lies_behind_its_end(tmp_path, path):
    short = tmp_path / "short"
    short.write_bytes(path.read_bytes()[: 600 * APART + ROW // 2])
    parts, _ = scattered()
    number = os.open(short, os.O_RDONLY)
    left = read_together(parts, parts.runs(), np.full(ROWS, number), parts.offsets)
    os.close(number)
    assert left.tolist() == list(range(600, ROWS))


def test_threads_that_read_at_once_have_queues_of_their_own(path, file, monkeypatch):
    idle: list[ReadQueue] = []
    monkeypatch.setattr(read_queue, "_idle", idle)
    gate, found = threading.Barrier(3), []

    def read() -> None:
        parts, out = scattered()
        gate.wait()
        for _ in range(20):
            assert not len(read_together(parts, parts.runs(), np.full(ROWS, file), parts.offsets))
        found.append((out == wanted(path)).all())

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3
    assert 1 <= len(idle) <= 3


def test_a_wait_that_a_signal_interrupts_goes_on(path, file, monkeypatch):
    queue, call = ReadQueue(), read_queue._call
    interruptions = [InterruptedError()]

    def interrupted(number: int, *arguments: object) -> int:
        if number == queue._wait and interruptions:
            raise interruptions.pop()
        return call(number, *arguments)

    monkeypatch.setattr(read_queue, "_call", interrupted)
    parts, out = scattered(10)
    runs = parts.runs()
    left = queue.read(np.full(10, file), parts.offsets, Memories(parts, runs))
    assert (len(left), interruptions) == (0, [])
    np.testing.assert_array_equal(out, wanted(path, 10))


def test_a_system_without_room_for_a_queue_reads_one_by_one_and_says_so(
    tmp_path, monkeypatch, path, file
):
    assert why_one_by_one() is None
    monkeypatch.setattr(read_queue, "_idle", [])
    monkeypatch.setattr(read_queue, "MOST_AT_ONCE", 2**31 - 1)  # the kernel has no such room
    parts, out = scattered()
    left = read_together(parts, parts.runs(), np.full(ROWS, file), parts.offsets)
    assert left.tolist() == list(range(ROWS))
    assert not out.any()
    why = why_one_by_one()
    assert why is not None
    assert why.startswith("io_setup: ")


@pytest.mark.parametrize("wrong", ["read-only", "behind the end", "before the beginning"])
def test_the_kernel_is_given_no_address_outside_of_the_memory(file, wrong):
    out = np.zeros((4, ROW), np.uint8)
    memory = memoryview(bytes(4 * ROW)) if wrong == "read-only" else out.reshape(-1).data
    starts = np.arange(4) * ROW
    starts[2] = {"behind the end": 3 * ROW + 1, "before the beginning": -1}.get(wrong, starts[2])
    parts = Parts(memory, np.arange(4) * APART, starts, np.full(4, ROW, np.int64))
    with pytest.raises(BufferError, match="no room"):
        read_together(parts, parts.runs(), np.full(4, file), parts.offsets)


def test_nothing_is_read_for_nothing(file):
    nothing = np.empty(0, np.int64)
    parts = Parts(memoryview(bytearray(8)), nothing, nothing, nothing)
    assert not len(read_together(parts, nothing, nothing, nothing))


def test_a_run_says_whether_its_rows_are_read_together(tmp_path, monkeypatch):
    path = write_arrays(tmp_path / "numbers.h5")
    for calls, said in ((read_queue.CALLS, False), ({}, True)):
        monkeypatch.setattr(read_queue, "_idle", [])
        monkeypatch.setattr(read_queue, "CALLS", calls)
        data = open_data(
            make_spec(), {"numbers": entry(path)}, torch.device("cpu"), preparing(tmp_path)
        )
        why = data.describe()["read_one_by_one_because"]
        data.close()
        assert (why is not None) is said
