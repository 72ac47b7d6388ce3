"""The connection to the database: one recipe for SQLite, one for PostgreSQL."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from sqlalchemy import Connection, create_engine, event, select, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import FileLocked, InvalidRequest, Locked, Unavailable
from app.mounts import on_network
from app.plainjson import dump_json, load_json
from app.settings import Settings
from app.store.engine import sqlite
from app.store.engine.doorbell import PG_CHANNEL, Doorbell
from app.store.tables import database_identity

if TYPE_CHECKING:
    from app.store.engine.postgres import TimeLimit

# How long a write waits for others' locks before its caller is told that it could not be stored.
BUSY_TIMEOUT_SECONDS = 10.0
# An observer asks whether others could write; if it had to wait, so have they.
OBSERVER_PATIENCE_SECONDS = 1.0
# As many as the threads that answer requests: none waits for a connection that another has.
POOL_CONNECTIONS = 40
# A transaction on PostgreSQL may take so often the time that one statement waits for a lock.
CALL_TO_LOCK = 2.0
# Before a transaction that was broken off is done once more. The one in whose way it was has to be
# woken first: done at once, it may take the same row again before it.
PAUSE_BEFORE_RETRY_SECONDS = 0.1
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
SUPPORTED = (
    "Stoker keeps its data in a SQLite file (sqlite:////path/to/stoker.db) or in PostgreSQL "
    "(postgresql+psycopg://user@host/name)."
)


# PostgreSQL's words for a transaction that it broke off for another's sake: serialization failure
# and deadlock.
BROKEN_OFF = frozenset({"40001", "40P01"})
LOCK_NOT_AVAILABLE = "55P03"

P = ParamSpec("P")
T = TypeVar("T")


class _BrokenOff(Unavailable):
    """The database undid a transaction that got in another's way; by itself it would have gone."""


