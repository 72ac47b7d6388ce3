"""The schema's version: upgrade, downgrade, current, check. The migrations are in `migrations`."""

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

import migrations
from app.errors import Unavailable
from app.settings import Settings
from app.store.engine.database import Database

LOCK_NAME = "upgrade.lock"
PG_LOCK = 0x53746F6B  # any number that nobody else takes: "Stok"


def upgrade(settings: Settings, revision: str = "head") -> None:
    """Create the database, or bring it up to this code; one process at a time, others wait.

    Unavailable (code database_newer) when a newer version of Stoker has written it.
    """
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with alone(settings) as connection:
        _refuse_newer(connection)
        command.upgrade(_config(connection), revision)


def downgrade(settings: Settings, revision: str) -> None:
    """Take the schema back to a revision (`base`: no tables, and nothing of the data)."""
    with alone(settings) as connection:
        _refuse_newer(connection)
        command.downgrade(_config(connection), revision)


def current(settings: Settings) -> str | None:
    """The revision that the database is at; None for an empty one."""
    with closing(Database(settings)) as database, database.read() as connection:
        return revision_of(connection)


def check(settings: Settings) -> list[str]:
    """What is wrong with the database, as sentences; none when all is well."""
    try:
        with closing(Database(settings)) as database, database.read() as connection:
            return [*_schema_problems(connection), *_integrity_problems(connection)]
    except Unavailable as error:
        return [error.detail]


def revision_of(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


@cache
def head_revision() -> str | None:
    """The newest revision that this code knows."""
    return _scripts().get_current_head()


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(None))


def _config(connection: Connection | None) -> Config:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(migrations.__path__[0])).replace("%", "%%"))
    return config


@contextmanager
def alone(settings: Settings) -> Iterator[Connection]:
    """A transaction that no other process's upgrade overlaps, in which any table can be rebuilt.

    Nothing is stored when rows would refer to others that are gone.
    """
    with closing(Database(settings, may_last=True)) as database:
        if not database.is_sqlite:
            with database.write() as connection:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": PG_LOCK})
                yield connection
            return
        settings.locks_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (settings.locks_dir / LOCK_NAME).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with database.write(foreign_keys=False) as connection:
                before = revision_of(connection)
                yield connection
                if revision_of(connection) != before:
                    _require_references(connection)


def _require_references(connection: Connection) -> None:
    if orphans := _orphans(connection):
        raise Unavailable(
            f"The schema was not changed: {orphans[0]} Restore a backup from before the damage "
            "(stoker db restore FILE), or report this with the output of `stoker db check`."
        )


def _refuse_newer(connection: Connection) -> None:
    revision = revision_of(connection)
    if not _is_known(revision):
        raise Unavailable(_newer(revision), code="database_newer")


def _is_known(revision: str | None) -> bool:
    return revision is None or revision in {s.revision for s in _scripts().walk_revisions()}


def _newer(revision: str | None) -> str:
    return (
        f"A newer version of Stoker has written this database (revision {revision}; this version "
        f"knows up to {head_revision()}). Running on could damage it. Install that version again, "
        "or restore a backup from before its upgrade: stoker db restore FILE."
    )


def _schema_problems(connection: Connection) -> list[str]:
    revision = revision_of(connection)
    if not _is_known(revision):
        return [_newer(revision)]
    if revision != head_revision():
        return [f"The schema is at {revision or 'nothing'}, this version needs {head_revision()}."]
    return []


def _integrity_problems(connection: Connection) -> list[str]:
    if connection.dialect.name != "sqlite":
        return []  # PostgreSQL checks its own pages
    found = connection.execute(text("PRAGMA integrity_check")).scalars().all()
    damage = [f"The file is damaged: {line}" for line in found if line != "ok"]
    return damage + _orphans(connection)


def _orphans(connection: Connection) -> list[str]:
    rows = connection.execute(text("PRAGMA foreign_key_check")).all()
    return [f"A row of {row[0]} refers to a row of {row[2]} that is gone." for row in rows]
