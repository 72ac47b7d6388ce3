"""Cursors of keyset pages: the id of the last row of the page before."""

from app.errors import InvalidRequest

MAX_DIGITS = 18  # an id is a 64-bit integer


def not_a_cursor(given: str) -> InvalidRequest:
    """What is answered to a cursor that no page gave."""
    return InvalidRequest(
        f"{given[:40]!r} is not a cursor: give `next_cursor` of the page before as it is."
    )


def parse_cursor(cursor: str) -> int:
    """The id in a cursor; InvalidRequest when no page gave it."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= MAX_DIGITS):
        raise not_a_cursor(cursor)
    return int(cursor)