def retried(method: Callable[P, T]) -> Callable[P, T]:
    """For every method that is one writing transaction: done once more when it was broken off."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except _BrokenOff:
            time.sleep(PAUSE_BEFORE_RETRY_SECONDS)
            return method(*args, **kwargs)

    return call


class Database:
    """Short transactions over one engine. Results are to be materialized inside the block.

    `busy_seconds`: how long a call waits for what others hold, a SQLite file or a row. On
    PostgreSQL no transaction takes longer than twice that, whatever becomes of the server and the
    way to it, unless it `may_last`, as one that changes the schema.
    """

    def __init__(
        self,
        settings: Settings,
        busy_seconds: float = BUSY_TIMEOUT_SECONDS,
        *,
        may_last: bool = False,
    ) -> None:
        self.engine = make_engine(settings.database_url, busy_seconds)
        self._busy_seconds = busy_seconds
        is_limited = not self.is_sqlite and not may_last
        self._limit = _time_limit(self.engine, busy_seconds) if is_limited else None
        # One answer tells of one moment, however many statements it takes; SQLite always does so.
        self._reader = (
            self.engine
            if self.is_sqlite
            else self.engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        )
        self._bell = Doorbell(settings)
        self._writer = threading.Lock()

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @cached_property
    def id(self) -> str:
        """The id that this database was created with. Unavailable."""
        with self.read() as connection:
            return str(connection.execute(select(database_identity.c.id)).scalar_one())

    def is_on_one_host(self) -> bool:
        """Whether only this host's processes can use it: a file that is known to be on its disk.

        It looks at the disk, which may hang where it is a network's.
        """
        file = self.engine.url.database
        return self.is_sqlite and file is not None and on_network(Path(file)) is False

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads, all of it from one moment.

        Unavailable when the database cannot be reached.
        """
        with _explained(), self._reader.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(
        self,
        *,
        ring: bool = False,
        patience_seconds: float | None = None,
        foreign_keys: bool = True,
    ) -> Iterator[Connection]:
        """A transaction that writes; `ring`: after its commit the doorbell wakes who waits for it.

        `patience_seconds`: how long it waits for the locks of others, if not as usual. Unavailable
        when it could not have them. `foreign_keys`: SQLite can rebuild a table that others refer to
        only without them.

        SQLite: BEGIN IMMEDIATE, since a transaction that reads first and writes later fails at once
        when another has written meanwhile; and one writer at a time in this process, since polling
        for the file's lock starves some.
        """
        if not self.is_sqlite:
            is_usual = patience_seconds == self._busy_seconds
            limit = None if is_usual else patience_seconds
            yield from self._transaction(notify=ring, lock_seconds=limit)
            return
        patience = self._busy_seconds if patience_seconds is None else patience_seconds
        deadline = time.monotonic() + patience
        if not self._writer.acquire(timeout=patience):
            raise FileLocked(_could_not("database is locked"))
        try:
            left = max(0.0, deadline - time.monotonic())
            yield from self._transaction(patience=left, foreign_keys=foreign_keys)
        finally:
            self._writer.release()
        if ring:
            self._bell.ring()

    def _transaction(
        self,
        *,
        patience: float | None = None,
        notify: bool = False,
        lock_seconds: float | None = None,
        foreign_keys: bool = True,
    ) -> Iterator[Connection]:
        with _explained(), self.engine.connect() as plain:
            connection = plain.execution_options(stoker_patience=patience)
            if not foreign_keys:  # which SQLite ignores within a transaction
                sqlite.without_foreign_keys(plain.connection.dbapi_connection)
                plain.detach()  # nobody else gets this connection
            with connection.begin() as transaction:
                if lock_seconds is not None:
                    milliseconds = max(1, round(lock_seconds * 1000))  # 0: for ever
                    limit = text(f"SET LOCAL lock_timeout = {milliseconds}")
                    connection.execute(limit)
                yield connection
                if notify:
                    connection.execute(text(f"NOTIFY {PG_CHANNEL}"))  # delivered by the commit
                with _explained_commit(connection):
                    transaction.commit()

    def close(self) -> None:
        self.engine.dispose()
        if self._limit is not None:
            self._limit.close()


def make_engine(database_url: str, busy_seconds: float = BUSY_TIMEOUT_SECONDS) -> Engine:
    """The engine of a URL; InvalidRequest for a database that is not supported or not installed."""
    url = _parse(database_url)
    backend = url.get_backend_name()
    if backend not in DIALECTS or (backend == "sqlite" and not url.database):
        raise InvalidRequest(
            f"STOKER_DATABASE_URL names {url.drivername!r}; {SUPPORTED}", code="invalid_settings"
        )
    url = url.set(drivername=DIALECTS[backend])
    if backend == "postgresql":
        return _make_postgres_engine(url, busy_seconds)
    if url.query:
        raise InvalidRequest(
            "STOKER_DATABASE_URL names a SQLite file with parameters "
            f"({', '.join(sorted(url.query))}), which would have no effect: leave out what follows "
            "the question mark.",
            code="invalid_settings",
        )
    return _make_sqlite_engine(url, busy_seconds)


def _parse(database_url: str) -> URL:
    try:
        return make_url(database_url)
    except (ArgumentError, ValueError):
        raise _unreadable_url() from None


def _unreadable_url() -> InvalidRequest:
    return InvalidRequest(  # the URL is not shown, since it may hold a password
        f"STOKER_DATABASE_URL cannot be read as a URL; {SUPPORTED} Characters of a password such "
        "as @ and / are written as %40 and %2F.",
        code="invalid_settings",
    )


