"""The reader thread: it fails loudly, ends when told, and leaves nothing behind."""

import os
import threading
from itertools import chain, islice

import pytest

from tests.trainer_data.factories import opener, rows_of, streamed, transfer_of, write_arrays
from tests.worker.eventually import eventually
from worker.trainer.data.batch import BatchPlan
from worker.trainer.data.feed.reader import ChunkPlan
from worker.trainer.data.feed.stream import Streamed
from worker.trainer.data.order import Order
from worker.trainer.data.split import Part
from worker.trainer.errors import DatasetChanged

PART = Part("numbers", range(100))


class FailingSource:
    """Reads as it should until `failing_read`, then raises `error`."""

    def __init__(self, path, failing_read, error):
        self._source = opener(path)()
        self._reads_left, self._error = failing_read, error
        self.fields, self.num_samples = self._source.fields, self._source.num_samples
        self.places_rows = self._source.places_rows
        self.closed = False

    def read(self, extents, out):
        self._reads_left -= 1
        if self._reads_left < 0:
            raise self._error
        self._source.read(extents, out)

    def close(self):
        self.closed = True
        self._source.close()


def reader_threads():
    return [thread for thread in threading.enumerate() if thread.name == "chunk-reader"]


def stream_of(path, open_source, chunk_samples=10, first_samples=None, epochs=1):
    first = first_samples or chunk_samples
    chunks = ChunkPlan(open_source, PART, Order(100, 0, "none"), chunk_samples, first, epochs)
    return Streamed(BatchPlan(100, 4, drop_last=False), chunks, transfer_of(path))


class GatedSource:
    """Reads as it should until `gated_read`, then waits to be let on."""

    def __init__(self, path, gated_read):
        self._source = opener(path)()
        self._reads_left, self.gate = gated_read, threading.Event()
        self.fields, self.num_samples = self._source.fields, self._source.num_samples
        self.places_rows = self._source.places_rows
        self.rows = []
        self.waits = False

    def read(self, extents, out):
        self._reads_left -= 1
        if self._reads_left < 0:
            self.waits = True
            self.gate.wait(60)
        self.rows.append(sum(stop - start for start, stop, _ in extents))
        self._source.read(extents, out)

    def close(self):
        self._source.close()


@pytest.mark.parametrize(
    ("chunk_samples", "slots", "sizes"),
    [
        (70, [68, 68], [4, 32, 64]),
        (25, [24, 24], [4, 24, 24, 24, 24]),
        (100, [12, 88], [12, 88]),
        (130, [12, 88], [12, 88]),
    ],
)
def test_the_first_batch_waits_for_a_small_chunk_alone(numbers, chunk_samples, slots, sizes):
    source = GatedSource(numbers, 1)
    batches = stream_of(numbers, lambda: source, chunk_samples, first_samples=3)
    under_way = batches.iterate(0)
    assert rows_of([next(under_way)]) == [0, 1, 2, 3]
    assert source.rows == sizes[:1]
    source.gate.set()
    assert rows_of(under_way) == list(range(4, 100))
    # Each has 8 times as many as the one before; what one chunk would hold comes in two.
    assert source.rows == sizes
    assert [len(slot.places) for slot in batches._slots] == slots
    batches.close()


def test_an_error_of_the_reader_surfaces_in_the_loop(numbers):
    sources = []

    def open_source():
        sources.append(FailingSource(numbers, 3, ZeroDivisionError("boom")))
        return sources[-1]

    batches = stream_of(numbers, open_source)
    seen = map(rows_of, ([batch] for batch in batches.iterate(0)))
    before = list(islice(seen, 6))
    with pytest.raises(ZeroDivisionError, match="boom"):
        next(seen)
    # What was read before the error was not lost.
    assert [*chain.from_iterable(before)] == list(range(24))
    assert sources[0].closed
    assert not reader_threads()
    batches.close()


def test_a_source_that_cannot_be_opened_surfaces_in_the_loop(numbers):
    batches = streamed(numbers, PART, Order(100, 0, "full"))
    numbers.unlink()
    with pytest.raises(Exception, match="There is no file"):
        next(batches.iterate(0))
    assert not reader_threads()


def test_after_an_error_the_part_can_be_iterated_again(numbers):
    errors = [OSError("once")]

    def open_source():
        return FailingSource(numbers, 2, errors.pop()) if errors else opener(numbers)()

    batches = stream_of(numbers, open_source)
    with pytest.raises(OSError, match="once"):
        list(batches.iterate(0))
    assert rows_of(batches.iterate(0)) == list(range(100))
    batches.close()


