"""Logs: of each attempt's output, the first 256 KiB and the last 4 MiB."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from app.store.engine.database import Database
from app.store.records import LogChunk
from app.store.tables import log_pieces

HEAD_BYTES = 256 << 10
TAIL_BYTES = 4 << 20
PIECE_BYTES = 64 << 10


class Logs:
    """Reads logs, which beats write (`add_log_text`). Offsets are bytes of UTF-8 from the start of
    an attempt's log.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(
        self,
        run_id: int,
        attempt: int | None = None,
        after_offset: int = 0,
        limit_bytes: int = 1 << 20,
    ) -> LogChunk:
        """Text from an offset on, at most about `limit_bytes`; attempt None: the last one.

        A chunk does not span what was dropped: what follows it is in the next chunk.
        """
        with self._database.read() as connection:
            if attempt is None:
                last = select(func.max(log_pieces.c.attempt)).where(log_pieces.c.run_id == run_id)
                attempt = connection.execute(last).scalar() or 1
            here = (log_pieces.c.run_id == run_id, log_pieces.c.attempt == attempt)
            first = connection.execute(
                select(func.min(log_pieces.c.start)).where(*here, log_pieces.c.end > after_offset)
            ).scalar()
            if first is None:
                return LogChunk("", after_offset, 0)
            begin = max(after_offset, first)
            wanted = select(log_pieces.c.start, log_pieces.c.end, log_pieces.c.text).where(
                *here, log_pieces.c.end > begin, log_pieces.c.start < begin + limit_bytes
            )
            rows = connection.execute(wanted.order_by(log_pieces.c.start)).all()
        data = _joined(rows, begin)
        head = _bytes_within_character(data)
        text = data[head : head + max(limit_bytes, 4)].decode("utf-8", "ignore")
        return LogChunk(text, begin + head + len(text.encode()), begin - after_offset)


def _joined(pieces: Iterable[Any], begin: int) -> bytes:
    """The bytes from `begin` to the first gap between pieces, each a row (start, end, text)."""
    data, end = bytearray(), begin
    for start, stop, text in pieces:
        if start > end:
            break
        data += text.encode()[end - start :]
        end = stop
    return bytes(data)


def _bytes_within_character(data: bytes) -> int:
    """How many bytes at the start continue a character that began before."""
    return next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), len(data))


def add_log_text(connection: Connection, run_id: int, attempt: int, end: int, text: str) -> None:
    """Append text whose last byte is at `end` of the attempt's log; drop what is neither head nor
    tail by now.
    """
    pieces = []
    start = end - len(text.encode())
    for piece in _cut(text):
        stop = start + len(piece.encode())
        if start < HEAD_BYTES or stop > end - TAIL_BYTES:
            pieces.append(
                {"run_id": run_id, "attempt": attempt, "start": start, "end": stop, "text": piece}
            )
        start = stop
    connection.execute(insert(log_pieces), pieces)
    if end > HEAD_BYTES + TAIL_BYTES:
        connection.execute(
            delete(log_pieces).where(
                log_pieces.c.run_id == run_id,
                log_pieces.c.attempt == attempt,
                log_pieces.c.start >= HEAD_BYTES,
                log_pieces.c.end <= end - TAIL_BYTES,
            )
        )


def _cut(text: str) -> list[str]:
    size = PIECE_BYTES // 4  # characters; the longest in UTF-8 have four bytes
    return [text[i : i + size] for i in range(0, len(text), size)]
