"""How far an error reaches: one of the store to the next beat, one of an attempt to its end."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from app.errors import StokerError, Unavailable
from worker.supervisor import Supervision

log = structlog.get_logger("stoker.worker")


class Reach:
    """Wraps what the agent does; tells once that the database has gone, and that it is back."""

    def __init__(self) -> None:
        self._is_away = False

    @contextmanager
    def store(self) -> Iterator[None]:
        """Go on when the store does not answer or refuses; the next beat tries again."""
        try:
            yield
        except Unavailable as error:
            self._lose(error)
        except StokerError as error:
            log.warning("the store refused what the worker asked for", why=error.detail)
        else:
            self._find()

    @contextmanager
    def attempt(self, supervision: Supervision) -> Iterator[None]:
        """As `store`; any other error ends this attempt, and leaves the other ones alone."""
        try:
            yield
        except Unavailable as error:
            self._lose(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, other attempts go on
            supervision.fail(error)
        else:
            self._find()

    def _lose(self, error: Unavailable) -> None:
        if not self._is_away:
            log.warning("the database is out of reach, training goes on", why=error.detail)
        self._is_away = True

    def _find(self) -> None:
        if self._is_away:
            log.info("the database is back")
        self._is_away = False
