"""Cursors of keyset pages: the key of the last row of the page before, its numbers joined."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select

from app.errors import InvalidRequest
from app.store.records import StoredPage


class _HasId(Protocol):
    @property
    def id(self) -> int: ...


R = TypeVar("R")
T = TypeVar("T", bound=_HasId)

CURSOR = re.compile(r"-?[0-9]{1,18}(,-?[0-9]{1,18})*")


def cursor_of(*key: int) -> str:
    """The cursor of a row; a key keeps its place when the row is gone."""
    return ",".join(map(str, key))


def parse_key(cursor: str, length: int) -> tuple[int, ...]:
    """The key in a cursor; InvalidRequest when no page of such keys gave it."""
    key = tuple(map(int, cursor.split(","))) if CURSOR.fullmatch(cursor) else ()
    if len(key) != length:
        raise not_a_cursor(cursor)
    return key


def not_a_cursor(given: str) -> InvalidRequest:
    """What is answered to a cursor that no page gave."""
    return InvalidRequest(
        f"{given[:40]!r} is not a cursor: give `next_cursor` of the page before as it is."
    )


def parse_cursor(cursor: str) -> int:
    """The id in the cursor of a list in the order of ids; InvalidRequest."""
    (last_id,) = parse_key(cursor, 1)
    if last_id < 0:
        raise not_a_cursor(cursor)
    return last_id


def page_by_id(
    connection: Connection,
    query: Select[Any],
    key: ColumnElement[int],
    limit: int,
    after: str | None,
    to_record: Callable[[Row[Any]], T],
) -> StoredPage[T]:
    """A page of what a query finds, newest first by `key`, its id; InvalidRequest for `after`."""
    if after is not None:
        query = query.where(key < parse_cursor(after))
    rows = connection.execute(query.order_by(key.desc()).limit(limit + 1)).all()
    records = [to_record(row) for row in rows[:limit]]
    return StoredPage(records, cursor_of(records[-1].id) if len(rows) > limit else None)


def page_of(
    records: Sequence[R], key: Callable[[R], tuple[int, ...]], limit: int, after: str | None
) -> tuple[list[R], str | None]:
    """Of a list that was read as a whole: at most `limit` after the cursor, and the next cursor.

    `key` orders the records.
    """
    if after is not None and records:
        start = parse_key(after, len(key(records[0])))
        records = [record for record in records if key(record) > start]
    page = list(records[:limit])
    return page, cursor_of(*key(page[-1])) if len(records) > limit else None
