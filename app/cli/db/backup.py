"""Copying the database out and back in: SQLite by its online backup, PostgreSQL by pg_dump."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.db.storage import sqlite_file
from app.cli.failures import CommandFailed, ExitCode
from app.durable import sync

if TYPE_CHECKING:
    from app.settings import Settings

SQLITE_HEADER = b"SQLite format 3\x00"
PG_DUMP_HEADER = b"PGDMP"
SQLITE_LOGS = ("-journal", "-wal", "-shm")


def back_up(settings: "Settings", target: Path) -> None:
    """Write a consistent copy, also while others write to the database; its owner's alone."""
    from app.store.engine import sqlite  # SQLAlchemy's neighbour: late, as in connect

    target.parent.mkdir(parents=True, exist_ok=True)
    sqlite.create_private(str(target))
    file = sqlite_file(settings)
    try:
        if file is None:
            _run("pg_dump", "--format=custom", f"--file={target}", _libpq_url(settings))
        else:
            sqlite.copy(file, target)
    except BaseException:
        target.unlink(missing_ok=True)  # what is not whole is no backup
        raise


def require_backup(settings: "Settings", backup: Path) -> None:
    """Refuse a file that cannot be a backup of this database: of another kind, or not ours."""
    if not backup.is_file():
        raise CommandFailed(f"{backup} is not there.")
    header = SQLITE_HEADER if sqlite_file(settings) is not None else PG_DUMP_HEADER
    with backup.open("rb") as start:
        if start.read(len(header)) != header:
            kind = "a SQLite database" if header == SQLITE_HEADER else "a dump of PostgreSQL"
            raise CommandFailed(f"{backup} is not {kind}, so it is not a backup of this one.")
    if header == SQLITE_HEADER:
        from app.store.engine import sqlite  # SQLAlchemy's neighbour: late, as in connect

        fault = sqlite.fault_of(backup)
        if fault is not None:
            raise CommandFailed(f"{backup} {fault}.")


def put_back(settings: "Settings", backup: Path) -> Path | None:
    """Put a backup in place; returns where the database that was there is kept (SQLite)."""
    file = sqlite_file(settings)
    if file is None:
        _run("pg_restore", "--clean", "--if-exists", f"--dbname={_libpq_url(settings)}", backup)
        return None
    from app.store.engine import sqlite  # SQLAlchemy's neighbour: late, as in connect

    file.parent.mkdir(parents=True, exist_ok=True)
    incoming = file.with_suffix(".incoming")
    incoming.unlink(missing_ok=True)
    try:
        sqlite.create_private(str(incoming))
        shutil.copyfile(backup, incoming)
        sync(incoming)
        kept = _keep(settings, file) if file.exists() else None
        incoming.replace(file)
        sync(file.parent)
    finally:
        incoming.unlink(missing_ok=True)
    return kept


def _keep(settings: "Settings", file: Path) -> Path:
    """Put the database that is there aside: a copy that takes in what lies in its log, or, where it
    is too damaged to be copied, the files as they are.
    """
    from app.store.engine import sqlite  # SQLAlchemy's neighbour: late, as in connect

    kept = file.with_name(f"{file.name}.before-restore-{int(time.time())}")
    logs = [file.with_name(file.name + suffix) for suffix in SQLITE_LOGS]
    try:
        back_up(settings, kept)
    except sqlite.driver.DatabaseError:
        for part in (file, *logs):
            if part.exists():
                part.replace(part.with_name(part.name.replace(file.name, kept.name, 1)))
    else:
        for log in logs:
            log.unlink(missing_ok=True)
    return kept


def _libpq_url(settings: "Settings") -> str:
    """The database's URL without the driver's name, which PostgreSQL's own tools do not know."""
    return settings.database_url.replace("postgresql+psycopg://", "postgresql://", 1)


def _run(program: str, *arguments: str | Path) -> None:
    if shutil.which(program) is None:
        raise CommandFailed(f"{program} is not on PATH; install PostgreSQL's client programs.")
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CommandFailed(f"{program}: {done.stderr.strip()}", ExitCode.failed)
