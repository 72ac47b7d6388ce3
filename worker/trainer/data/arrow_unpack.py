"""From what a record batch stores of a column to its numbers, and of these to where they belong."""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.arrow_columns import Column
from worker.trainer.data.arrow_file import CODECS, PLAIN
from worker.trainer.data.arrow_library import arrow
from worker.trainer.data.source import Rows

NOT_PACKED = -1
# Writers fill a buffer up, to 64 bytes as a rule. One that says far more would only take memory.
MOST_PADDING_BYTES = 2**12
# Shorter runs of rows are gathered in one call, for each of its own takes a microsecond.
LEAST_RUN_ROWS = 64


def values_of(column: Column, stored: memoryview, codec: int, rows: int) -> NDArray[Any]:
    """The samples of a record batch, (rows, *shape), from its buffer; ValueError, OSError."""
    expected = column.stored_bytes(rows)
    plain = stored if codec == PLAIN else _unpacked(stored, CODECS[codec], expected)
    if column.is_bits:
        packed = np.frombuffer(plain, np.uint8, expected)
        bits = np.unpackbits(packed, count=rows * column.numbers, bitorder="little")
        return bits.view(np.bool_).reshape(rows, *column.field.shape)
    numbers = np.frombuffer(plain, column.field.dtype, rows * column.numbers)
    return numbers.reshape(rows, *column.field.shape)


def _unpacked(stored: memoryview, codec: str, expected: int) -> Any:
    [size] = struct.unpack_from("<q", stored)
    if size == NOT_PACKED:  # it would not have become smaller
        return stored[8:]
    if not expected <= size <= expected + MOST_PADDING_BYTES:
        raise ValueError(f"a buffer holds {size:,} bytes, and {expected:,} are expected")
    return arrow().Codec(codec).decompress(stored[8:], size)


def gather(
    values: NDArray[Any], starts: Rows, stops: Rows, places: Rows, out: NDArray[Any]
) -> None:
    """Copy rows [start, stop) of `values` to `out` from a place on, for each of these."""
    lengths = stops - starts
    total = int(lengths.sum())
    if total >= len(starts) * LEAST_RUN_ROWS or len(starts) == 1:
        ends = (places + lengths).tolist()
        pairs = zip(starts.tolist(), stops.tolist(), places.tolist(), ends, strict=True)
        for start, stop, place, end in pairs:
            out[place:end] = values[start:stop]
        return
    within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows, to = np.repeat(starts, lengths) + within, np.repeat(places, lengths) + within
    if to[-1] - to[0] == total - 1 and (np.diff(to) == 1).all():
        np.take(values, rows, axis=0, out=out[to[0] : to[-1] + 1], mode="clip")
    else:
        out[to] = values[rows]
