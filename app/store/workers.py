"""Workers: agent processes, each with an id of its own, never a host's name."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any, Literal

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from app.errors import NotFound
from app.store.engine.clock import Clock
from app.store.engine.cursor import page_by_id
from app.store.engine.database import OBSERVER_PATIENCE_SECONDS, Database, retried
from app.store.jobs import requeue_jobs_of
from app.store.records import Document, StoredPage
from app.store.runs.expiry import expire_workers
from app.store.tables import workers
from app.store.worker_records import NewWorker, WorkerPulse, WorkerRecord, WorkerState

LIVE = ("alive", "draining")
MOST_LISTED = 1000
# Executed at each beat, and to build them costs more than to execute them.
_BEAT = update(workers).where(workers.c.id == bindparam("worker")).values(beat=workers.c.beat + 1)
_PULSES = (
    select(*(workers.c[name] for name in WorkerPulse.__dataclass_fields__))
    .where(workers.c.state.in_(LIVE))
    .order_by(workers.c.id)
)
_VERSIONS = select(workers.c.id, workers.c.beat, workers.c.state).where(workers.c.state.in_(LIVE))


class Workers:
    """Registers workers, takes their beats, and declares the silent ones lost."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @retried
    def register(self, new: NewWorker) -> int:
        """A new process; its id."""
        now = self._clock()
        row = {**asdict(new), "state": "alive", "beat": 0, "started_at": now, "seen_at": now}
        with self._database.write() as connection:
            expire_workers(connection, now)
            statement = insert(workers).values(row).returning(workers.c.id)
            worker_id: int = connection.execute(statement).scalar_one()
        return worker_id

    @retried
    def beat(
        self,
        worker_id: int,
        state: Literal["alive", "draining"],
        slots: Sequence[Document],
        devices: Sequence[Document],
        facts: Document,
    ) -> None:
        """Say that it lives, and how it is. One that was taken for lost is not so any more.

        NotFound when it was silent for so long that it is forgotten: then it has to register anew.
        """
        values = {
            "slots": list(slots),
            "devices": list(devices),
            "facts": facts,
            "state": state,
            "seen_at": self._clock(),
        }
        with self._database.write() as connection:
            if not connection.execute(_BEAT, {"worker": worker_id, **values}).rowcount:
                raise _missing(worker_id)

    @retried
    def set_state(self, worker_id: int, state: WorkerState) -> None:
        """`draining` takes nothing new; `gone` ended in order; its jobs are queued again."""
        with self._database.write(ring=state == "gone") as connection:
            _lock(connection, worker_id)
            connection.execute(update(workers).where(workers.c.id == worker_id).values(state=state))
            if state == "gone":
                requeue_jobs_of(connection, worker_id, self._clock())

    @retried
    def declare_lost(self, worker_id: int, beat: int) -> bool:
        """Mark a dead worker, if its beat counter is still as it was seen; queue its jobs again."""
        statement = (
            update(workers)
            .where(workers.c.id == worker_id, workers.c.beat == beat, workers.c.state.in_(LIVE))
            .values(state="lost")
        )
        with self._database.write() as connection:
            if not connection.execute(statement).rowcount:
                return False
            requeue_jobs_of(connection, worker_id, self._clock())
            return True

    @retried
    def unlocked(self, ids: Collection[int]) -> set[int]:
        """Those of these workers whose next beat would not have to wait for somebody's lock.

        Unavailable when nothing can be stored now.
        """
        if not ids:
            return set()
        known = select(workers.c.id).where(workers.c.id.in_(ids))
        with self._database.write(patience_seconds=OBSERVER_PATIENCE_SECONDS) as connection:
            rows = connection.execute(known.with_for_update(skip_locked=True))
            return set(rows.scalars())

    def pulses(self) -> list[WorkerPulse]:
        """Of those that are alive or drain: what tells whether they still are."""
        with self._database.read() as connection:
            return [WorkerPulse(*row) for row in connection.execute(_PULSES)]

    def versions(self) -> frozenset[tuple[int, int, str]]:
        """Of those that are alive or drain; it changes with whatever is known of any of them."""
        with self._database.read() as connection:
            return frozenset((row.id, row.beat, row.state) for row in connection.execute(_VERSIONS))

    def page(
        self, alive_only: bool, limit: int, after: str | None = None
    ) -> StoredPage[WorkerRecord]:
        """The newest first; with `alive_only`, without those that are gone or lost."""
        query = select(workers)
        if alive_only:
            query = query.where(workers.c.state.in_(LIVE))
        with self._database.read() as connection:
            return page_by_id(connection, query, workers.c.id, limit, after, _to_record)

    def get(self, worker_id: int) -> WorkerRecord:
        """NotFound when there is none."""
        with self._database.read() as connection:
            row = connection.execute(select(workers).where(workers.c.id == worker_id)).one_or_none()
        if row is None:
            raise _missing(worker_id)
        return _to_record(row)

    def list(self, alive_only: bool = False) -> list[WorkerRecord]:
        """As `page`: the newest thousand."""
        return self.page(alive_only, MOST_LISTED).data


def _lock(connection: Connection, worker_id: int) -> Row[Any]:
    row = connection.execute(
        select(workers).where(workers.c.id == worker_id).with_for_update()
    ).one_or_none()
    if row is None:
        raise _missing(worker_id)
    return row


def _to_record(row: Row[Any]) -> WorkerRecord:
    return WorkerRecord(**row._asdict())


def _missing(worker_id: int) -> NotFound:
    return NotFound(f"There is no worker {worker_id}. `stoker workers` shows them.")