def test_a_file_truncated_in_mid_epoch_ends_the_epoch_with_a_sentence(tmp_path):
    path = write_arrays(tmp_path / "long.h5", samples=20_000)
    batches = streamed(
        path, Part("long", range(20_000)), Order(20_000, 0, "full"), chunk_samples=100
    )
    under_way = batches.iterate(0)
    next(under_way)
    os.truncate(path, path.stat().st_size // 3)
    with pytest.raises(DatasetChanged, match="cannot be trusted"):
        list(under_way)
    batches.close()


@pytest.mark.parametrize("batches_taken", [0, 1, 3, 9])
def test_stopping_in_mid_epoch_ends_the_thread(numbers, batches_taken):
    batches = streamed(numbers, PART, Order(100, 0, "full"), chunk_samples=10)
    under_way = batches.iterate(0)
    for _ in range(batches_taken):
        next(under_way)
    under_way.close()
    assert not reader_threads()
    assert rows_of(batches.iterate(1)) == Order(100, 0, "full").rows(1, 0, 100).tolist()
    batches.close()


def test_breaking_out_of_the_loop_ends_the_thread(numbers):
    batches = streamed(numbers, PART, Order(100, 0, "full"), chunk_samples=10)
    for _ in batches.iterate(0):
        break
    assert not reader_threads()


def test_closing_the_part_ends_a_reader_that_waits_for_a_slot(numbers):
    batches = streamed(numbers, PART, Order(100, 0, "full"), chunk_samples=10)
    under_way = batches.iterate(0)
    next(under_way)
    assert len(reader_threads()) == 1
    batches.close()
    assert not reader_threads()


def test_the_reader_never_runs_more_than_its_slots_ahead(numbers):
    """Two slots: while one is in use, at most one other can have been read."""
    reads = []

    class Recording(FailingSource):
        def read(self, extents, out):
            reads.append(extents.starts[0])
            super().read(extents, out)

    batches = stream_of(numbers, lambda: Recording(numbers, 10**9, None))
    position = 0
    for batch in batches.iterate(0):
        position += batch.size
        begun = (position - 1) // 10
        assert max(reads) // 10 <= begun + 2
    batches.close()


def test_the_next_epoch_begins_with_what_was_read_ahead(numbers):
    source = GatedSource(numbers, 14)  # those of an epoch, and the first of the next
    batches = stream_of(numbers, lambda: source, chunk_samples=8, epochs=3)
    assert rows_of(batches.iterate(0)) == list(range(100))
    assert len(reader_threads()) == 1
    # Both slots: that of the last chunk too, which is not needed any more.
    eventually(lambda: source.waits, "the second chunk of the next epoch is begun")
    next_one = batches.iterate(1)
    assert rows_of([next(next_one), next(next_one)]) == list(range(8))
    source.gate.set()
    assert rows_of(next_one) == list(range(8, 100))
    assert rows_of(batches.iterate(2)) == list(range(100))
    assert not reader_threads()  # there is no epoch after it
    batches.close()


@pytest.mark.parametrize("wanted", [(1, 40), (0, 0), (2, 0)])
def test_what_was_read_ahead_is_given_up_for_another_place(numbers, wanted):
    batches = streamed(numbers, PART, Order(100, 0, "full"), chunk_samples=10, epochs=4)
    rows_of(batches.iterate(0))
    expected = Order(100, 0, "full").rows(wanted[0], wanted[1], 100).tolist()
    assert rows_of(batches.iterate(*wanted)) == expected
    assert rows_of(batches.iterate(3)) == Order(100, 0, "full").rows(3, 0, 100).tolist()
    assert not reader_threads()
    batches.close()


def test_an_error_while_reading_ahead_is_one_of_the_next_epoch(numbers):
    source = FailingSource(numbers, 13, ZeroDivisionError("boom"))
    batches = stream_of(numbers, lambda: source, epochs=2)
    assert rows_of(batches.iterate(0)) == list(range(100))
    with pytest.raises(ZeroDivisionError, match="boom"):
        next(batches.iterate(1))
    assert not reader_threads()
    batches.close()


def test_closing_the_part_ends_a_reader_that_is_ahead(numbers):
    batches = streamed(numbers, PART, Order(100, 0, "full"), chunk_samples=10, epochs=2)
    rows_of(batches.iterate(0))
    assert len(reader_threads()) == 1
    batches.close()
    assert not reader_threads()
