"""Reads FlatBuffers, in which Arrow files say where their parts lie: as much of it as that takes.

The format: https://flatbuffers.dev/internals. A damaged one is a ValueError, never a read beyond.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUMBERS = {"uint8": "<B", "int16": "<h", "int32": "<i", "int64": "<q"}


class Table:
    """A table: fields by number, which are there or have their default."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _number(data, at, "<i")
        self._fields_bytes = _number(data, self._fields, "<H")

    @classmethod
    def root(cls, data: bytes) -> "Table":
        return cls(data, _number(data, 0, "<I"))

    def number(self, field: int, kind: str, default: int = 0) -> int:
        place = self._place(field)
        return default if place is None else _number(self._data, place, NUMBERS[kind])

    def table(self, field: int) -> "Table | None":
        place = self._place(field)
        return None if place is None else Table(self._data, self._pointed(place))

    def vector(self, field: int, dtype: Any) -> NDArray[Any]:
        """Numbers, or structs of the numbers of `dtype`; empty where it is not there."""
        place = self._place(field)
        if place is None:
            return np.empty(0, dtype)
        begin = self._pointed(place)
        return np.frombuffer(self._data, dtype, _number(self._data, begin, "<I"), begin + 4)

    def _place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        if entry + 2 > self._fields_bytes:
            return None
        offset = _number(self._data, self._fields + entry, "<H")
        return self._at + offset if offset else None

    def _pointed(self, place: int) -> int:
        return place + _number(self._data, place, "<I")


def _number(data: bytes, at: int, kind: str) -> int:
    if not 0 <= at <= len(data) - struct.calcsize(kind):
        raise ValueError("it points beyond its end")
    number: int
    [number] = struct.unpack_from(kind, data, at)
    return number
