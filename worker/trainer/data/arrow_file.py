"""Where the columns of an Arrow IPC file lie, by its footer and the heads of its record batches.

Feather 2 is the same. No data is read.
The format: https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format.
"""

import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.arrow_columns import Column, Columns, columns_of
from worker.trainer.data.arrow_library import arrow, explained
from worker.trainer.data.flatbuffer import Table
from worker.trainer.data.source import Rows
from worker.trainer.errors import DataError

MAGIC, OLD_MAGIC = b"ARROW1", b"FEA1"
TAIL_BYTES = 4 + len(MAGIC)
BLOCK = np.dtype([("offset", "<i8"), ("head", "<i4"), ("", "<i4"), ("body", "<i8")])
PAIR = np.dtype([("first", "<i8"), ("second", "<i8")])
ENDIANNESS = {"little": 0, "big": 1}
RECORD_BATCH = 3  # of the kinds of messages
PLAIN, CODECS = -1, ("lz4", "zstd")


@dataclass(frozen=True)
class Stored:
    """A column's buffers, one of each record batch."""

    offsets: Rows
    """In the file."""
    sizes: Rows
    nulls: int


@dataclass(frozen=True)
class ArrowFile:
    """One file; what is said of record batches leaves out those without rows."""

    path: Path
    size: int
    mtime_ns: int
    columns: Columns
    stored: Mapping[str, Stored]
    rows: Rows
    codecs: NDArray[np.int8]
    """Of each record batch: a place in CODECS, or PLAIN."""


@dataclass(frozen=True)
class _Batch:
    rows: int
    nodes: NDArray[np.void]
    buffers: NDArray[np.void]
    views: Rows
    codec: int
    body: int
    body_bytes: int


def read_arrow_file(path: Path) -> ArrowFile:
    """DataError with a sentence where it cannot be used."""
    try:
        with path.open("rb") as file, explained(path):
            stat = os.fstat(file.fileno())
            footer = _footer(path, file.fileno(), stat.st_size)
            columns = columns_of(arrow().ipc.open_file(path).schema)
            batches = [_batch(file.fileno(), block) for block in footer.vector(3, BLOCK)]
        return _file(path, stat, columns, [batch for batch in batches if batch.rows])
    except FileNotFoundError:
        raise DataError(f"There is no file {path}; put it back, or register again.") from None
    except PermissionError:
        raise DataError(f"{path} may not be read by this user; change its permissions.") from None
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _footer(path: Path, file: int, size: int) -> Table:
    head = os.pread(file, len(MAGIC), 0)
    if head.startswith(OLD_MAGIC):
        raise DataError(f"{path} is Feather of version 1; write it again as version 2.")
    if head != MAGIC:
        raise DataError(
            f"{path} is no Arrow IPC file (Feather 2): it does not begin as one. A stream is"
            " written as a file by pyarrow.ipc.new_file."
        )
    tail = os.pread(file, TAIL_BYTES, max(0, size - TAIL_BYTES))
    if not tail.endswith(MAGIC) or size < len(MAGIC) + TAIL_BYTES:
        raise _damaged(path, "it ends before its footer")
    [length] = struct.unpack_from("<i", tail)
    begin = size - TAIL_BYTES - length
    if length <= 0 or begin < len(MAGIC):
        raise _damaged(path, "its footer is longer than the file")
    footer = Table.root(os.pread(file, length, begin))
    schema = footer.table(1)
    if schema is None or schema.number(0, "int16") != ENDIANNESS[sys.byteorder]:
        raise DataError(f"{path} is written in another byte order; write it on such a machine.")
    return footer


def _batch(file: int, block: np.void) -> _Batch:
    """What the head of a record batch says; ValueError."""
    offset, head_bytes, body_bytes = (int(block[name]) for name in ("offset", "head", "body"))
    end = offset + head_bytes + body_bytes
    if min(offset, head_bytes, body_bytes) < 0 or end > os.fstat(file).st_size:
        raise ValueError("a record batch reaches beyond its end")
    head = os.pread(file, head_bytes, offset)
    # A length, and since version 0.15 a mark before it.
    message = Table.root(head[8 if head.startswith(b"\xff\xff\xff\xff") else 4 :])
    batch = message.table(2)
    if batch is None or message.number(1, "uint8") != RECORD_BATCH:
        raise ValueError("its footer names what is no record batch")
    packed = batch.table(3)
    codec = PLAIN if packed is None else packed.number(0, "uint8")
    if codec not in range(PLAIN, len(CODECS)):
        raise ValueError("it is packed in a way that is not known here")
    return _Batch(
        batch.number(0, "int64"),
        batch.vector(1, PAIR), batch.vector(2, PAIR), batch.vector(4, "<i8"),
        codec, offset + head_bytes, body_bytes,
    )  # fmt: skip


def _file(path: Path, stat: os.stat_result, columns: Columns, batches: list[_Batch]) -> ArrowFile:
    for batch in batches:
        more = int(batch.views.sum())
        expected = columns.nodes, columns.buffers + more, columns.views
        found = len(batch.nodes), len(batch.buffers), len(batch.views)
        # Older writers leave out that there is nothing more.
        if found[:2] != expected[:2] or found[2] not in (expected[2], 0) or batch.rows < 0:
            raise ValueError("a record batch does not fit the columns")
    stored = {name: _stored(name, one, batches) for name, one in columns.usable.items()}
    rows = np.array([batch.rows for batch in batches], np.int64)
    codecs = np.array([batch.codec for batch in batches], np.int8)
    return ArrowFile(path, stat.st_size, stat.st_mtime_ns, columns, stored, rows, codecs)


def _stored(name: str, column: Column, batches: list[_Batch]) -> Stored:
    offsets, sizes = np.zeros((2, len(batches)), np.int64)
    nulls = 0
    for number, batch in enumerate(batches):
        nodes = batch.nodes[column.nodes.start : column.nodes.stop]
        nulls += int(nodes["second"].sum())
        more = int(batch.views[: column.views_before].sum())
        offset, size = (int(one) for one in batch.buffers[column.buffer + more])
        least = column.stored_bytes(batch.rows) if batch.codec == PLAIN else 8
        if int(nodes["first"][-1]) != batch.rows * column.numbers or size < least:
            raise ValueError(f"a record batch has fewer values of {name!r} than rows")
        if offset < 0 or offset + size > batch.body_bytes:
            raise ValueError(f"the values of {name!r} lie beyond their record batch")
        offsets[number], sizes[number] = batch.body + offset, size
    return Stored(offsets, sizes, nulls)


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} is damaged or cut short: {what}. Write it again, or restore it from a copy."
    )
