"""The order of samples: a permutation, the same however it is asked for, and for ever."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.trainer.data.order import Order, Purpose, permutation

orders = st.builds(
    Order,
    num_samples=st.integers(1, 300),
    seed=st.integers(0, 2**53 - 1),
    shuffle=st.sampled_from(["full", "block", "none"]),
    group=st.integers(1, 64),
    block=st.integers(1, 40),
)


@given(orders, st.integers(0, 1000))
def test_every_sample_comes_once_an_epoch(order, epoch):
    rows = order.rows(epoch, 0, order.num_samples)
    assert sorted(rows.tolist()) == list(range(order.num_samples))


@given(orders, st.integers(0, 3), st.data())
def test_a_slice_is_the_same_whatever_was_asked_before(order, epoch, data):
    whole = order.rows(epoch, 0, order.num_samples)
    order.rows(epoch + 1, 0, order.num_samples)
    start = data.draw(st.integers(0, order.num_samples - 1))
    stop = data.draw(st.integers(start + 1, order.num_samples))
    np.testing.assert_array_equal(order.rows(epoch, start, stop), whole[start:stop])


@given(orders, st.integers(0, 3), st.integers(1, 100))
def test_chunks_cover_the_epoch_and_stay_within_their_size(order, epoch, most):
    start = 0
    while start < order.num_samples:
        stop = order.chunk_stop(epoch, start, most)
        assert start < stop <= min(start + most, order.num_samples)
        start = stop


@given(
    st.integers(1, 300), st.integers(0, 99), st.integers(1, 8), st.integers(1, 8), st.integers(0, 3)
)
def test_a_chunk_as_large_as_a_group_is_made_of_whole_blocks(samples, seed, block, blocks, epoch):
    order = Order(samples, seed, "block", block * blocks, block)
    start = 0
    while start < samples:
        stop = order.chunk_stop(epoch, start, block * blocks)
        rows = set(order.rows(epoch, start, stop).tolist())
        for first in {row // block * block for row in rows}:
            assert rows >= set(range(first, min(first + block, samples)))
        start = stop


def test_this_version_of_the_order_never_changes():
    """Resuming a checkpoint relies on these numbers; a change needs a new ORDER_VERSION."""
    full, blocks = [7, 6, 5, 1, 4, 0, 2, 3], [10, 3, 2, 9, 8, 7, 6, 4, 0, 5, 1]
    assert permutation(5, Purpose.samples, 2, 0, 8).tolist() == full
    assert Order(8, 5, "full").rows(2, 0, 8).tolist() == full
    assert Order(11, 5, "block", group=4, block=2).rows(1, 0, 11).tolist() == blocks


@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_epochs_and_seeds_differ(shuffle):
    def rows(seed, epoch):
        return Order(500, seed, shuffle, 50, 5).rows(epoch, 0, 500).tolist()

    assert rows(0, 0) != rows(0, 1)
    assert rows(0, 0) != rows(1, 0)
    assert rows(0, 0) == rows(0, 0)


def test_block_order_brings_far_samples_together():
    """On a file sorted by label, a group must see many places of the file, not one."""
    first_group = Order(10_000, 0, "block", group=1_000, block=10).rows(0, 0, 1_000)
    tenths = np.unique(first_group // 1_000)
    assert len(tenths) == 10


def test_no_shuffle_is_the_order_of_the_file():
    assert Order(5, 1, "none").rows(3, 1, 4).tolist() == [1, 2, 3]
