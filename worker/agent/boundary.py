"""How far an error reaches: one of the store to the next beat, one of an attempt to its end."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from app.errors import FileLocked, Locked, StokerError, Unavailable
from worker.agent.supervisor import Supervision

log = structlog.get_logger("stoker.worker")


class Boundary:
    """Wraps what the agent does; tells once that the database has gone, and that it is back.

    `is_away`: the last call found no database. Each that does so may last as long as its time
    limit, so until one succeeds there is one a beat. `is_file_locked`: it is a SQLite file that
    somebody else on this host holds, and nothing else is wrong.
    """

    def __init__(self, *, database_is_on_one_host: bool) -> None:
        self._is_on_one_host = database_is_on_one_host
        self.is_away = False
        self.is_file_locked = False

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Go on when the store does not answer; the next beat tries again."""
        try:
            yield
        except Unavailable as error:
            self._lose(error)

    @contextmanager
    def store(self) -> Iterator[None]:
        """As `outage`, also when the store refuses; for what asks it for sure."""
        with self.outage():
            try:
                yield
            except Unavailable:
                raise
            except StokerError as error:
                log.warning("the store refused what the worker asked for", why=error.detail)
            self._find()

    @contextmanager
    def attempt(self, supervision: Supervision) -> Iterator[None]:
        """An error ends this attempt, and leaves the other ones alone; but not that the store does
        not answer: Unavailable. A row of its run that somebody has locked is waited for until the
        next beat.
        """
        try:
            yield
        except Locked as error:
            run = supervision.lease.run_id
            log.warning("a run is locked in the database", run=run, why=error.detail)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, other attempts go on
            supervision.fail(error)

    def _lose(self, error: Unavailable) -> None:
        if not self.is_away:
            log.warning("the database is out of reach, training goes on", why=error.detail)
        self.is_away = True
        self.is_file_locked = self._is_on_one_host and isinstance(error, FileLocked)

    def _find(self) -> None:
        if self.is_away:
            log.info("the database is back")
        self.is_away = self.is_file_locked = False
