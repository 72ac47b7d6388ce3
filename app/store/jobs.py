"""Jobs: what needs a worker's disk or libraries, done by an agent's child."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from app.errors import LeaseLost, NotFound
from app.store.database import Database
from app.store.records import Document, JobKind, JobRecord
from app.store.tables import checkpoints, datasets, jobs

MAX_ATTEMPTS = 3
_COLUMNS = [jobs.c[name] for name in JobRecord.__dataclass_fields__]


class Jobs:
    """A queue in the order of ids; a job belongs to the worker that claimed it."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    def enqueue(self, kind: JobKind, payload: Document) -> int:
        """Queue a job; its id."""
        with self._database.write() as connection:
            return add_job(connection, kind, payload, self._clock())

    def claim(self, worker_id: int) -> JobRecord | None:
        """The oldest queued job, now this worker's; None when there is none."""
        oldest = select(jobs.c.id).where(jobs.c.state == "queued").order_by(jobs.c.id).limit(1)
        with self._database.read() as connection:
            if connection.execute(oldest).scalar() is None:
                return None
        with self._database.write(quiet=True) as connection:
            job_id = connection.execute(oldest.with_for_update(skip_locked=True)).scalar()
            if job_id is None:
                return None
            taken = (
                update(jobs)
                .where(jobs.c.id == job_id)
                .values(state="running", worker_id=worker_id, attempts=jobs.c.attempts + 1)
                .returning(*_COLUMNS)
            )
            return _to_record(connection.execute(taken).one())

    def finish(
        self,
        job_id: int,
        worker_id: int,
        *,
        result: Document | None = None,
        error: str | None = None,
    ) -> JobRecord:
        """Record the end; `error` is a sentence. LeaseLost when it is another worker's by now."""
        done = (
            update(jobs)
            .where(jobs.c.id == job_id, jobs.c.worker_id == worker_id, jobs.c.state == "running")
            .values(
                state="done" if error is None else "failed",
                result=result,
                error=error,
                finished_at=self._clock(),
            )
            .returning(*_COLUMNS)
        )
        with self._database.write() as connection:
            row = connection.execute(done).one_or_none()
            if row is None:
                raise LeaseLost(f"Job {job_id} is not worker {worker_id}'s any more.")
            record = _to_record(row)
            _follow_up(connection, record)
            return record

    def get(self, job_id: int) -> JobRecord:
        """NotFound when there is none."""
        with self._database.read() as connection:
            row = connection.execute(select(*_COLUMNS).where(jobs.c.id == job_id)).one_or_none()
        if row is None:
            raise NotFound(f"There is no job {job_id}.")
        return _to_record(row)


def add_job(connection: Connection, kind: JobKind, payload: Document, now: float) -> int:
    """Queue a job within a transaction; its id."""
    row = {"kind": kind, "payload": payload, "state": "queued", "attempts": 0, "created_at": now}
    statement = insert(jobs).values(row).returning(jobs.c.id)
    job_id: int = connection.execute(statement).scalar_one()
    return job_id


def requeue_jobs_of(connection: Connection, worker_id: int, now: float) -> None:
    """Queue what a lost worker was doing; give up what has taken several workers with it."""
    mine = (jobs.c.worker_id == worker_id, jobs.c.state == "running")
    given_up = (
        update(jobs)
        .where(*mine, jobs.c.attempts >= MAX_ATTEMPTS)
        .values(
            state="failed",
            error=f"The worker was lost {MAX_ATTEMPTS} times while it did this; it is not tried "
            "again. Its log may say why.",
            finished_at=now,
        )
        .returning(*_COLUMNS)
    )
    for row in connection.execute(given_up).all():
        _follow_up(connection, _to_record(row))
    connection.execute(update(jobs).where(*mine).values(state="queued", worker_id=None))


def _follow_up(connection: Connection, job: JobRecord) -> None:
    """What the end of a job means for what it was about."""
    if job.kind == "remove_artifacts" and job.state == "done":
        checkpoint_id = job.payload.get("checkpoint_id")
        connection.execute(delete(checkpoints).where(checkpoints.c.id == checkpoint_id))
    if job.kind == "inspect_dataset" and job.state == "failed":
        connection.execute(
            update(datasets)
            .where(datasets.c.name == job.payload["name"], datasets.c.state == "inspecting")
            .values(state="invalid", message=job.error, updated_at=job.finished_at)
        )


def _to_record(row: Row[Any]) -> JobRecord:
    return JobRecord(**row._asdict())
