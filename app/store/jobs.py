"""Jobs: what needs a worker's disk or libraries, done by an agent's child."""

from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    insert,
    or_,
    select,
    update,
)

from app.errors import LeaseLost, NotFound
from app.planning.profile import Measured, ProfileKey, points_of_probe
from app.store.checkpoint_rows import (
    DAMAGED,
    REMOVING,
    SAVED,
    add_checkpoints,
    damage_checkpoints,
    forget_checkpoints,
)
from app.store.engine.clock import Clock
from app.store.engine.database import Database, retried
from app.store.live_workers import require_alive
from app.store.records import DamagedCheckpoint, Document, Inspection, NewCheckpoint, Unsent
from app.store.runs.beats import add_unsent
from app.store.runs.expiry import expire_jobs
from app.store.tables import checkpoints, datasets, jobs, runs, workers
from app.store.telemetry.memory_profiles import add_measured
from app.store.weights.export_rows import EXPORT, add_export, export_path, settle_removal
from app.store.weights.imported_rows import IMPORT, add_imported_run
from app.store.worker_records import JobKind, JobRecord

MAX_ATTEMPTS = 3
# Processes of a run may be saving, or hang in the kernel: its folder is asked for during hours.
RECONCILE_ATTEMPTS = 100
# Tried again: a disk may be back later.
REPEATED = ("remove_artifacts", "reconcile_checkpoints")
# Done only where the artifact root is at hand.
OF_ARTIFACTS = (*REPEATED, EXPORT, IMPORT)
# They may take an hour, so that what is short, or what somebody waits for, goes first.
LONG = (EXPORT, IMPORT)
PROBE_LOST = "The worker ended, or was lost, before it had measured. Ask again."
# After the first failure; a disk or a mount may be back later. It grows sixfold each time.
RETRY_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 300.0
# Asked at each beat, and to build it costs more than to execute it.
_OLDEST_DUE = (
    select(jobs.c.id)
    .where(
        jobs.c.state == "queued",
        or_(jobs.c.retry_at.is_(None), jobs.c.retry_at <= bindparam("now")),
        or_(jobs.c.worker_id.is_(None), jobs.c.worker_id == bindparam("worker")),
        or_(jobs.c.kind.not_in(OF_ARTIFACTS), bindparam("artifacts", type_=Boolean)),
    )
    .order_by(jobs.c.kind.in_(LONG), jobs.c.id)
    .limit(1)
)
_MOST_ATTEMPTS = case(
    (jobs.c.kind == "reconcile_checkpoints", RECONCILE_ATTEMPTS), else_=MAX_ATTEMPTS
)
_COLUMNS = [jobs.c[name] for name in JobRecord.__dataclass_fields__]


