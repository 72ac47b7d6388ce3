"""Exports: ordered of a checkpoint, made by a worker, listed, removed."""

from typing import Any

from sqlalchemy import Connection, Row, select, update

from app.errors import Conflict, NotFound
from app.store.checkpoint_rows import REMOVING, SAVED
from app.store.datasets import pinned_datasets
from app.store.engine.clock import Clock
from app.store.engine.cursor import page_by_id
from app.store.engine.database import Database, retried
from app.store.jobs import add_job, get_job, has_open_job, open_job
from app.store.records import DatasetRecord, Document, StoredPage
from app.store.tables import checkpoints, exports, run_documents, runs
from app.store.weights.export_rows import (
    EXPORT,
    ExportRecord,
    Format,
    export_path,
    hold_run,
)
from app.store.worker_records import JobRecord

_COLUMNS = [exports.c[name] for name in ExportRecord.__dataclass_fields__]


class Exports:
    """Orders, lists and removes exports; rows are written where a job ends (export_rows)."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @retried
    def order(self, checkpoint_id: int, format_: Format) -> JobRecord:
        """Have a worker make it; the job, or the one that makes the same already. NotFound;
        Conflict where the checkpoint is on its way out, or the export is.
        """
        which = checkpoints.c.id == checkpoint_id
        with self._database.write(ring=True) as connection:
            run_id = connection.execute(select(checkpoints.c.run_id).where(which)).scalar()
            if run_id is not None:
                hold_run(connection, run_id)
            held = select(checkpoints).where(which).with_for_update()
            row = connection.execute(held).one_or_none()
            if row is None or row.state != SAVED:
                raise NotFound(
                    f"There is no checkpoint {checkpoint_id} that could be read: it was removed, "
                    "or is damaged. `stoker checkpoints RUN` shows those of a run."
                )
            payload: Document = {
                "run_id": row.run_id,
                "checkpoint_id": checkpoint_id,
                "step": row.step,
                "format": format_,
            }
            _require_not_vanishing(connection, export_path(payload))
            job_id = open_job(connection, EXPORT, payload)
            if job_id is None:
                job_id = add_job(connection, EXPORT, payload, self._clock())
            return get_job(connection, job_id)

    def what_to_read(self, checkpoint_id: int) -> tuple[str, Document, dict[str, DatasetRecord]]:
        """Of a checkpoint to export: its path below ARTIFACT_ROOT, its run's spec and the datasets
        that the run has read. NotFound where it is gone.
        """
        wanted = (
            select(checkpoints.c.path, checkpoints.c.run_id, run_documents.c.spec)
            .join(run_documents, run_documents.c.run_id == checkpoints.c.run_id)
            .join(runs, runs.c.id == checkpoints.c.run_id)
            .where(checkpoints.c.id == checkpoint_id, runs.c.deleted_at.is_(None))
        )
        with self._database.read() as connection:
            row = connection.execute(wanted).one_or_none()
            if row is None:
                raise NotFound(f"Checkpoint {checkpoint_id} was removed, so it is not exported.")
            return row.path, row.spec, pinned_datasets(connection, row.run_id)

    def list(self, run_id: int, limit: int, after: str | None = None) -> StoredPage[ExportRecord]:
        """Those of a run, newest first, also those about to be removed; `after`: a cursor."""
        wanted = select(*_COLUMNS).where(exports.c.run_id == run_id)
        with self._database.read() as connection:
            return page_by_id(connection, wanted, exports.c.id, limit, after, _to_record)

    def get(self, export_id: int) -> ExportRecord:
        """NotFound when there is none, or none any more."""
        with self._database.read() as connection:
            return _to_record(_fetch(connection, export_id))

    @retried
    def request_delete(self, export_id: int) -> ExportRecord:
        """Have a worker remove it. Asked again while that is under way, it changes nothing.

        NotFound; Conflict while the same is being made again.
        """
        with self._database.write(ring=True) as connection:
            hold_run(connection, _fetch(connection, export_id).run_id)
            row = _fetch(connection, export_id)
            _require_not_being_made(connection, row)
            leaving = update(exports).where(exports.c.id == export_id).values(state=REMOVING)
            connection.execute(leaving)
            payload = {
                "run_id": row.run_id,
                "paths": [row.path],
                "checkpoint_id": None,
                "export_id": export_id,
            }
            if not has_open_job(connection, "remove_artifacts", payload):
                add_job(connection, "remove_artifacts", payload, self._clock())
            return _to_record(_fetch(connection, export_id))


def _require_not_vanishing(connection: Connection, path: str) -> None:
    leaving = select(exports.c.id).where(exports.c.path == path, exports.c.state == REMOVING)
    if (export_id := connection.execute(leaving).scalar()) is not None:
        raise Conflict(
            f"Export {export_id}, which is the same, is being removed. Ask again in a moment.",
            code="export_in_removal",
        )


def _require_not_being_made(connection: Connection, row: Row[Any]) -> None:
    """What a job is making, or finds there, must not be removed under it."""
    payload = {name: getattr(row, name) for name in ("run_id", "checkpoint_id", "step", "format")}
    if (job_id := open_job(connection, EXPORT, payload)) is not None:
        raise Conflict(
            f"Export {row.id} was asked for once more, and a worker is about to make it (job "
            f"{job_id}). Remove it when that job has ended.",
            code="export_being_made",
        )


def _fetch(connection: Connection, export_id: int) -> Row[Any]:
    wanted = select(*_COLUMNS).where(exports.c.id == export_id)
    row = connection.execute(wanted).one_or_none()
    if row is None:
        raise NotFound(
            f"There is no export {export_id}, or it was removed. `stoker exports RUN` shows those "
            "of a run."
        )
    return row


def _to_record(row: Row[Any]) -> ExportRecord:
    return ExportRecord(**row._asdict())
