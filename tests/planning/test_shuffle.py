"""How much a batch is worth: the formula beside batches that the trainer's own order draws."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from app.planning.shuffle import Neighbours, Shuffle, independent_samples
from worker.trainer.data.order import Order
from worker.trainer.tools.content import neighbours_of

Labels = NDArray[np.float32]
SAMPLES = 400_000
EPOCHS = 6
# Groups and blocks of before there was `shuffle_block`, for samples of 4 KiB at most, and those of
# a chunk of 1 GiB, for samples of 8 KiB and of 1 KiB.
BEFORE, LARGE, SMALL = (
    Shuffle("block", 16_384, 1_024),
    Shuffle("block", 131_072, 8),
    Shuffle("block", 196_608, 64),
)


def board() -> Labels:
    """80 positions of a game have its result."""
    games = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], SAMPLES // 80)
    return np.repeat(games, 80).astype(np.float32)


def windows() -> Labels:
    """A series in which each value is 0.999 of the one before, and noise."""
    noise = np.random.default_rng(1).normal(0, np.sqrt(1 - 0.999**2), SAMPLES)
    series, value = np.empty(SAMPLES), 0.0
    for row, each in enumerate(noise.tolist()):
        value = 0.999 * value + each
        series[row] = value
    return series.astype(np.float32)


def by_file() -> Labels:
    """20 files, each around a level of its own."""
    random = np.random.default_rng(2)
    levels = np.repeat(random.normal(0, 1, 20), SAMPLES // 20)
    return (levels + random.normal(0, 0.3, SAMPLES)).astype(np.float32)


def in_order() -> Labels:
    """Sorted by the label."""
    return np.linspace(-1, 1, SAMPLES, dtype=np.float32)


def apart() -> Labels:
    """Rows that have nothing to do with each other."""
    return np.random.default_rng(3).normal(0, 1, SAMPLES).astype(np.float32)


def measured(labels: Labels, shuffle: Shuffle, batch: int) -> float:
    """Independent samples whose mean varies as much as that of batches which were drawn."""
    order = Order(SAMPLES, 5, shuffle.kind, shuffle.group, shuffle.block)
    starts = range(0, SAMPLES - batch + 1, batch)
    means = [
        labels[order.rows(epoch, start, start + batch)].mean(dtype=np.float64)
        for epoch in range(EPOCHS if shuffle.kind != "none" else 1)
        for start in starts
    ]
    return min(batch, float(labels.var(dtype=np.float64) / np.var(means)))


@pytest.mark.parametrize("shuffle", [BEFORE, LARGE, SMALL], ids=["before", "large", "small"])
@pytest.mark.parametrize("batch", [512, 4_096])
@pytest.mark.parametrize("made", [board, windows, by_file, in_order, apart])
def test_a_batch_is_worth_what_batches_of_that_order_were_measured_to_be(
    made: Callable[[], Labels], batch: int, shuffle: Shuffle
) -> None:
    labels = made()
    told = neighbours_of([labels])
    assert told is not None
    neighbours = Neighbours(tuple(told["distances"]), tuple(told["shares"]))
    worth = independent_samples(shuffle, batch, SAMPLES, neighbours)
    assert 1 / 1.5 < worth / measured(labels, shuffle, batch) < 1.5


@pytest.mark.parametrize("made", [board, windows, apart])
def test_without_a_shuffle_a_batch_is_a_block_of_neighbours(made: Callable[[], Labels]) -> None:
    labels = made()
    told = neighbours_of([labels])
    assert told is not None
    neighbours = Neighbours(tuple(told["distances"]), tuple(told["shares"]))
    worth = independent_samples(Shuffle("none"), 100, SAMPLES, neighbours)
    assert 1 / 1.5 < worth / measured(labels, Shuffle("none"), 100) < 1.5


def test_a_full_order_makes_a_batch_worth_its_size() -> None:
    equal = Neighbours((1, 2, 4), (1.0, 1.0, 1.0))
    assert independent_samples(Shuffle("full"), 512, 10**6, equal) == 512
    # One group that is all samples is one as well.
    assert independent_samples(Shuffle("block", 10_000, 100), 512, 10_000, equal) == 512
    # A batch is never worth more than its samples, nor than there are.
    assert independent_samples(Shuffle("block", 16, 1), 512, 100, equal) == 100
    assert independent_samples(Shuffle("block", 160, 10), 160, 10**6, equal) == pytest.approx(
        16, 0.01
    )


def test_a_share_between_and_beyond_the_distances_follows_its_neighbours() -> None:
    some = Neighbours((1, 2, 4, 8), (1.0, 1.0, 0.5, 0.25))
    assert [some.share(rows) for rows in (1, 2, 4, 8, 16, 32)] == [
        1.0,
        1.0,
        0.5,
        0.25,
        0.125,
        0.0625,
    ]
    assert some.share(3) == pytest.approx(2 / 3)
    steady = Neighbours((1, 2), (0.9, 0.9))
    assert steady.share(10**6) == 0.9


def test_labels_that_take_turns_make_a_block_of_them_worth_its_size() -> None:
    """The mean of each block is the same, so it varies by nothing."""
    told = neighbours_of([np.tile(np.array([0.0, 1.0]), 5_000)])
    assert told is not None
    neighbours = Neighbours(tuple(told["distances"]), tuple(told["shares"]))
    assert independent_samples(Shuffle("none"), 64, 10_000, neighbours) == 64


@pytest.mark.parametrize("value", [0.1, 7.7, 1e9 + 0.1])
def test_a_constant_that_binary_numbers_do_not_hold_has_no_neighbours(value: float) -> None:
    assert neighbours_of([np.full(5_000, value)]) is None
