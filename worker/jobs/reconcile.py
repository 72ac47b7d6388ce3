"""The child of a job: what lies on disk of a run that ended before all of it was told.

`python -m worker.jobs.reconcile ARTIFACT_ROOT DATABASE_ID RUN_ID` reads what the store knows from
standard input: the checkpoints and attempts, as JSON. It prints what the store has yet to learn of
checkpoints, logs, events and curves. Removals that had begun are finished. It ends with 1 and a
sentence when that cannot be said now.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from app.store.artifact_root import is_marked
from app.store.records import AttemptRecord, CheckpointRecord
from worker.agent.checkpoint_folders import Reconciled, Unreadable, on_disk, reconcile, remove
from worker.agent.unsent import unsent_of
from worker.launch.locks import take_lock

# Whoever holds it may be saving for minutes, and this is the worker's only place for a job.
LOCK_SECONDS = 3.0
LOCK_RETRY_SECONDS = 0.2
MOST_UNSENT_BYTES = 12 * 2**20


def main(artifact_root: Path, database_id: str, run_id: int) -> int:
    known = json.load(sys.stdin)
    rows = [CheckpointRecord(**row) for row in known["checkpoints"]]
    attempts = [AttemptRecord(**row) for row in known["attempts"]]
    if not is_marked(artifact_root, database_id):
        return _cannot_say(f"the artifact root {artifact_root} is away")
    run_dir, lock = artifact_root / "runs" / str(run_id), None
    try:
        if run_dir.is_dir():
            lock = _wait_for_lock(run_dir / "lock")
            if lock is None:
                return _cannot_say("processes of the run are still alive, and may be saving")
        found = asdict(_compare(rows, artifact_root, run_dir))
        found["unsent"] = _read_unsent(run_dir, attempts, artifact_root)
    except Unreadable as error:
        return _cannot_say(str(error))
    except OSError as error:  # such as of a folder that is being removed
        path = error.filename or run_dir / "lock"  # a lock is asked for by its descriptor
        return _cannot_say(f"{path} cannot be opened ({error.strerror})")
    finally:
        if lock is not None:
            os.close(lock)
    if not is_marked(artifact_root, database_id):
        return _cannot_say(f"the artifact root {artifact_root} went away meanwhile")
    sys.stdout.write(json.dumps(found))
    return 0


def _read_unsent(
    run_dir: Path, attempts: Sequence[AttemptRecord], artifact_root: Path
) -> list[dict[str, Any]]:
    """Returns what fits into the job's answer; the store takes the pieces in this order."""
    documents, size = [], 0
    for unsent in unsent_of(run_dir, attempts, artifact_root):
        document = asdict(unsent)
        size += len(json.dumps(document))
        if size > MOST_UNSENT_BYTES:
            break
        documents.append(document)
    return documents


def _compare(rows: Sequence[CheckpointRecord], artifact_root: Path, run_dir: Path) -> Reconciled:
    """What was to be removed and cannot be is judged as if it had been kept. Raises Unreadable."""
    doomed = [row for row in rows if row.state == "removing"]
    kept = {row.path for row in doomed if not _is_removed(artifact_root / row.path)}
    known = [_as_it_was(row) if row.path in kept else row for row in rows]
    return reconcile(known, on_disk(run_dir), artifact_root)


def _as_it_was(row: CheckpointRecord) -> CheckpointRecord:
    return replace(row, state="saved" if row.damage is None else "damaged")


def _is_removed(path: Path) -> bool:
    try:
        remove(path)
    except OSError:
        return False
    return True


def _cannot_say(why: str) -> int:
    sys.stderr.write(f"What the run has left cannot be looked at now: {why.rstrip('.')}.")
    return 1


def _wait_for_lock(path: Path) -> int | None:
    deadline = time.monotonic() + LOCK_SECONDS
    while (lock := take_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(LOCK_RETRY_SECONDS)
    return lock


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
