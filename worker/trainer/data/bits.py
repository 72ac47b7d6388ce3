"""Bits that travel packed, eight to a byte, and are unpacked on the device where they are used."""

from typing import Literal

import torch
from torch import Tensor


def unpack_bits(packed: Tensor, count: int, order: Literal["big", "little"] = "big") -> Tensor:
    """(…, bytes) uint8 to (…, count) uint8 of 0 and 1, on the device of `packed`.

    `order`: which bit of a byte comes first, as NumPy calls it: the highest of bytes by
    `numpy.packbits` ("big"), the lowest of Arrow's booleans ("little"). Bits behind `count` fill
    the last byte. ValueError where there are fewer than `count`.
    """
    if packed.dtype != torch.uint8:
        raise ValueError(f"packed bits are uint8, and these are {packed.dtype}")
    if not 0 <= count <= 8 * packed.shape[-1]:
        raise ValueError(f"{packed.shape[-1]} bytes have no {count} bits")
    first, last, step = (7, -1, -1) if order == "big" else (0, 8, 1)
    # Not by shifts, which ONNX has not as PyTorch does them.
    masks = 2 ** torch.arange(first, last, step, dtype=torch.uint8, device=packed.device)
    bits = (packed.unsqueeze(-1) & masks).clamp_max(1)
    return bits.flatten(-2)[..., :count]
