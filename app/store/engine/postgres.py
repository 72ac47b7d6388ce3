"""What a PostgreSQL call may take: limits that the server keeps, and one that does not need it.

Imported only where PostgreSQL is used.
"""

import os
import socket
import threading
import time
from typing import Any, cast

import psycopg
import structlog
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

log = structlog.get_logger("stoker.store")

# How long a host may be silent before the kernel calls a connection to it broken. This does not see
# a proxy that takes all and passes nothing on, and for `connect_timeout` it is enough to connect.
NETWORK: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
LOOK_SECONDS = 0.25


class TimeLimit:
    """Breaks the connection of a transaction that takes longer than `seconds`, so that whoever
    waits for its answer goes on with an error; the server gives up by itself, a little earlier for
    a lock (`lock_seconds`).

    A connection from the pool is asked first whether it still answers, within the same time.
    """

    def __init__(self, engine: Engine, seconds: float, lock_seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds
        self._lock_seconds = lock_seconds
        self._guard = threading.Lock()
        self._running: dict[ConnectionPoolEntry, tuple[float, socket.socket]] = {}
        self._over = threading.Event()
        event.listen(engine, "connect", self._begin, insert=True)  # to set it up takes calls, too
        event.listen(engine, "connect", self._limit_on_server)
        event.listen(engine, "checkout", self._take_from_pool)
        event.listen(engine, "checkin", self._end)
        self._thread = threading.Thread(target=self._watch, name="time-limit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _begin(self, connection: psycopg.Connection, record: ConnectionPoolEntry) -> None:
        own = socket.socket(fileno=os.dup(connection.fileno()))  # stays the one that it is
        self._end(connection, record)
        with self._guard:
            self._running[record] = (time.monotonic() + self._seconds, own)

    def _end(self, _connection: object, record: ConnectionPoolEntry) -> None:
        with self._guard:
            _, own = self._running.pop(record, (0.0, None))
        if own is not None:
            own.close()

    def _limit_on_server(self, connection: psycopg.Connection, record: ConnectionPoolEntry) -> None:
        for name, seconds in (
            ("lock_timeout", self._lock_seconds),
            ("statement_timeout", self._seconds),
            # Of a process that stands still; else its locks would hold up everybody.
            ("idle_in_transaction_session_timeout", self._seconds),
        ):
            connection.execute(
                "SELECT set_config(%s, %s, false)", (name, f"{round(seconds * 1000)}ms")
            )
        connection.commit()
        record.info["is_new"] = True

    def _take_from_pool(
        self, connection: psycopg.Connection, record: ConnectionPoolEntry, _proxy: object
    ) -> None:
        self._begin(connection, record)
        if record.info.pop("is_new", False):
            return
        try:
            self._engine.dialect.do_ping(cast("DBAPIConnection", connection))
        except psycopg.Error as error:
            raise InvalidatePoolError(str(error)) from error

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            now = time.monotonic()
            with self._guard:
                late = [record for record, (end, _) in self._running.items() if now >= end]
                for record in late:
                    _, own = self._running.pop(record)
                    with own:
                        _break(own)
            if late:
                log.warning("the database did not answer in time", seconds=self._seconds)


def _break(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is broken
