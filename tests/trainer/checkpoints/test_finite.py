"""Whether a tensor is finite, by the bits of its values."""

import pytest
import torch

from worker.trainer.checkpoints.finite import PIECE, is_finite

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, 2 * PIECE])
def test_one_value_that_is_not_finite_is_found_wherever_it_is(dtype, value, place):
    tensor = torch.zeros(2 * PIECE + 1, dtype=dtype)
    tensor[place] = value
    assert not is_finite(tensor)
    assert not is_finite(tensor.reshape(1, -1))


@pytest.mark.parametrize("dtype", TYPES)
def test_all_other_values_are_finite(dtype):
    """The largest, the smallest, those below the smallest normal one, both zeros, and none."""
    limits = torch.finfo(dtype)
    values = [limits.max, limits.min, limits.tiny, limits.smallest_normal / 2, 0.0, -0.0]
    assert is_finite(torch.tensor(values, dtype=dtype))
    assert is_finite(torch.zeros((0, 3), dtype=dtype))
    assert is_finite(torch.tensor(1.0, dtype=dtype))


def test_whole_numbers_are_finite():
    assert is_finite(torch.full((3,), -1))
    assert is_finite(torch.tensor([True]))
