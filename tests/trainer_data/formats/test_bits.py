"""Packed bits are unpacked on the device as NumPy does it, in both orders."""

import numpy as np
import pytest
import torch

from worker.trainer.data.bits import unpack_bits

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize("order", ["big", "little"])
@pytest.mark.parametrize(
    ("shape", "count"), [((5, 18, 8), 64), ((5, 18, 8), 61), ((7, 3), 17), ((4,), 32), ((0, 2), 9)]
)
def test_bits_are_those_that_numpy_unpacks(shape, count, order):
    packed = RANDOM.integers(0, 256, shape, np.uint8)
    found = unpack_bits(torch.from_numpy(packed), count, order)
    expected = np.unpackbits(packed, axis=-1, count=count, bitorder=order)
    assert found.dtype == torch.uint8
    assert found.shape == (*shape[:-1], count)
    assert (found.numpy() == expected).all()


@pytest.mark.parametrize("order", ["big", "little"])
def test_what_was_packed_comes_back(order):
    bits = RANDOM.random((6, 100)) > 0.5
    packed = torch.from_numpy(np.packbits(bits, axis=1, bitorder=order))
    assert (unpack_bits(packed, 100, order).numpy() == bits).all()


def test_the_order_of_bits_is_seen():
    packed = torch.tensor([0b10110000], dtype=torch.uint8)
    assert unpack_bits(packed, 4).tolist() == [1, 0, 1, 1]
    assert unpack_bits(packed, 8, "little").tolist() == [0, 0, 0, 0, 1, 1, 0, 1]


def test_what_are_no_packed_bits_is_refused():
    with pytest.raises(ValueError, match="2 bytes have no 17 bits"):
        unpack_bits(torch.zeros(3, 2, dtype=torch.uint8), 17)
    with pytest.raises(ValueError, match="packed bits are uint8"):
        unpack_bits(torch.zeros(3, 2), 16)
