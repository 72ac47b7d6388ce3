"""Batches: the same samples in the same batches, resident or streamed, whatever the chunk size."""

import time
from itertools import accumulate, islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer_data.factories import kept, loaded, resident, rows_of, streamed, write_arrays
from worker.trainer.data.batch import BatchPlan
from worker.trainer.data.feed import samples, transfer
from worker.trainer.data.order import Order
from worker.trainer.data.split import Part


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("data") / "numbers.h5", samples=120)


parts = st.one_of(
    st.builds(
        lambda start, length: Part("numbers", range(start, start + length)),
        st.integers(0, 20),
        st.integers(1, 100),
    ),
    st.sets(st.integers(0, 119), min_size=1).map(
        lambda rows: Part("numbers", np.array(sorted(rows)))
    ),
)


@given(
    samples=st.integers(1, 200),
    batch_size=st.integers(1, 50),
    drop_last=st.booleans(),
    most_at_once=st.none() | st.integers(1, 60),
)
def test_the_sizes_of_micro_batches_are_those_that_come(
    samples, batch_size, drop_last, most_at_once
):
    plan = BatchPlan(samples, batch_size, drop_last, most_at_once)
    assert len(set(plan.sizes)) == len(plan.sizes)
    assert set(plan.sizes) == {stop - start for start, stop in plan.bounds(0)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    part=parts,
    shuffle=st.sampled_from(["full", "block", "none"]),
    group=st.integers(1, 40),
    block=st.integers(1, 10),
    seed=st.integers(0, 2**53 - 1),
    epoch=st.integers(0, 5),
    batch_size=st.integers(1, 40),
    drop_last=st.booleans(),
    most_at_once=st.none() | st.integers(1, 40),
    chunk_samples=st.integers(1, 130),
    first_share=st.sampled_from([1, 3, 10]),
    resume_at=st.integers(0, 6),
    least_placed=st.sampled_from([1, 2**20]),
)
def test_residency_chunk_size_and_loader_never_change_the_batches(
    path, part, shuffle, group, block, seed, epoch, batch_size, drop_last, most_at_once,
    chunk_samples, first_share, resume_at, least_placed, monkeypatch,
):  # fmt: skip
    for module in (transfer, samples):
        monkeypatch.setattr(module, "LEAST_PLACED_BYTES", least_placed)

    def order():
        return Order(len(part), seed, shuffle, group, block)

    expected = part.take(order().rows(epoch, 0, len(part))).tolist()
    if drop_last:
        expected = expected[: len(part) // batch_size * batch_size]
    # Batches begin at the multiples of their size, micro-batches so at the beginning of a batch.
    borders = sorted({
        min(first + place, len(expected))
        for first in range(0, len(expected) + 1, batch_size)
        for place in range(0, batch_size, most_at_once or batch_size)
    } | {len(expected)})  # fmt: skip
    start = borders[min(resume_at, len(borders) - 1)]
    sizes = (batch_size, drop_last, most_at_once)
    whole = resident(path, part, order(), *sizes)
    first = max(1, chunk_samples // first_share)
    chunked = streamed(path, part, order(), *sizes, chunk_samples, first, epochs=epoch + 2)
    by_torch = loaded(path, part, order(), *sizes)
    for batches in (whole, chunked, by_torch):
        got = kept(batches.iterate(epoch, start))
        assert rows_of(got) == expected[start:]
        ends = accumulate((batch.size for batch in got), initial=start)
        assert list(ends) == [end for end in borders if end >= start]
        assert batches.plan.num_batches == -(-len(expected) // batch_size)
        assert batches.plan.num_micro_batches(len(expected)) == len(borders) - 1
        following = part.take(order().rows(epoch + 1, 0, len(part)))[: len(expected)].tolist()
        assert rows_of(batches.iterate(epoch + 1)) == following
        batches.close()


def test_an_epoch_can_be_left_and_continued(path):
    part, order = Part("numbers", range(100)), Order(100, 3, "block", 20, 4)
    batches = streamed(path, part, order, batch_size=7, chunk_samples=20)
    whole = rows_of(batches.iterate(2))
    first = batches.iterate(2)
    taken = kept(islice(first, 5))
    rest = batches.iterate(2, sum(batch.size for batch in taken))
    assert rows_of(taken) + rows_of(rest) == whole
    batches.close()


@pytest.mark.parametrize("make", [resident, streamed, loaded])
def test_a_new_iteration_ends_the_one_before(path, make):
    batches = make(path, Part("numbers", range(100)), Order(100, 3, "full"))
    first, second = batches.iterate(0), batches.iterate(1)
    next(first), next(second)
    with pytest.raises(RuntimeError, match="another iteration"):
        list(first)
    assert len(list(second)) == batches.plan.num_batches - 1
    batches.close()


@pytest.mark.parametrize("make", [resident, streamed, loaded])
def test_a_closed_part_gives_no_more(path, make):
    batches = make(path, Part("numbers", range(100)), Order(100, 3, "full"))
    under_way = batches.iterate(0)
    next(under_way)
    batches.close()
    with pytest.raises(RuntimeError, match="closed"):
        list(under_way)


def test_training_and_validation_can_be_iterated_in_turns(path):
    train = streamed(path, Part("numbers", range(80)), Order(80, 0, "full"))
    validation = streamed(path, Part("numbers", range(80, 120)), Order(40, 0, "none"))
    rows = []
    for batch in train.iterate(0):
        rows += rows_of([batch])
        assert rows_of(validation.iterate(0)) == list(range(80, 120))
    assert sorted(rows) == list(range(80))
    train.close()
    validation.close()


def test_what_was_read_is_counted(path):
    part = Part("numbers", range(50))
    bytes_of_part = 50 * (6 * 3 + 4) * 4
    whole, chunked = (
        resident(path, part, Order(50, 0, "full")),
        streamed(path, part, Order(50, 0, "full")),
    )
    for epoch in range(2):
        list(whole.iterate(epoch))
        list(chunked.iterate(epoch))
    assert whole.counters.bytes_read == bytes_of_part
    assert chunked.counters.bytes_read == 2 * bytes_of_part
    assert whole.counters.queue_depth is None
    assert chunked.counters.queue_depth in (0, 1, 2)
    whole.close()
    chunked.close()


@pytest.mark.parametrize("shuffle", ["none", "full"])
def test_a_batch_holds_its_values_until_the_next_is_asked_for(path, shuffle, monkeypatch):
    """Its memory may be a slot's, which the reader must not fill before."""
    monkeypatch.setattr(transfer, "LEAST_PLACED_BYTES", 1)
    order = Order(100, 0, shuffle)
    batches = streamed(path, Part("numbers", range(100)), order, batch_size=8, chunk_samples=8)
    start = 0
    for batch in batches.iterate(0):
        time.sleep(0.005)  # so that the reader does what it may
        assert rows_of([batch]) == order.rows(0, start, start + batch.size).tolist()
        start += batch.size
    batches.close()


@pytest.mark.parametrize(("shuffle", "least_placed"), [("none", 2**20), ("full", 1)])
def test_what_was_read_to_its_place_is_not_copied_again(path, shuffle, least_placed, monkeypatch):
    """No batch lies in two chunks, of which it would be copied together."""
    monkeypatch.setattr(transfer, "LEAST_PLACED_BYTES", least_placed)
    order = Order(100, 0, shuffle)
    batches = streamed(path, Part("numbers", range(100)), order, batch_size=8, chunk_samples=30)
    slots = [slot.rows["features"] for slot in batches._slots]
    for batch in batches.iterate(0):
        address = batch.arrays["features"].data_ptr()
        assert any(0 <= address - slot.data_ptr() < slot.nbytes for slot in slots)
    batches.close()


@pytest.mark.parametrize(("chunk_samples", "slots"), [(100, 1), (130, 1), (99, 2)])
def test_a_chunk_that_holds_the_part_stays_whole_and_needs_one_slot(path, chunk_samples, slots):
    order = Order(100, 0, "none")
    batches = streamed(path, Part("numbers", range(100)), order, 8, chunk_samples=chunk_samples)
    assert len(batches._slots) == slots
    assert rows_of(batches.iterate(0)) == list(range(100))
    batches.close()
