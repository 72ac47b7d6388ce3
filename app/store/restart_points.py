"""Which checkpoint a restart goes on from."""

from typing import Any

from sqlalchemy import Connection, Row, select

from app.errors import InvalidRequest
from app.lifecycle import TERMINAL
from app.store.checkpoints import SAVED, best_of, latest_of
from app.store.tables import checkpoints, runs

# Restarts of restarts that have saved nothing of their own; a longer chain is not followed.
MAX_ANCESTORS = 100


def choose_checkpoint(
    connection: Connection, parent: Row[Any], restart_from: str | int
) -> int | None:
    """The checkpoint to hold for a child, as of now; None when there is none yet, or no need.

    InvalidRequest when what was asked for does not exist and cannot come to exist.
    """
    if restart_from == "scratch":
        return None
    if isinstance(restart_from, int):
        return _named(connection, parent, restart_from)
    chosen = newest_or_best(connection, parent.id, restart_from)
    if chosen is None and restart_from == "best" and parent.state in TERMINAL:
        raise InvalidRequest(
            f"Run {parent.id} has no best checkpoint, since none was saved after an evaluation. "
            "Restart it from latest or from scratch.",
            code="no_such_checkpoint",
        )
    return chosen


def newest_or_best(connection: Connection, run_id: int, which: str) -> int | None:
    """A run's own latest or best; of one that saved nothing, what it had gone on from itself."""
    choose = best_of if which == "best" else latest_of
    current: int | None = run_id
    for _ in range(MAX_ANCESTORS):
        if current is None:
            return None
        own = choose(connection, current)
        if own is not None or latest_of(connection, current) is not None:
            return own
        row = connection.execute(
            select(runs.c.parent_id, runs.c.restart_from, runs.c.restart_checkpoint_id).where(
                runs.c.id == current
            )
        ).one()
        if row.restart_checkpoint_id is not None:
            return int(row.restart_checkpoint_id)
        current = row.parent_id if row.restart_from in ("latest", "best") else None
    return None


def _named(connection: Connection, parent: Row[Any], checkpoint_id: int) -> int:
    row = connection.execute(
        select(checkpoints.c.run_id, checkpoints.c.state).where(checkpoints.c.id == checkpoint_id)
    ).one_or_none()
    lineage = _lineage(connection, parent.id)
    if row is None or row.state != SAVED or row.run_id not in lineage:
        raise InvalidRequest(
            f"Checkpoint {checkpoint_id} is not a saved one of run {parent.id} or of the runs it "
            f"was restarted from. `stoker checkpoints {parent.id}` shows what there is.",
            code="no_such_checkpoint",
        )
    return checkpoint_id


def _lineage(connection: Connection, run_id: int) -> list[int]:
    """The run, its parent, its parent's parent …"""
    found: list[int] = []
    current: int | None = run_id
    while current is not None and len(found) < MAX_ANCESTORS:
        found.append(current)
        current = connection.execute(
            select(runs.c.parent_id).where(runs.c.id == current)
        ).scalar_one()
    return found
