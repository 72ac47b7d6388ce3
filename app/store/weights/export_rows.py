"""Rows of exports, as the jobs that make and remove them tell of them."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, delete, exists, insert, select, update

from app.store.checkpoint_rows import REMOVING, SAVED
from app.store.records import Document
from app.store.tables import checkpoints, exports, jobs, runs

EXPORT: Literal["export_checkpoint"] = "export_checkpoint"
Format = Literal["safetensors", "onnx", "int8"]

# While it is read, retention leaves a checkpoint alone.
is_being_exported = exists().where(
    jobs.c.kind == EXPORT,
    jobs.c.state.in_(["queued", "running"]),
    jobs.c.payload["checkpoint_id"].as_integer() == checkpoints.c.id,
)


@dataclass(frozen=True)
class ExportRecord:
    """A checkpoint in another format; `path` is relative to ARTIFACT_ROOT, `facts` are those of its
    manifest.
    """

    id: int
    run_id: int
    checkpoint_id: int
    step: int
    format: Format
    path: str
    bytes: int
    facts: Document
    state: Literal["saved", "removing"]
    created_at: float


def export_path(payload: Document) -> str:
    """Where the job of this payload puts it, relative to ARTIFACT_ROOT."""
    name = f"checkpoint-{payload['checkpoint_id']}-{payload['format']}"
    return f"runs/{payload['run_id']}/exports/{name}"


def hold_run(connection: Connection, run_id: int) -> bool:
    """Let nobody else order, add or remove an export of the run until the transaction ends. False:
    the run was deleted.
    """
    there = select(runs.c.id).where(runs.c.id == run_id, runs.c.deleted_at.is_(None))
    return connection.execute(there.with_for_update()).scalar() is not None


def add_export(connection: Connection, payload: Document, made: Document, now: float) -> int | None:
    """The id of what a job has made: that of the row that is there already, if the same was asked
    for twice. None: its run was deleted meanwhile.
    """
    if not hold_run(connection, payload["run_id"]):
        return None
    path, facts = export_path(payload), {"bytes": made["bytes"], "facts": made["facts"]}
    again = update(exports).where(exports.c.path == path).values(state=SAVED, **facts)
    known: int | None = connection.execute(again.returning(exports.c.id)).scalar()
    if known is not None:
        return known
    columns = ("run_id", "checkpoint_id", "step", "format")
    row: dict[str, Any] = {name: payload[name] for name in columns}
    row |= {**facts, "path": path, "state": SAVED, "created_at": now}
    new: int = connection.execute(insert(exports).values(row).returning(exports.c.id)).scalar_one()
    return new


def settle_removal(connection: Connection, export_id: int, *, is_gone: bool) -> None:
    """Forget it; or what is still there can be used, and asked to be removed, again."""
    which: ColumnElement[bool] = exports.c.id == export_id
    if is_gone:
        connection.execute(delete(exports).where(which, exports.c.state == REMOVING))
    else:
        connection.execute(update(exports).where(which).values(state=SAVED))
