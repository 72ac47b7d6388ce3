"""Events: what happened to a run, numbered from 1 without gaps."""

from sqlalchemy import select

from app.store.engine.database import Database
from app.store.records import EventRecord
from app.store.tables import events, runs


class Events:
    """Reads events, which are written by the transactions that they tell of."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(
        self, run_id: int, after: int = 0, limit: int = 500, kind: str | None = None
    ) -> list[EventRecord]:
        """Events with a number above `after`, oldest first; of one kind, or of all."""
        columns = [events.c[name] for name in EventRecord.__dataclass_fields__]
        query = select(*columns).where(events.c.run_id == run_id, events.c.seq > after)
        if kind is not None:
            query = query.where(events.c.kind == kind)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(events.c.seq).limit(limit))
            return [EventRecord(*row) for row in rows]

    def newest(self, run_id: int, kind: str) -> EventRecord | None:
        """The newest event of a kind; None where there is none."""
        columns = [events.c[name] for name in EventRecord.__dataclass_fields__]
        query = select(*columns).where(events.c.run_id == run_id, events.c.kind == kind)
        with self._database.read() as connection:
            row = connection.execute(query.order_by(events.c.seq.desc()).limit(1)).one_or_none()
            return None if row is None else EventRecord(*row)

    def last_seq(self, run_id: int) -> int:
        """Number of the newest event; 0 when the run is not there."""
        query = select(runs.c.last_event_seq).where(runs.c.id == run_id)
        with self._database.read() as connection:
            return connection.execute(query).scalar() or 0
