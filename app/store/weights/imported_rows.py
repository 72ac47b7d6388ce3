"""Runs of weights from elsewhere, as the jobs that read them tell of them."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, insert, select

from app.lifecycle import Intent, Reason, RunState
from app.spec.imported import IMPORTED, imported_spec
from app.spec.run import SPEC_VERSION
from app.store.checkpoint_rows import add_checkpoints
from app.store.records import Document, NewCheckpoint
from app.store.tables import (
    attempts,
    checkpoints,
    events,
    run_documents,
    run_labels,
    runs,
    workers,
)

IMPORT: Literal["import_checkpoint"] = "import_checkpoint"
ATTEMPT = 1


@dataclass(frozen=True)
class WantedImport:
    """`path` of the file, relative to DATA_ROOT; `key`: where in it the tensors lie; `rename`: the
    beginnings of their names, and what stands there instead.
    """

    path: str
    name: str
    notes: str
    labels: dict[str, str]
    key: str | None
    rename: dict[str, str]
    created_by: str | None


def imported_path(run_id: int) -> str:
    """Where the checkpoint lies, relative to ARTIFACT_ROOT."""
    return f"runs/{run_id}/attempt-{ATTEMPT}/checkpoints/step-0"


def add_imported_run(
    connection: Connection, payload: Document, read: Document, worker_id: int | None, now: float
) -> int:
    """A run that has succeeded, with the checkpoint that a job has `read`; the checkpoint's id. The
    run's id was taken when the job was ordered.
    """
    run_id, message = payload["run_id"], f"Imported from {payload['path']}. {read['message']}"
    query = select(workers.c.name).where(workers.c.id == worker_id)
    worker: str = connection.execute(query).scalar_one()  # the job's row keeps the worker's
    connection.execute(insert(runs), _row(payload, message, worker, now))
    spec = imported_spec(payload["path"], payload["name"])
    documents: Document = {"request": spec, "spec": spec, "provenance": {}, "issues": []}
    connection.execute(insert(run_documents), {"run_id": run_id, **documents})
    labels = [
        {"run_id": run_id, "key": key, "value": value} for key, value in payload["labels"].items()
    ]
    if labels:
        connection.execute(insert(run_labels), labels)
    connection.execute(insert(attempts), _attempt(run_id, message, worker, now))
    connection.execute(insert(events), _event(run_id, message, now))
    add_checkpoints(connection, run_id, ATTEMPT, [NewCheckpoint(**read["checkpoint"])])
    of_run = select(checkpoints.c.id).where(checkpoints.c.run_id == run_id)
    checkpoint_id: int = connection.execute(of_run).scalar_one()
    return checkpoint_id


def _row(payload: Document, message: str, worker: str, now: float) -> dict[str, Any]:
    names = ("name", "notes", "labels", "created_by")
    return {
        "id": payload["run_id"],
        **{name: payload[name] for name in names},
        "priority": 0,
        "place": payload["run_id"],
        "recipe": IMPORTED,
        "mode": "train",
        "device": "cpu",
        "gpus": 1,
        "spec_version": SPEC_VERSION,
        "max_retries": 0,
        "accepted_risks": [],
        "state": RunState.succeeded.value,
        "intent": Intent.run.value,
        "reason": Reason.completed.value,
        "message": message,
        "version": 1,
        "attempt": ATTEMPT,
        "worker": worker,
        "devices": [],
        "beat": 0,
        "retries_used": 0,
        "losses": 0,
        "last_event_seq": 1,
        "log_bytes": 0,
        "created_at": now,
        "started_at": now,
        "finished_at": now,
    }


def _attempt(run_id: int, message: str, worker: str, now: float) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "number": ATTEMPT,
        "worker": worker,
        "state": RunState.succeeded.value,
        "reason": Reason.completed.value,
        "message": message,
        "devices": [],
        "started_at": now,
        "finished_at": now,
        "saved_checkpoints": 1,
        "log_bytes": 0,
    }


def _event(run_id: int, message: str, now: float) -> dict[str, Any]:
    moved = {"from": None, "to": "succeeded", "reason": "completed", "intent": "run"}
    data = {**moved, "message": message}
    return {"run_id": run_id, "seq": 1, "t": now, "attempt": 1, "kind": "state", "data": data}
