"""Mean and deviation: as numpy has them, whatever the pieces."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from worker.trainer.data.statistics import BLOCK_VALUES, field_statistics
from worker.trainer.errors import DataError


def in_pieces(arrays, size):
    count = len(next(iter(arrays.values())))
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in arrays.items()}


@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_they_are_those_of_numpy(size, seed):
    random = np.random.default_rng(seed)
    arrays: dict[str, NDArray[Any]] = {
        "x": random.normal(1000, [1, 50, 0.01], (50, 6, 3)).astype(np.float32),
        "one": random.integers(0, 255, 50).astype(np.uint8),
        "y": random.normal(-3, 2, (50, 4)).astype(np.float32),
    }
    found = field_statistics(in_pieces(arrays, size), {"y"})
    over: dict[str, Any] = {"x": (0, 1), "one": 0, "y": None}
    for name, axes in over.items():
        mean, std = (moment.numpy() for moment in found[name])
        exact = arrays[name].astype(np.float64)
        np.testing.assert_allclose(mean, exact.mean(axis=axes), rtol=1e-12)
        np.testing.assert_allclose(std, exact.std(axis=axes), rtol=1e-9)
        assert mean.shape == std.shape == ((3,) if name == "x" else ())
        assert mean.dtype == np.float64


def test_they_do_not_depend_on_the_threads():
    x = np.random.default_rng(0).normal(5, 2, (900, 50, 7)).astype(np.float32)
    before, found = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        mean, std = field_statistics(in_pieces({"x": x}, 400), ())["x"]
        found.append((mean.numpy().tobytes(), std.numpy().tobytes()))
    torch.set_num_threads(before)
    assert found[0] == found[1]


def test_a_constant_feature_has_deviation_one():
    """Its computed deviation is not exactly 0, and dividing by that would blow it up."""
    x = np.full((101, 7, 2), 0.1, np.float32)
    x[:, :, 1] = np.arange(101)[:, None]
    _, std = field_statistics(in_pieces({"x": x}, 9), ())["x"]
    assert std[0] == 1.0
    assert std[1] > 20


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_named(bad):
    x = np.ones((10, 5, 3), np.float32)
    x[4, 2, 1] = bad
    with pytest.raises(DataError, match=r"'x' holds NaN.*features \[1\]"):
        field_statistics([{"x": x}], ())


def test_a_piece_takes_only_a_little_more_while_it_is_counted():
    piece = np.ones((400, 360, 60), np.uint8)  # 8 MiB, in float64 64
    tracemalloc.start()
    field_statistics([{"x": piece}], ())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3 * torch.get_num_threads() * BLOCK_VALUES * 8
