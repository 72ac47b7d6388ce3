"""The connection to the database: one recipe for SQLite, one for PostgreSQL."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import InvalidRequest, Unavailable
from app.settings import Settings
from app.store.doorbell import PG_CHANNEL, Doorbell

BUSY_TIMEOUT_SECONDS = 30.0
CONNECT_TIMEOUT_SECONDS = 5
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}


class Database:
    """Short transactions over one engine. Results are to be materialized inside the block."""

    def __init__(self, settings: Settings) -> None:
        self.engine = make_engine(settings.database_url)
        self._bell = Doorbell(settings)
        self._writer = threading.Lock()

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads. Unavailable when the database cannot be reached."""
        with _explained(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self, *, quiet: bool = False) -> Iterator[Connection]:
        """A transaction that writes; after its commit the doorbell rings, unless `quiet`.

        SQLite: BEGIN IMMEDIATE, since a transaction that reads first and writes later fails at once
        when another has written meanwhile; and one writer at a time in this process, since polling
        for the file's lock starves some.
        """
        if self.is_sqlite:
            with self._writer:
                yield from self._transaction(immediate=True)
            if not quiet:
                self._bell.ring()
        else:
            yield from self._transaction(notify=not quiet)

    def _transaction(
        self, *, immediate: bool = False, notify: bool = False
    ) -> Iterator[Connection]:
        with _explained(), self.engine.connect() as plain:
            connection = plain.execution_options(stoker_immediate=immediate)
            with connection.begin():
                yield connection
                if notify:
                    connection.execute(text(f"NOTIFY {PG_CHANNEL}"))  # delivered by the commit

    def close(self) -> None:
        self.engine.dispose()


def make_engine(database_url: str) -> Engine:
    """The engine of a URL; InvalidRequest for a database that is not supported."""
    url = make_url(database_url)
    backend = url.get_backend_name()
    if backend not in DIALECTS or (backend == "sqlite" and not url.database):
        raise InvalidRequest(
            f"STOKER_DATABASE_URL names {url.drivername!r}; Stoker keeps its data in a SQLite file "
            "(sqlite:////path/to/stoker.db) or in PostgreSQL (postgresql+psycopg://user@host/name).",
            code="invalid_settings",
        )
    url = url.set(drivername=DIALECTS[backend])
    if backend == "postgresql":
        return create_engine(
            url, pool_pre_ping=True, connect_args={"connect_timeout": CONNECT_TIMEOUT_SECONDS}
        )
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_SECONDS})
    event.listen(engine, "do_connect", _create_private)
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def has_wal_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite can corrupt a WAL database (sqlite.org/wal.html, "WAL-reset bug")."""
    fixed_backports = {(3, 44): 6, (3, 50): 7}
    if version[:2] in fixed_backports:
        return version[2] < fixed_backports[version[0], version[1]]
    return (3, 7, 0) <= version < (3, 51, 3)


def _create_private(_dialect: Any, _record: Any, arguments: Any, _more: Any) -> None:
    """Have a new file readable by its owner alone; SQLite gives its journals the same mode."""
    with suppress(OSError):  # SQLite says it better
        os.close(os.open(arguments[0], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    journal = "DELETE" if has_wal_reset_bug(sqlite3.sqlite_version_info) else "WAL"
    for pragma in (f"journal_mode={journal}", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("stoker_immediate")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        # DatabaseError itself, not a subclass: SQLite's word for a damaged file.
        if not isinstance(error, OperationalError) and type(error) is not DatabaseError:
            raise
        raise _unavailable(error.orig) from error
    except InterfaceError as error:
        raise _unavailable(error.orig) from error
    except PoolTimeout as error:
        raise _unavailable("all connections are in use") from error


def _unavailable(why: object) -> Unavailable:
    return Unavailable(
        f"The database could not do its work ({str(why).strip()}). Nothing of this call was "
        "stored; `stoker doctor` says what is wrong."
    )
