"""The order of samples: a permutation, the same however it is asked for, and for ever."""

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.trainer.data.feed.order_ahead import OrderAhead
from worker.trainer.data.order import (
    SORTED_AT_ONCE,
    Order,
    Purpose,
    _sorted_places,
    go_on,
    permutation,
)

settings = st.fixed_dictionaries(
    {
        "num_samples": st.integers(1, 300),
        "seed": st.integers(0, 2**53 - 1),
        "shuffle": st.sampled_from(["full", "block", "none", "lanes"]),
        "group": st.integers(1, 64),
        "block": st.integers(1, 40),
        "lanes": st.integers(1, 40),
    }
)
orders = settings.map(lambda chosen: Order(**chosen))  # type: ignore[arg-type]


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


@given(settings, st.lists(st.integers(0, 5), min_size=2, max_size=6))
def test_one_object_gives_each_epoch_what_a_new_one_gives(chosen, epochs):
    """What it keeps of one epoch must not show in another."""
    kept, size = Order(**chosen), chosen["num_samples"]
    for epoch in epochs:
        rows = Order(**chosen).rows(epoch, 0, size)
        np.testing.assert_array_equal(kept.rows(epoch, 0, size), rows)


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
    one, other = (Order(500, seed, shuffle, 50, 5) for seed in (0, 1))
    first, second, again = (one.rows(epoch, 0, 500).tolist() for epoch in (0, 1, 0))
    assert first != second
    assert first == again
    assert first != other.rows(0, 0, 500).tolist()


def test_block_order_brings_far_samples_together():
    """On a file sorted by label, a group must see many places of the file, not one."""
    first_group = Order(10_000, 0, "block", group=1_000, block=10).rows(0, 0, 1_000)
    tenths = np.unique(first_group // 1_000)
    assert len(tenths) == 10


def test_no_shuffle_is_the_order_of_the_file():
    assert Order(5, 1, "none").rows(3, 1, 4).tolist() == [1, 2, 3]


def test_a_large_permutation_is_that_of_one_stable_sort() -> None:
    """Also where numbers are equal, which random ones of 64 bits hardly ever are."""
    count = 3 * SORTED_AT_ONCE
    for numbers in (
        np.random.Philox(3).random_raw(count),
        np.random.Philox(3).random_raw(count) >> np.uint64(50) << np.uint64(50),
        np.full(count, 7, np.uint64),
    ):
        expected = np.argsort(numbers, kind="stable")
        assert np.array_equal(_sorted_places(numbers, go_on), expected)


def test_the_next_epoch_is_made_ahead_and_is_the_same() -> None:
    count = 2 * SORTED_AT_ONCE
    ahead, plain = OrderAhead(Order(count, 5, "full"), 4), Order(count, 5, "full")
    threads: list[int] = []
    for epoch in (0, 1, 3, 2):  # also where another is asked for than was made
        assert np.array_equal(ahead.rows(epoch), plain.rows(epoch, 0, count))
        threads = [t.ident or 0 for t in threading.enumerate() if t.name.startswith("order-ahead")]
    assert len(threads) == 1
    ahead.close()
    assert threads[0] not in {thread.ident for thread in threading.enumerate()}


def test_a_sort_under_way_is_given_up_when_nobody_wants_it_any_more() -> None:
    order = Order(2 * SORTED_AT_ONCE, 5, "full")
    ahead, pieces = OrderAhead(order, 2), list[int]()
    began, held, piece_done = threading.Event(), threading.Event(), order.piece_done

    def counted() -> None:
        pieces.append(1)
        if len(pieces) > 256:  # the first of epoch 1
            began.set()
            held.wait(60)
        piece_done()

    order.piece_done = counted
    ahead.rows(0)
    assert began.wait(60)
    closing = threading.Thread(target=ahead.close)
    closing.start()
    while closing.is_alive() and not ahead.is_closing:
        time.sleep(0.001)
    held.set()
    closing.join()
    assert len(pieces) == 257


def test_another_thread_than_the_loops_sorts_each_epoch_once() -> None:
    sorted_by: list[str] = []
    order = Order(3, 5, "full")
    rows = order.rows

    def noted(*asked: int) -> Any:
        sorted_by.append(threading.current_thread().name)
        return rows(*asked)

    order.rows = noted  # type: ignore[assignment,method-assign]
    ahead = OrderAhead(order, 3)
    for epoch in range(3):
        ahead.rows(epoch)
    ahead.close()
    assert len(sorted_by) == 3
    assert all(name.startswith("order-ahead") for name in sorted_by)


@pytest.mark.parametrize(("samples", "lanes"), [(20, 4), (23, 4), (3, 4), (7, 1)])
def test_in_lanes_each_place_of_a_batch_goes_through_its_own_stretch(
    samples: int, lanes: int
) -> None:
    order = Order(samples, 0, "lanes", lanes=lanes)
    rows = order.rows(0, 0, samples)
    assert sorted(rows.tolist()) == list(range(samples))
    whole = rows[: samples // lanes * lanes].reshape(-1, lanes)
    assert (np.diff(whole, axis=0) == 1).all()
    left_over = np.arange(len(whole) * lanes, samples)
    np.testing.assert_array_equal(rows[len(whole) * lanes :], left_over)
    np.testing.assert_array_equal(order.rows(5, 1, samples - 1), rows[1:-1])
