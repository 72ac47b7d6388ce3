"""The child of a job: what lies on disk of a run that ended while nobody watched it.

`python -m worker.reconcile ARTIFACT_ROOT RUN_DIR` reads the rows that the store knows from standard
input, as JSON, and prints what the store has yet to learn. It ends with 1 and a sentence when that
cannot be said now.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from app.store.records import CheckpointRecord
from worker.checkpoints import Unreadable, on_disk, reconcile
from worker.slots import take_lock

# The trainer of a lost worker gets the grace time to save what it has.
LOCK_SECONDS = 300.0
LOCK_RETRY_SECONDS = 0.2


def main(artifact_root: Path, run_dir: Path) -> int:
    rows = [CheckpointRecord(**row) for row in json.load(sys.stdin)]
    lock = _wait_for_lock(run_dir / "lock") if run_dir.is_dir() else None
    if run_dir.is_dir() and lock is None:
        sys.stderr.write("processes of the run are still alive, and may be saving")
        return 1
    try:
        found = reconcile(rows, on_disk(run_dir), artifact_root)
    except Unreadable as error:
        sys.stderr.write(str(error))
        return 1
    finally:
        if lock is not None:
            os.close(lock)
    sys.stdout.write(json.dumps(asdict(found)))
    return 0


def _wait_for_lock(path: Path) -> int | None:
    deadline = time.monotonic() + LOCK_SECONDS
    while (lock := take_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(LOCK_RETRY_SECONDS)
    return lock


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