class Jobs:
    """A queue in the order of ids, the long kinds last; a job is the worker's that claimed it."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @retried
    def claim(self, worker_id: int, *, artifacts: bool = True) -> JobRecord | None:
        """The next queued job that need not wait, and for no other worker; now this worker's.

        None when there is none. `artifacts`: whether the worker has the artifact root at hand.

        Conflict when the worker is not alive to the store: nobody would queue the job again.
        """
        due: Document = {"worker": worker_id, "artifacts": artifacts}
        with self._database.read() as connection:
            due["now"] = self._clock.of(connection)
            if connection.execute(_OLDEST_DUE, due).scalar() is None:
                return None
        with self._database.write() as connection:
            require_alive(connection, worker_id)
            held = _OLDEST_DUE.with_for_update(skip_locked=True)
            job_id = connection.execute(held, due).scalar()
            if job_id is None:
                return None
            taken = (
                update(jobs)
                .where(jobs.c.id == job_id)
                .values(state="running", worker_id=worker_id, attempts=jobs.c.attempts + 1)
                .returning(*_COLUMNS)
            )
            return _to_record(connection.execute(taken).one())

    @retried
    def finish(
        self,
        job_id: int,
        worker_id: int,
        *,
        inspection: Inspection | None = None,
        result: Document | None = None,
        error: str | None = None,
    ) -> JobRecord:
        """Record the end, with what an inspection or a probe found; `error` is a sentence.

        A job of the disk that failed is tried again later, but not for ever, and not once nothing
        could come of it. LeaseLost when the job is another worker's by now; nothing is stored then.
        """
        mine = (jobs.c.id == job_id, jobs.c.worker_id == worker_id, jobs.c.state == "running")
        with self._database.write(ring=True) as connection:
            job = connection.execute(
                select(jobs.c.kind, jobs.c.payload, jobs.c.attempts, _MOST_ATTEMPTS.label("most"))
                .where(*mine)
                .with_for_update()
            ).one_or_none()
            if job is None:
                raise LeaseLost(f"Job {job_id} is not worker {worker_id}'s any more.")
            is_left = job.attempts < job.most and not _is_outdated(
                connection, job.kind, job.payload
            )
            if error is not None and job.kind in REPEATED and is_left:
                wait = min(RETRY_SECONDS * 6.0 ** (job.attempts - 1), LONGEST_RETRY_SECONDS)
                retry_at = self._clock.of(connection) + wait
                return _requeue(connection, *mine, error=error, retry_at=retry_at)[0]
            (ended,) = _end(connection, *mine, error=error, now=self._clock(), result=result)
            if inspection is not None:
                _record_inspection(connection, ended, inspection)
            if ended.kind == "probe_step" and result is not None:
                _record_probe(connection, ended, result, worker_id)
            return ended

    @retried
    def order_probe(self, worker_id: int, payload: Document) -> int:
        """Queue a measurement for this worker alone; the job's id. Conflict when it takes none."""
        with self._database.write(ring=True) as connection:
            require_alive(connection, worker_id)
            return add_job(connection, "probe_step", payload, self._clock(), worker_id=worker_id)

    @retried
    def withdraw(self, job_id: int) -> None:
        """End a job that nobody waits for any more, if it has not begun."""
        with self._database.write() as connection:
            unbegun = (jobs.c.id == job_id, jobs.c.state == "queued")
            _end(connection, *unbegun, error="Nobody waits for it any more.", now=self._clock())

    def get(self, job_id: int) -> JobRecord:
        """NotFound when there is none."""
        with self._database.read() as connection:
            return get_job(connection, job_id)


def add_job(
    connection: Connection,
    kind: JobKind,
    payload: Document,
    now: float,
    worker_id: int | None = None,
) -> int:
    """Queue a job within a transaction, for one worker or for whoever comes first; its id."""
    expire_jobs(connection, now)
    row = {
        "kind": kind,
        "payload": payload,
        "state": "queued",
        "attempts": 0,
        "worker_id": worker_id,
        "created_at": now,
    }
    statement = insert(jobs).values(row).returning(jobs.c.id)
    job_id: int = connection.execute(statement).scalar_one()
    return job_id


