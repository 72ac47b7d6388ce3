"""The doorbell on PostgreSQL: LISTEN and NOTIFY. Imported only where PostgreSQL is used."""

import os
import select
import socket
import threading
from contextlib import suppress

import psycopg
import structlog
from psycopg import sql

from app.errors import Unavailable
from app.store.engine.doorbell import BellListener
from app.store.engine.postgres import NETWORK

RECONNECT_SECONDS = 1.0

log = structlog.get_logger("stoker.store")


def ring(conninfo: str, channel: str) -> None:
    """Wake every listener; commits of the store do it on their own connection."""
    try:
        with psycopg.connect(conninfo, autocommit=True, **NETWORK) as connection:
            connection.execute(sql.SQL("NOTIFY {}").format(sql.Identifier(channel)))
    except psycopg.Error as error:
        log.warning("nobody can be woken", why=str(error).strip())


class PostgresListener(BellListener):
    """A thread keeps the connection, since it may break and be made anew under the same ear.

    Unavailable when the database cannot be reached at the beginning.
    """

    def __init__(self, conninfo: str, channel: str) -> None:
        self._conninfo = conninfo
        self._channel = channel
        try:
            connection = self._listen()  # here, so that what is rung from now on is heard
        except psycopg.Error as error:
            raise Unavailable(
                f"The doorbell cannot be heard: the database does not answer ({str(error).strip()})"
                ". `stoker doctor` says what is wrong."
            ) from error
        ear, self._mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        super().__init__(ear)
        self._mouth.setblocking(False)
        self._over = threading.Event()
        self._end, self._end_signal = os.pipe()
        self._thread = threading.Thread(
            target=self._work, args=(connection,), name="doorbell", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        os.write(self._end_signal, b"x")
        self._thread.join()
        for descriptor in (self._end, self._end_signal):
            os.close(descriptor)
        self._mouth.close()
        super().close()

    def _listen(self) -> psycopg.Connection:
        connection = psycopg.connect(self._conninfo, autocommit=True, **NETWORK)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        return connection

    def _work(self, connection: psycopg.Connection | None) -> None:
        is_away = False
        while not self._over.is_set():
            try:
                with connection or self._listen() as live:
                    is_away = False
                    self._tell()  # after a pause, something may have been missed
                    self._relay(live)
            except psycopg.Error as error:
                if not is_away:  # once an outage, however long it is
                    log.warning("the doorbell's connection broke; it is made anew", why=str(error))
                is_away = True
                self._over.wait(RECONNECT_SECONDS)
            connection = None

    def _relay(self, connection: psycopg.Connection) -> None:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._end, select.POLLIN)
        while not self._over.is_set():
            if list(connection.notifies(timeout=0)):
                self._tell()
            poll.poll()

    def _tell(self) -> None:
        with suppress(BlockingIOError):  # a full ear has heard it already
            self._mouth.send(b"!")
