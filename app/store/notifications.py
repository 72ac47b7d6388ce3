"""Notifications: an outbox, filled by the transactions that it tells of.

Each is held by the process that tries to send it. One that ends in the middle of that is followed
by another, so what was noted is sent at least once.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, insert, or_, select, update

from app.store.engine.clock import Clock
from app.store.engine.database import Database, retried
from app.store.engine.dialect import insert_unless_there
from app.store.records import Document
from app.store.runs.expiry import expire_notifications
from app.store.tables import notifications, runs

# The row that says that somebody is to be told, from then on.
BEGUN = "begun"
# What is older is not sent any more: it is no news.
GIVE_UP_SECONDS = 12 * 3600.0


@dataclass(frozen=True)
class NotificationRecord:
    """What is told of a run. `kind`: succeeded, failed, stopped, stalled; `tries`: with the one
    that is under way; `ended_at`: when it was sent, or given up with `error`.
    """

    id: int
    kind: str
    run_id: int
    attempt: int
    reason: str | None
    message: str | None
    t: float
    tries: int
    error: str | None
    ended_at: float | None
    name: str
    labels: Document
    recipe: str
    worker: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None


_OF_RUN = ("name", "labels", "recipe", "worker", "created_at", "started_at", "finished_at")
_OWN = [name for name in NotificationRecord.__dataclass_fields__ if name not in _OF_RUN]


class Notifications:
    """Hands out what is to be told, one at a time, until it was sent or is given up."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @retried
    def begin(self) -> None:
        """Note from now on what is to be told; what ended before is not."""
        with self._database.read() as connection:
            if _is_on(connection):
                return
        with self._database.write() as connection:
            if not _is_on(connection):
                now = self._clock.of(connection)
                row = {"kind": BEGUN, "t": now, "tries": 0, "ended_at": now}
                connection.execute(insert(notifications), row)

    @retried
    def claim(self, kinds: Collection[str], hold_seconds: float) -> NotificationRecord | None:
        """The oldest that is due, for the caller alone for so long; None when there is none."""
        with self._database.read() as connection:
            now = self._clock.of(connection)
            if connection.execute(_due(kinds, now)).scalar() is None:
                return None
        with self._database.write() as connection:
            now = self._clock.of(connection)
            held = _due(kinds, now).with_for_update(skip_locked=True)
            found = connection.execute(held).scalar_one_or_none()
            if found is None:
                return None
            taken = update(notifications).where(notifications.c.id == found)
            taken = taken.values(tries=notifications.c.tries + 1, retry_at=now + hold_seconds)
            connection.execute(taken)
            return _to_record(connection.execute(_record_of().where(_is(found))).one())

    @retried
    def end(self, notification_id: int, error: str | None = None) -> None:
        """It was sent, or it is given up with this error."""
        with self._database.write() as connection:
            now = self._clock.of(connection)
            of_it = (_is(notification_id), notifications.c.ended_at.is_(None))
            connection.execute(
                update(notifications).where(*of_it).values(ended_at=now, error=error)
            )

    @retried
    def retry(self, notification: NotificationRecord, error: str, seconds: float) -> bool:
        """Have it tried again after so long; False when that would be too late: it is given up."""
        with self._database.write() as connection:
            now = self._clock.of(connection)
            is_late = now + seconds > notification.t + GIVE_UP_SECONDS
            ended = {"ended_at": now} if is_late else {"retry_at": now + seconds}
            # Only what the caller still holds.
            of_it = (_is(notification.id), notifications.c.tries == notification.tries)
            connection.execute(update(notifications).where(*of_it).values(error=error, **ended))
            return not is_late

    def last(self) -> NotificationRecord | None:
        """One that could not be sent yet, else the one that was tried last; None: none was."""
        tried = _record_of().where(notifications.c.tries > 0)
        order = (notifications.c.ended_at.desc(), notifications.c.id.desc())
        open_ones = tried.where(
            notifications.c.ended_at.is_(None), notifications.c.error.is_not(None)
        )
        ended = tried.where(notifications.c.ended_at.is_not(None)).order_by(*order)
        with self._database.read() as connection:
            for query in (open_ones.order_by(notifications.c.id.desc()), ended):
                row = connection.execute(query.limit(1)).one_or_none()
                if row is not None:
                    return _to_record(row)
        return None


def note(connection: Connection, run: Row[Any], kind: str, message: str | None, now: float) -> None:
    """Have somebody told of this run, within the transaction that moves it; `run`: id, attempt and
    reason. Nothing where nobody is to be told.
    """
    if not _is_on(connection):
        return
    expire_notifications(connection, now)
    row = {
        "kind": kind,
        "run_id": run.id,
        "attempt": run.attempt,
        "reason": run.reason,
        "message": message,
        "t": now,
        "tries": 0,
    }
    insert_unless_there(connection, notifications, row)


def _is_on(connection: Connection) -> bool:
    begun = select(notifications.c.id).where(notifications.c.kind == BEGUN).limit(1)
    return connection.execute(begun).scalar() is not None


def _is(notification_id: int) -> ColumnElement[bool]:
    return notifications.c.id == notification_id


def _due(kinds: Collection[str], now: float) -> Select[Any]:
    return (
        select(notifications.c.id)
        .where(
            notifications.c.ended_at.is_(None),
            notifications.c.t > now - GIVE_UP_SECONDS,
            notifications.c.kind.in_(sorted(kinds)),
            or_(notifications.c.retry_at.is_(None), notifications.c.retry_at <= now),
        )
        .order_by(notifications.c.t, notifications.c.id)
        .limit(1)
    )


def _record_of() -> Select[Any]:
    columns = [notifications.c[name] for name in _OWN]
    of_run = [runs.c[name] for name in _OF_RUN]
    return select(*columns, *of_run).join(runs, runs.c.id == notifications.c.run_id)


def _to_record(row: Row[Any]) -> NotificationRecord:
    return NotificationRecord(**row._asdict())