def get_job(connection: Connection, job_id: int) -> JobRecord:
    """NotFound when there is none, or none any more."""
    row = connection.execute(select(*_COLUMNS).where(jobs.c.id == job_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no job {job_id}, or it ended more than a week ago.")
    return _to_record(row)


def order_reconciliation(connection: Connection, run_id: int, attempt: int, now: float) -> None:
    """Have a worker compare, once, what is known of a run's checkpoints with what lies on disk.

    For a run that is held by nobody after this attempt, and of whose folders not all was told.
    """
    payload = {"run_id": run_id, "attempt": attempt}
    if not has_open_job(connection, "reconcile_checkpoints", payload):
        add_job(connection, "reconcile_checkpoints", payload, now)


def has_open_job(connection: Connection, kind: JobKind, payload: Document) -> bool:
    """Whether the same is queued or under way already."""
    return open_job(connection, kind, payload) is not None


def open_job(connection: Connection, kind: JobKind, payload: Document) -> int | None:
    """The id of the job that does the same already, or will."""
    query = select(jobs.c.id, jobs.c.payload).where(
        jobs.c.kind == kind, jobs.c.state.in_(["queued", "running"])
    )
    found = [row.id for row in connection.execute(query) if row.payload == payload]
    return found[0] if found else None


def requeue_jobs_of(connection: Connection, worker_id: int, now: float) -> None:
    """Queue what a lost worker was doing; give up what has taken several workers with it."""
    probes = (
        jobs.c.worker_id == worker_id,
        jobs.c.kind == "probe_step",
        jobs.c.state.in_(["queued", "running"]),
    )
    _end(connection, *probes, error=PROBE_LOST, now=now)  # it was about this worker's device
    mine = (jobs.c.worker_id == worker_id, jobs.c.state == "running")
    error = (
        "The worker was lost while it did this, as others were before; it is not tried again. Its "
        "log may say why."
    )
    _end(connection, *mine, jobs.c.attempts >= _MOST_ATTEMPTS, error=error, now=now)
    _requeue(connection, *mine, error=None, retry_at=None)


def _requeue(
    connection: Connection,
    *which: ColumnElement[bool],
    error: str | None,
    retry_at: float | None,
) -> list[JobRecord]:
    again = (
        update(jobs)
        .where(*which)
        .values(state="queued", worker_id=None, error=error, retry_at=retry_at)
    )
    return [_to_record(row) for row in connection.execute(again.returning(*_COLUMNS))]


def _end(
    connection: Connection,
    *which: ColumnElement[bool],
    error: str | None,
    now: float,
    result: Document | None = None,
) -> list[JobRecord]:
    """End jobs, with what that means for what they were about."""
    end = (
        update(jobs)
        .where(*which)
        .values(
            state="done" if error is None else "failed", error=error, finished_at=now, result=result
        )
        .returning(*_COLUMNS)
    )
    ended = [_to_record(row) for row in connection.execute(end).all()]
    for job in ended:
        if job.kind == "remove_artifacts":
            _settle_removal(connection, job)
        elif job.kind == "reconcile_checkpoints":
            _settle_reconciliation(connection, job)
        elif job.kind == EXPORT and job.result is not None:
            _settle_export(connection, job, job.result)
        elif job.kind == IMPORT:
            _settle_import(connection, job)
        elif job.kind == "inspect_dataset" and error is not None:
            _record_inspection(connection, job, Inspection("invalid", message=error))
    return ended


def _settle_export(connection: Connection, job: JobRecord, made: Document) -> None:
    """Take in what was made; of a run that was deleted meanwhile it goes too, and none was made."""
    export_id = add_export(connection, job.payload, made, job.finished_at or 0.0)
    end: Document = {"result": {"export_id": export_id}}
    if export_id is None:
        run_id = job.payload["run_id"]
        payload = {"run_id": run_id, "paths": [export_path(job.payload)], "checkpoint_id": None}
        add_job(connection, "remove_artifacts", payload, job.finished_at or 0.0)
        error = f"Run {run_id} was deleted meanwhile, so nothing is kept of its export."
        end = {"state": "failed", "error": error, "result": None}
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(end))


def _settle_import(connection: Connection, job: JobRecord) -> None:
    """The run with what was read; or nothing, and nothing of it stays on the disk."""
    now, run_id = job.finished_at or 0.0, job.payload["run_id"]
    if job.result is None:
        payload = {"run_id": run_id, "paths": [f"runs/{run_id}"], "checkpoint_id": None}
        add_job(connection, "remove_artifacts", payload, now)
        return
    checkpoint_id = add_imported_run(connection, job.payload, job.result, job.worker_id, now)
    made = {"run_id": run_id, "checkpoint_id": checkpoint_id, "left": job.result["left"]}
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(result=made))


