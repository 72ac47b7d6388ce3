"""Attempts: the executions of a run."""

from sqlalchemy import select

from app.lifecycle import Reason
from app.store.engine.database import Database, retried
from app.store.records import AttemptRecord, Document, Unsent
from app.store.runs.beats import add_unsent
from app.store.tables import attempts


class Attempts:
    """Reads attempts; claims begin them, beats fill them in, finishes end them. What an agent that
    was killed has not sent is added here.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def newest_config(self, run_id: int) -> Document | None:
        """What the newest attempt of a script that said so was configured with; else None."""
        query = (
            select(attempts.c.applied)
            .where(attempts.c.run_id == run_id)
            .order_by(attempts.c.number.desc())
        )
        with self._database.read() as connection:
            # Not taken apart there: PostgreSQL does so with no document that holds a NUL.
            applied = connection.execute(query).scalars()
            return next((one["config"] for one in applied if one and one.get("config")), None)

    @retried
    def add_unsent(self, run_id: int, unsent: Unsent) -> bool:
        """See `beats.add_unsent`."""
        with self._database.write(ring=True) as connection:
            return add_unsent(connection, run_id, unsent)

    def list(self, run_id: int) -> list[AttemptRecord]:
        """Those of a run, first to last."""
        columns = [attempts.c[name] for name in AttemptRecord.__dataclass_fields__]
        query = select(*columns).where(attempts.c.run_id == run_id).order_by(attempts.c.number)
        with self._database.read() as connection:
            found = [row._asdict() for row in connection.execute(query)]
        return [
            AttemptRecord(**{**row, "reason": row["reason"] and Reason(row["reason"])})
            for row in found
        ]
