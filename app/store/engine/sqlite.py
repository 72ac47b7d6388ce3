"""Which SQLite serves the database, and how a connection to its file is set up."""

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

__all__ = [
    "ROLLBACK",
    "begin_immediate",
    "configure",
    "connect",
    "copy",
    "create_private",
    "driver",
    "fault_of",
    "has_wal_reset_bug",
    "is_busy",
    "journal_mode",
    "without_foreign_keys",
]

# The standard library's module with a newer SQLite inside: the system's is often one that must not
# use a WAL. Where it has no wheel, the system's serves, with a rollback journal.
try:
    from pysqlite3 import dbapi2 as driver
except ImportError:
    import sqlite3 as driver

# A journal that stays spares each commit the making and the unlinking of a file.
ROLLBACK = "PERSIST"
# All zero in a rollback journal that stays.
JOURNAL_HEADER_BYTES = 28
BUSY_CODE = 5  # SQLITE_BUSY


def has_wal_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite can corrupt a WAL database (sqlite.org/wal.html, "WAL-reset bug")."""
    fixed_backports = {(3, 44): 6, (3, 50): 7}
    if version[:2] in fixed_backports:
        return version[2] < fixed_backports[version[0], version[1]]
    return (3, 7, 0) <= version < (3, 51, 3)


def journal_mode() -> str:
    """How this SQLite is to keep its journal."""
    return ROLLBACK if has_wal_reset_bug(driver.sqlite_version_info) else "WAL"


def create_private(file: str) -> None:
    """Have a new file readable by its owner alone; SQLite gives its journals the same mode."""
    # Never one that is there: to close any descriptor of a file drops all locks that this process
    # holds on it, and two could write at once.
    with suppress(OSError):  # SQLite says it better
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def configure(connection: Any) -> None:
    """Commits that last, and references that hold; transactions begin where their caller says."""
    connection.isolation_level = None
    for pragma in (f"journal_mode={journal_mode()}", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def begin_immediate(connection: Any, patience_seconds: float, busy_seconds: float) -> None:
    """Begin with the writer's lock, which others may hold so long; `busy_seconds` of patience for
    whatever follows.
    """
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={round(patience_seconds * 1000)}").close()
    try:
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE").close()
    finally:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={round(busy_seconds * 1000)}").close()


def is_busy(error: object) -> bool:
    """Whether somebody else held the file; the lower byte of a code is the kind of error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == BUSY_CODE


def without_foreign_keys(connection: Any) -> None:
    """From now on references of this connection are not looked at."""
    connection.execute("PRAGMA foreign_keys=OFF").close()


def connect(file: str, busy_seconds: float) -> Any:
    """A connection that threads may share, one at a time."""
    connection = driver.connect(file, timeout=busy_seconds, check_same_thread=False)
    configure(connection)
    return connection


def copy(file: Path, target: Path) -> None:
    """Copy a database as it is at one moment, also while others write; the copy is one file."""
    # Not read-only: what a killed process left half done has to be undone first.
    with closing(_open(file, "mode=rw")) as source, closing(driver.connect(str(target))) as made:
        source.backup(made)
        made.execute("PRAGMA journal_mode=DELETE").close()


def fault_of(backup: Path) -> str | None:
    """What keeps a file that nobody writes from being a backup of Stoker's; None: nothing."""
    for log in (backup.with_name(backup.name + suffix) for suffix in ("-wal", "-journal")):
        if log.exists() and any(log.read_bytes()[:JOURNAL_HEADER_BYTES]):
            return f"is not whole: a part of it is in {log.name}. stoker db backup makes one file"
    try:
        with closing(_open(backup, "immutable=1")) as connection:
            [said] = connection.execute("PRAGMA quick_check(1)").fetchone()
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone()
    except driver.DatabaseError as error:
        return f"is damaged: {error}"
    if said != "ok":
        return f"is damaged: {said}"
    return None if known else "is a SQLite database of another program: it has no runs"


def _open(file: Path, how: str) -> Any:
    return driver.connect(f"{file.absolute().as_uri()}?{how}", uri=True)