def _settle_removal(connection: Connection, job: JobRecord) -> None:
    if (export_id := job.payload.get("export_id")) is not None:
        settle_removal(connection, export_id, is_gone=job.state == "done")
        return
    checkpoint = checkpoints.c.id == job.payload["checkpoint_id"]
    if job.state == "done":
        connection.execute(delete(checkpoints).where(checkpoint))
    else:
        _give_up_removal(connection, checkpoint)


def _give_up_removal(connection: Connection, which: ColumnElement[bool]) -> None:
    """What is still there can be used, and asked to be removed, again."""
    as_it_was = case((checkpoints.c.damage.is_(None), SAVED), else_=DAMAGED)
    given_up = update(checkpoints).where(which, checkpoints.c.state == REMOVING)
    connection.execute(given_up.values(state=as_it_was))


def _ids_being_removed(connection: Connection) -> list[int]:
    """Of checkpoints that a person has asked to be removed: jobs of their own settle these."""
    open_ones = select(jobs.c.payload).where(
        jobs.c.kind == "remove_artifacts", jobs.c.state.in_(["queued", "running"])
    )
    ids = [payload["checkpoint_id"] for payload in connection.execute(open_ones).scalars()]
    return [one for one in ids if one is not None]


def _as_ordered(payload: Document) -> Select[Any]:
    """The run of a reconciliation, if it still is as it was when that was ordered."""
    return select(runs.c.id).where(
        runs.c.id == payload["run_id"],
        runs.c.attempt == payload["attempt"],
        runs.c.deleted_at.is_(None),
    )


def _is_outdated(connection: Connection, kind: JobKind, payload: Document) -> bool:
    """Whether nothing could come of a reconciliation any more."""
    if kind != "reconcile_checkpoints":
        return False
    return connection.execute(_as_ordered(payload)).scalar() is None


def _settle_reconciliation(connection: Connection, job: JobRecord) -> None:
    """Take in what a worker found, if anything. Nothing of it counts once the run was deleted, or
    claimed again: whoever has it looks for himself.
    """
    if connection.execute(_as_ordered(job.payload).with_for_update()).scalar() is None:
        return
    run_id, attempt = job.payload["run_id"], job.payload["attempt"]
    found = job.result or {"adopted": [], "damaged": [], "gone": []}
    forget_checkpoints(connection, run_id, found["gone"])
    others = checkpoints.c.id.not_in(_ids_being_removed(connection))
    _give_up_removal(connection, and_(checkpoints.c.run_id == run_id, others))
    add_checkpoints(connection, run_id, attempt, [NewCheckpoint(**one) for one in found["adopted"]])
    unsent = found.pop("unsent", [])  # may be megabytes, so it is not kept in the job's row
    connection.execute(update(jobs).where(jobs.c.id == job.id).values(result=found))
    for one in unsent:
        add_unsent(connection, run_id, Unsent.from_json(one))
    damaged = [DamagedCheckpoint(**one) for one in found["damaged"]]
    damage_checkpoints(connection, run_id, attempt, damaged)


def _record_probe(connection: Connection, job: JobRecord, result: Document, worker_id: int) -> None:
    """What it measured, for the plans of runs like it."""
    asked = job.payload.get("profile")
    if asked is None:  # ordered by an older version
        return
    points = points_of_probe(result, asked["model_bytes"], asked["sample_bytes"])
    worker = connection.execute(select(workers.c.name).where(workers.c.id == worker_id))
    measured = Measured(ProfileKey(**asked["key"]), points)
    add_measured(connection, measured, None, worker.scalar_one(), job.finished_at or 0.0)


def _record_inspection(connection: Connection, job: JobRecord, found: Inspection) -> None:
    """Store what was found, unless the dataset has been registered again meanwhile."""
    connection.execute(
        update(datasets)
        .where(datasets.c.inspection_id == job.id)
        .values(**vars(found) | {"problems": list(found.problems)}, updated_at=job.finished_at)
    )


def _to_record(row: Row[Any]) -> JobRecord:
    return JobRecord(**row._asdict())
