"""The child of a job: what lies on disk of a run that ended while nobody watched it.

`python -m worker.reconcile ARTIFACT_ROOT DATABASE_ID RUN_DIR` reads the rows that the store knows
from standard input, as JSON, and prints what the store has yet to learn. It ends with 1 and a
sentence when that cannot be said now.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from app.store.artifact_root import is_marked
from app.store.records import CheckpointRecord
from worker.checkpoints import Unreadable, on_disk, reconcile
from worker.slots import take_lock

# The trainer of a lost worker gets the grace time to save what it has.
LOCK_SECONDS = 300.0
LOCK_RETRY_SECONDS = 0.2


def main(artifact_root: Path, database_id: str, run_dir: Path) -> int:
    rows = [CheckpointRecord(**row) for row in json.load(sys.stdin)]
    if not is_marked(artifact_root, database_id):
        return _cannot_say(f"the artifact root {artifact_root} is away")
    lock = _wait_for_lock(run_dir / "lock") if run_dir.is_dir() else None
    if run_dir.is_dir() and lock is None:
        return _cannot_say("processes of the run are still alive, and may be saving")
    try:
        found = reconcile(rows, on_disk(run_dir), artifact_root)
    except Unreadable as error:
        return _cannot_say(str(error))
    finally:
        if lock is not None:
            os.close(lock)
    if not is_marked(artifact_root, database_id):
        return _cannot_say(f"the artifact root {artifact_root} went away meanwhile")
    sys.stdout.write(json.dumps(asdict(found)))
    return 0


def _cannot_say(why: str) -> int:
    sys.stderr.write(why)
    return 1


def _wait_for_lock(path: Path) -> int | None:
    deadline = time.monotonic() + LOCK_SECONDS
    while (lock := take_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(LOCK_RETRY_SECONDS)
    return lock


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
