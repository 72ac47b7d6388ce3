"""Copying the database out and back in: SQLite by its online backup, PostgreSQL by pg_dump."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.failures import CommandFailed, ExitCode
from app.cli.storage import sqlite_file

if TYPE_CHECKING:
    from app.settings import Settings

SQLITE_HEADER = b"SQLite format 3\x00"
PG_DUMP_HEADER = b"PGDMP"


def back_up(settings: "Settings", target: Path) -> None:
    """Write a consistent copy, also while others write to the database."""
    target.parent.mkdir(parents=True, exist_ok=True)
    file = sqlite_file(settings)
    if file is None:
        _run("pg_dump", "--format=custom", f"--file={target}", _libpq_url(settings))
        return
    from app.store import sqlite  # SQLAlchemy's neighbour: late, as in connect

    sqlite.copy(file, target)
    target.chmod(0o600)


def require_backup(settings: "Settings", backup: Path) -> None:
    """Refuse a file that cannot be a backup of this database: of another kind, or not ours."""
    if not backup.is_file():
        raise CommandFailed(f"{backup} is not there.")
    header = SQLITE_HEADER if sqlite_file(settings) is not None else PG_DUMP_HEADER
    with backup.open("rb") as start:
        if start.read(len(header)) != header:
            kind = "a SQLite database" if header == SQLITE_HEADER else "a dump of PostgreSQL"
            raise CommandFailed(f"{backup} is not {kind}, so it is no backup of this one.")
    if header == SQLITE_HEADER:
        from app.store import sqlite  # SQLAlchemy's neighbour: late, as in connect

        fault = sqlite.fault_of(backup)
        if fault is not None:
            raise CommandFailed(f"{backup} {fault}.")


def put_back(settings: "Settings", backup: Path) -> Path | None:
    """Put a backup in place; returns where the database that was there is kept (SQLite)."""
    file = sqlite_file(settings)
    if file is None:
        _run("pg_restore", "--clean", "--if-exists", f"--dbname={_libpq_url(settings)}", backup)
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    incoming = file.with_suffix(".incoming")
    shutil.copyfile(backup, incoming)
    kept = None
    if file.exists():
        # A backup of its own rather than a rename: it takes in what lies in a journal or WAL.
        kept = file.with_name(f"{file.name}.before-restore-{int(time.time())}")
        back_up(settings, kept)
        for suffix in ("-journal", "-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
    incoming.replace(file)
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
