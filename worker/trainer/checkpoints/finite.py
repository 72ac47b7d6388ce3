"""Whether a tensor on the CPU is finite, told beside a training without PyTorch's threads."""

import math
from typing import Final

import torch
from torch import Tensor

# What is kept for a moment; it stays in the cache.
PIECE: Final = 2**16
INTEGERS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_finite(tensor: Tensor) -> bool:
    """Of a contiguous tensor; true where its values are no floating-point or complex numbers.

    By NumPy, which computes in the thread that asks; PyTorch would start some for that thread, and
    keep them. It reads the bits: all those of the exponent are set in infinity and in NaN alone.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point():
        return True
    if tensor.itemsize not in INTEGERS:  # of 8 bits, of which some formats have no infinity
        tensor = tensor.float()
    integer = INTEGERS[tensor.itemsize]
    exponent = torch.tensor(math.inf, dtype=tensor.dtype).view(integer).numpy()
    bits = tensor.detach().reshape(-1).view(integer).numpy()
    pieces = (bits[begin : begin + PIECE] for begin in range(0, len(bits), PIECE))
    return all((piece & exponent).max() != exponent for piece in pieces)
