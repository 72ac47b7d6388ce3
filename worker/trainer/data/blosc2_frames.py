"""Blosc2's frames as HDF5's filter writes them: one chunk, whose values lie in blocks by then.

The places are those of `README_CFRAME_FORMAT` and `README_B2ND_METALAYER` of c-blosc2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
MAGIC = b"b2frame\0"
# Of the frame's header: where its own size stands, and that of the packed chunks behind it.
HEADER_BYTES, PACKED_BYTES = slice(11, 15), slice(39, 47)
# Of a chunk: bytes of a value, and of all values.
VALUE_BYTES, CHUNK_BYTES = slice(3, 4), slice(4, 8)
# Numbers of the metalayer, after the byte that tells their type.
B2ND, SIZE, LENGTH = b"\xa4b2nd\xd2", 9, 5
# A frame without a chunk says in its index what all its values are.
INDEX_OF_ZEROS = 0x81


@dataclass(frozen=True)
class Blocks:
    """How the values of a chunk are cut: each block as large as the others, reaching over the end
    where it has to.
    """

    chunk: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(-(-c // b) for c, b in zip(self.chunk, self.block, strict=True))

    def put_together(self, blocks: Bytes, itemsize: int, out: Bytes) -> None:
        """All bytes of the blocks, in their order, to where they are in the chunk."""
        ordered = blocks.reshape(-1, *self.block, itemsize)
        chunk = out.reshape(*self.chunk, itemsize)
        for values, place in zip(ordered, product(*map(range, self.grid)), strict=True):
            begins = [at * size for at, size in zip(place, self.block, strict=True)]
            ends = [b + size for b, size in zip(begins, self.block, strict=True)]
            room = chunk[tuple(map(slice, begins, ends))]
            room[...] = values[tuple(map(slice, room.shape))]


def unpack(data: bytes, decode: Callable[[Any], bytes], out: Bytes) -> None:
    """The frame's only chunk to `out`, which it has to fill; `decode` undoes a chunk of Blosc2.

    Raises ValueError where the frame says something else, or what `decode` raises.
    """
    begin = int.from_bytes(data[HEADER_BYTES], "big")
    packed = int.from_bytes(data[PACKED_BYTES], "big")
    if data[2 : 2 + len(MAGIC)] != MAGIC or begin + packed > len(data):
        raise ValueError("a frame of Blosc2 is damaged")
    if not packed:
        _fill_with_zeros(decode(data[begin:]), out)
        return
    chunk, blocks = data[begin : begin + packed], _blocks(data[:begin])
    itemsize = int.from_bytes(chunk[VALUE_BYTES], "little")
    said = int.from_bytes(chunk[CHUNK_BYTES], "little")  # any amount of memory, where it is damaged
    count = math.prod(blocks.grid) * math.prod(blocks.block) * itemsize if blocks else out.size
    whole = math.prod(blocks.chunk) * itemsize if blocks else out.size
    if said != count or whole != out.size:
        raise ValueError(f"a chunk has {whole:,} bytes, and {out.size:,} would be right")
    values = np.frombuffer(decode(chunk), np.uint8)
    if blocks is None:
        out[:] = values
    else:
        blocks.put_together(values, itemsize, out)


def _blocks(header: bytes) -> Blocks | None:
    """From the metalayer of arrays of several dimensions; None: the values lie in their order."""
    _, found, rest = header.partition(B2ND)
    if not found:
        return None
    begin = int.from_bytes(rest[:4], "big") + 7
    dimensions, begin = int.from_bytes(header[begin : begin + 1], "big"), begin + 2
    chunk = begin + SIZE * dimensions + 1
    block = chunk + LENGTH * dimensions + 1
    return Blocks(_lengths(header, chunk, dimensions), _lengths(header, block, dimensions))


def _lengths(header: bytes, begin: int, count: int) -> tuple[int, ...]:
    places = range(begin, begin + LENGTH * count, LENGTH)
    lengths = tuple(int.from_bytes(header[at + 1 : at + LENGTH], "big") for at in places)
    if 0 in lengths:
        raise ValueError("a frame of Blosc2 is damaged")
    return lengths


def _fill_with_zeros(index: bytes, out: Bytes) -> None:
    if len(index) != 8 or index[-1] != INDEX_OF_ZEROS:
        raise ValueError("a frame of Blosc2 has no values")
    out[:] = 0
