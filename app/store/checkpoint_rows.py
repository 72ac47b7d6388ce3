"""Rows of checkpoints as workers tell of them: saved, found damaged, gone."""

import math
import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, delete, exists, insert, select, update

from app.store.records import DamagedCheckpoint, NewCheckpoint
from app.store.tables import checkpoints, run_documents

SAVED, DAMAGED, REMOVING = "saved", "damaged", "removing"
# Of so many digits as their columns hold: somebody may have named a folder otherwise.
ATTEMPT_IN_PATH = re.compile(r"/attempt-(\d{1,9})/")
STEP_AT_END = re.compile(r"/step-(\d{1,18})$")


def add_checkpoints(
    connection: Connection, run_id: int, attempt: int, news: Sequence[NewCheckpoint]
) -> int:
    """Add rows, also for those adopted from an earlier attempt; how many are this attempt's.

    One that was damaged, and is whole again, can be used again.
    """
    if not news:
        return 0
    spec = connection.execute(
        select(run_documents.c.spec).where(run_documents.c.run_id == run_id)
    ).scalar_one()
    policy = spec.get("checkpoint") or {}
    same_path = checkpoints.c.path.in_([new.path for new in news])
    known = set(connection.execute(select(checkpoints.c.path).where(same_path)).scalars())
    if known:
        whole_again = update(checkpoints).where(same_path, checkpoints.c.state == DAMAGED)
        connection.execute(whole_again.values(state=SAVED, damage=None))
    rows = [
        {
            "run_id": run_id,
            "attempt": _attempt_of(new.path, attempt),
            "step": new.step,
            "epoch": new.epoch,
            "path": new.path,
            "bytes": new.bytes,
            "metrics": new.metrics,
            "score": _score(new.metrics.get(str(policy.get("monitor"))), policy.get("mode")),
            "pinned": False,
            "state": SAVED,
            "created_at": new.created_at,
        }
        for new in news
        if new.path not in known
    ]
    if rows:
        connection.execute(insert(checkpoints), rows)
    return sum(row["attempt"] == attempt for row in rows)


def damage_checkpoints(
    connection: Connection, run_id: int, attempt: int, found: Sequence[DamagedCheckpoint]
) -> None:
    """Note what cannot be used, and why. One that no row is known of gets one: it is listed too."""
    for one in found:
        at_path = checkpoints.c.path == one.path
        state = connection.execute(select(checkpoints.c.state).where(at_path)).scalar()
        if state is None:
            row = {
                "run_id": run_id,
                "attempt": _attempt_of(one.path, attempt),
                "step": _step_of(one.path),
                "epoch": 0,
                "path": one.path,
                "bytes": 0,
                "metrics": {},
                "pinned": False,
                "state": DAMAGED,
                "damage": one.why,
                "created_at": 0.0,
            }
            connection.execute(insert(checkpoints), row)
        elif state == SAVED:
            connection.execute(
                update(checkpoints).where(at_path).values(state=DAMAGED, damage=one.why)
            )


def forget_checkpoints(connection: Connection, run_id: int, paths: Sequence[str]) -> None:
    """Delete the rows of folders that are gone.

    One whose removal had begun and that somebody holds now stays as it is, for a beat must not wait
    for it: the disk is looked at once more when the run has ended (`has_removing`).
    """
    if not paths:
        return
    named = and_(checkpoints.c.run_id == run_id, checkpoints.c.path.in_(paths))
    begun = checkpoints.c.state == REMOVING
    free = select(checkpoints.c.id).where(named, begun).with_for_update(skip_locked=True)
    connection.execute(delete(checkpoints).where(checkpoints.c.id.in_(free)))
    connection.execute(delete(checkpoints).where(named, ~begun))


def has_removing(connection: Connection, run_id: int) -> bool:
    """Whether the removal of one has begun, and is not known to be done."""
    query = select(exists().where(checkpoints.c.run_id == run_id, checkpoints.c.state == REMOVING))
    return bool(connection.execute(query).scalar())


def _attempt_of(path: str, otherwise: int) -> int:
    found = ATTEMPT_IN_PATH.search(path)
    return int(found[1]) if found else otherwise


def _step_of(path: str) -> int:
    found = STEP_AT_END.search(path)
    return int(found[1]) if found else 0


def _score(value: Any, mode: str | None) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return -float(value) if mode == "max" else float(value)
