"""A run's folder: whose it is, and moving aside what another run left in its place."""

import json
import os
import time
from pathlib import Path

import structlog

from app.lifecycle import Reason
from app.store.records import NewEvent
from worker.launch.launcher import write_atomically
from worker.launch.locks import take_lock
from worker.regular_files import NotReadable, read_regular
from worker.start.preparation import NotHere

log = structlog.get_logger("stoker.worker")

OWNER = "run.json"


def settle_in(folder: Path, run_id: int, attempt: int, created_at: float) -> list[NewEvent]:
    """Make the folder the run's own: what another run with its id left there is moved aside, which
    happens after a database was put back. A warning for it. NotHere, OSError.
    """
    owner = {"run_id": run_id, "created_at": created_at}
    found = _read_owner(folder)
    is_empty = not any(folder.glob("attempt-*"))
    # Attempts from before folders named their run are the run's own, unless it has had none.
    is_own = found == owner if found is not None else is_empty or attempt > 1
    warnings = [] if is_own or is_empty else [_move_aside(folder, run_id)]
    if found != owner:
        write_atomically(folder / OWNER, owner)
    if (folder / f"attempt-{attempt}").exists():
        raise NotHere(
            Reason.slot_busy,
            f"Requeued: the folder of attempt {attempt} already exists, so the database was "
            "probably restored from an older backup. The next attempt takes the next number.",
        )
    return warnings


def _read_owner(folder: Path) -> object:
    """None where it is not told; OSError when it cannot be read."""
    try:
        return json.loads(read_regular(folder / OWNER))
    except (FileNotFoundError, NotReadable, ValueError):
        return None


def _move_aside(folder: Path, run_id: int) -> NewEvent:
    lock = take_lock(folder / "lock")
    if lock is None:
        raise NotHere(Reason.slot_busy, f"Requeued: {folder} is in use by another run.")
    try:
        aside = folder.with_name(f"{folder.name}-moved-aside-{time.time_ns()}")
        folder.rename(aside)
    finally:
        os.close(lock)
    folder.mkdir()
    log.warning("another run's artifacts are moved aside", run=run_id, to=str(aside))
    message = (
        f"{folder} held the artifacts of another run with the id {run_id}, from before the "
        f"database was put back or replaced. They are in {aside} now, as they were, and nothing of "
        "them is used; remove them if nobody needs them."
    )
    return NewEvent("warning", time.time(), {"code": "other_artifacts_there", "message": message})
