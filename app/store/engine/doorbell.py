"""The doorbell: a commit is felt in milliseconds by everybody who listens; polling is the fallback.

SQLite: a datagram socket a listener, as a file in HOME/bells. PostgreSQL: postgres_bell.py.
"""

import errno
import os
import secrets
import select
import socket
from contextlib import closing, suppress
from pathlib import Path

import structlog
from sqlalchemy.engine import make_url

from app.settings import Settings

PG_CHANNEL = "stoker"
DRAIN_BYTES = 4096

log = structlog.get_logger("stoker.store")


class BellListener:
    """Hears the bell through a file descriptor that stays the same, so that loops can watch it."""

    def __init__(self, ear: socket.socket) -> None:
        self._ear = ear
        ear.setblocking(False)

    def fileno(self) -> int:
        return self._ear.fileno()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for a ring; False when the time is over. A ring stays until it is drained."""
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_seconds) * 1000))

    def drain(self) -> None:
        """Forget all rings so far; call it before the database is read, not after."""
        with suppress(BlockingIOError):
            while self._ear.recv(DRAIN_BYTES):
                pass

    def close(self) -> None:
        self._ear.close()


class Doorbell:
    """Rings for, and makes, the listeners of one installation."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.bells_dir
        url = make_url(settings.database_url)
        self._conninfo = None
        if url.get_backend_name() == "postgresql":
            plain = url.set(drivername="postgresql")
            self._conninfo = plain.render_as_string(hide_password=False)

    def ring(self) -> None:
        """Wake every listener; one that is gone is forgotten.

        It never fails: what it tells of is stored, and those who do not hear it poll.
        """
        if self._conninfo is None:
            try:
                _ring_sockets(self._folder)
            except OSError as error:
                log.warning("nobody can be woken", bells=str(self._folder), why=str(error))
        else:
            from app.store.engine import postgres_bell  # psycopg is there only with PostgreSQL

            postgres_bell.ring(self._conninfo, PG_CHANNEL)

    def listener(self) -> BellListener:
        if self._conninfo is None:
            return _SocketListener(self._folder)
        from app.store.engine import postgres_bell  # psycopg is there only with PostgreSQL

        return postgres_bell.PostgresListener(self._conninfo, PG_CHANNEL)


class _SocketListener(BellListener):
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(6)}"
        ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with closing(_Folder(folder)) as here:
            ear.bind(here.address(self._path.name))
        super().__init__(ear)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        super().close()


class _Folder:
    """Addresses below a folder; through /proc, since a socket's path may have only 107 bytes."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def address(self, name: str) -> str:
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def close(self) -> None:
        os.close(self._descriptor)


def _ring_sockets(folder: Path) -> None:
    if not folder.is_dir():
        return
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with closing(bell), closing(_Folder(folder)) as here:
        bell.setblocking(False)
        for path in folder.iterdir():
            try:
                bell.sendto(b"!", here.address(path.name))
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:  # its process ended without closing it
                    path.unlink(missing_ok=True)
                elif error.errno not in (errno.EAGAIN, errno.ENOENT):
                    log.warning("a listener cannot be woken", bell=str(path), why=str(error))