def _make_postgres_engine(url: URL, busy_seconds: float) -> Engine:
    try:
        from app.store.engine.postgres import NETWORK  # psycopg is there only with PostgreSQL

        return create_engine(
            url,
            connect_args=NETWORK,
            pool_size=POOL_CONNECTIONS,
            max_overflow=0,
            pool_timeout=busy_seconds,
            json_serializer=dump_json,
            json_deserializer=load_json,
        )
    except ArgumentError:  # such as more ports than hosts
        raise _unreadable_url() from None
    except ImportError as error:
        raise InvalidRequest(
            "STOKER_DATABASE_URL names PostgreSQL, and what speaks with it cannot be loaded "
            f"({error}). Install it into the same environment: pip install 'psycopg[binary]'.",
            code="invalid_settings",
        ) from None


def _time_limit(engine: Engine, busy_seconds: float) -> "TimeLimit":
    from app.store.engine.postgres import TimeLimit  # psycopg is there only with PostgreSQL

    return TimeLimit(engine, CALL_TO_LOCK * busy_seconds, busy_seconds)


def _make_sqlite_engine(url: URL, busy_seconds: float) -> Engine:
    engine = create_engine(
        url,
        module=sqlite.driver,
        connect_args={"timeout": busy_seconds},
        json_serializer=dump_json,
        json_deserializer=load_json,
    )
    event.listen(
        engine,
        "do_connect",
        lambda _dialect, _record, given, _more: sqlite.create_private(given[0]),
    )
    event.listen(engine, "connect", lambda connection, _record: sqlite.configure(connection))
    event.listen(engine, "begin", partial(_begin_sqlite, busy_seconds))
    return engine


def _begin_sqlite(busy_seconds: float, connection: Connection) -> None:
    patience = connection.get_execution_options().get("stoker_patience")
    statement = "BEGIN" if patience is None else "BEGIN IMMEDIATE"
    try:  # by the driver itself: each request begins three transactions
        if patience is None:
            connection.connection.cursor().execute(statement)
        else:
            sqlite.begin_immediate(connection.connection, patience, busy_seconds)
    except sqlite.driver.OperationalError as error:
        raise OperationalError(statement, None, error) from error


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        # DatabaseError itself, not a subclass: SQLite's word for a damaged file. ProgrammingError
        # without a statement: a parameter of the URL that PostgreSQL does not know.
        is_bad_url = isinstance(error, ProgrammingError) and error.statement is None
        is_damage = type(error) is DatabaseError
        # Such as of a process that stood still in its transaction: the server has ended it.
        is_cut = error.connection_invalidated
        if not (isinstance(error, OperationalError) or is_damage or is_bad_url or is_cut):
            raise
        state = getattr(error.orig, "sqlstate", None)
        if state in BROKEN_OFF:
            raise _BrokenOff(_could_not(error.orig)) from error
        if state == LOCK_NOT_AVAILABLE:
            raise Locked(_could_not(error.orig)) from error
        if sqlite.is_busy(error.orig):
            raise FileLocked(_could_not(error.orig)) from error
        raise _unavailable(error.orig) from error
    except InterfaceError as error:
        raise _unavailable(error.orig) from error
    except PoolTimeout as error:
        raise _unavailable("all connections are in use") from error


@contextmanager
def _explained_commit(connection: Connection) -> Iterator[None]:
    """A connection that breaks here leaves open whether the server had stored it all."""
    try:
        yield
    except DBAPIError as error:
        if not error.connection_invalidated:
            # SQLite keeps a transaction open whose commit it refuses, and SQLAlchemy, to which it
            # is over by now, would give the connection back to the pool with it.
            connection.connection.rollback()
            raise
        raise Unavailable(
            f"The connection to the database broke ({str(error.orig).strip()}) while this call was "
            "being stored: it is not known whether it was. Look at what is there before you "
            "repeat it; a repeated Idempotency-Key makes nothing twice.",
            code="outcome_unknown",
        ) from error


def _unavailable(why: object) -> Unavailable:
    return Unavailable(_could_not(why))


def _could_not(why: object) -> str:
    return (
        f"The database could not do its work ({str(why).strip()}). Nothing of this call was "
        "stored; `stoker doctor` says what is wrong."
    )
