"""Pages of lists that belong to one run: read as a whole, shown piece by piece."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from app.store.cursor import cursor_of, parse_key

T = TypeVar("T")


def page_of(
    records: Sequence[T], key: Callable[[T], tuple[int, ...]], limit: int, after: str | None
) -> tuple[list[T], str | None]:
    """(at most `limit` records after the cursor, the next cursor); `key` orders the records."""
    if after is not None and records:
        start = parse_key(after, len(key(records[0])))
        records = [record for record in records if key(record) > start]
    page = list(records[:limit])
    return page, cursor_of(*key(page[-1])) if len(records) > limit else None
