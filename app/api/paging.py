"""Pages of lists that belong to one run: read as a whole, shown piece by piece."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from app.store.cursor import not_a_cursor

T = TypeVar("T")
CURSOR = re.compile(r"-?[0-9]{1,18}(,-?[0-9]{1,18})*")


def page_of(
    records: Sequence[T], key: Callable[[T], tuple[int, ...]], limit: int, after: str | None
) -> tuple[list[T], str | None]:
    """(at most `limit` records after the cursor, the next cursor); `key` orders the records.

    The cursor is a key, so it keeps its place when the record that had it is gone.
    """
    if after is not None:
        start = _parse(after)
        if records and len(start) != len(key(records[0])):
            raise not_a_cursor(after)
        records = [record for record in records if key(record) > start]
    page = list(records[:limit])
    has_more = len(records) > limit
    return page, ",".join(map(str, key(page[-1]))) if has_more else None


def _parse(cursor: str) -> tuple[int, ...]:
    if CURSOR.fullmatch(cursor) is None:
        raise not_a_cursor(cursor)
    return tuple(int(part) for part in cursor.split(","))
