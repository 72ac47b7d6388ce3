"""The bytes of a safetensors file, in pieces of which no tensor is copied.

The library's own `save` makes the same bytes, and holds them twice over. The layout: the length of
the header (8 bytes), the header as JSON, then the tensors.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

ALIGNMENT: Final = 8
# In the order in which the library lays them into a file.
NAMES: Final = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
RANKS: Final = {dtype: rank for rank, dtype in enumerate(NAMES)}


def pieces_of(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """The file of `tensors`, which are contiguous and on the CPU; valid while they do not change.

    Raises TypeError for a type of numbers that is not in NAMES.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in NAMES)
            raise TypeError(f"{name} is of {tensor.dtype}; a checkpoint can keep {known}.")
    names = sorted(tensors, key=lambda name: (RANKS[tensors[name].dtype], name))
    header: dict[str, Any] = {}
    begin = 0
    for name in names:
        tensor = tensors[name]
        end = begin + tensor.nbytes
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    said = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    said += b" " * (-len(said) % ALIGNMENT)
    head = len(said).to_bytes(8, "little") + said
    return [memoryview(head), *(_bytes_of(tensors[name]) for name in names)]


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data
