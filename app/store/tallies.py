"""How many runs ended how: counted as they end, so that asking does not read the history."""

from sqlalchemy import Connection, select

from app.store.dialect import add_up
from app.store.tables import run_tallies


def count_ended(connection: Connection, state: str, reason: str) -> None:
    """One more run is over."""
    _add(connection, state, reason, ended=1)


def count_deleted(connection: Connection, state: str, reason: str) -> None:
    """A run that is over was deleted."""
    _add(connection, state, reason, deleted=1)


def ended_runs(connection: Connection) -> dict[tuple[str, str], tuple[int, int]]:
    """By (state, reason): how many ended so, and how many of these were deleted."""
    rows = connection.execute(select(run_tallies))
    return {(row.state, row.reason): (row.ended, row.deleted) for row in rows}


def _add(
    connection: Connection, state: str, reason: str, *, ended: int = 0, deleted: int = 0
) -> None:
    row = {"state": state, "reason": reason, "ended": ended, "deleted": deleted}
    add_up(connection, run_tallies, row)
