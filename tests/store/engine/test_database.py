"""The file of SQLite: its locks hold, its journal fits the library, and a backup is one file."""

import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.errors import FileLocked, Unavailable
from app.settings import Settings, load_settings
from app.store.engine import migrate, sqlite
from app.store.engine.database import make_engine
from app.store.engine.sqlite import driver, has_wal_reset_bug
from app.store.store import open_store

WRITE = (
    "import sys; from app.store.engine.sqlite import driver; "
    "driver.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
)


@pytest.fixture
def rollback_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where SQLite must not use a WAL: then the locks lie on the file of the database itself."""
    monkeypatch.setattr(sqlite, "journal_mode", lambda: sqlite.ROLLBACK)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = load_settings(home=tmp_path)
    migrate.upgrade(settings)
    return settings


def another_process_may_write(settings: Settings) -> bool:
    command = [sys.executable, "-c", WRITE, str(settings.home / "stoker.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "database is locked" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_lock_outlives_what_else_this_process_opens(
    rollback_journal: None, settings: Settings
) -> None:
    """The system drops all of a process's locks on a file when it closes any descriptor of it."""
    with closing(open_store(settings)) as store:
        _, secret = store.tokens.create("mine")
        with store.database.write() as connection:
            connection.exec_driver_sql("UPDATE tokens SET name = 'yours'")
            assert not another_process_may_write(settings)
            with make_engine(settings.database_url).connect():
                assert store.tokens.verify(secret) is not None
            assert not another_process_may_write(settings)
        assert another_process_may_write(settings)


TELL = """
import sys
from pathlib import Path
from app.settings import load_settings
from app.store.engine import migrate
from app.store import open_store

settings = load_settings(home=Path(sys.argv[1]))
migrate.upgrade(settings)
store = open_store(settings)
store.tokens.create("one more")
with store.database.read() as connection:
    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
print(mode, len(store.tokens.list()))
store.close()
"""
WITHOUT_PYSQLITE3 = "import sys; sys.modules['pysqlite3'] = None\n"


def told(home: Path, program: str) -> list[str]:
    command = [sys.executable, "-c", program, str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_a_database_goes_from_one_sqlite_to_another(tmp_path: Path) -> None:
    """From an installation without pysqlite3 to one with it and back; nothing is lost."""
    systems = "persist" if has_wal_reset_bug(sqlite3.sqlite_version_info) else "wal"
    newer = "persist" if has_wal_reset_bug(driver.sqlite_version_info) else "wal"
    assert told(tmp_path, WITHOUT_PYSQLITE3 + TELL) == [systems, "1"]
    assert told(tmp_path, TELL) == [newer, "2"]
    assert told(tmp_path, WITHOUT_PYSQLITE3 + TELL) == [systems, "3"]


def test_a_backup_is_one_file_that_a_folder_without_write_permission_can_hold(
    settings: Settings, tmp_path: Path
) -> None:
    with closing(open_store(settings)) as store:
        store.tokens.create("mine")
        folder = tmp_path / "backups"
        folder.mkdir()
        sqlite.copy(settings.home / "stoker.db", folder / "copy.db")
    assert [file.name for file in folder.iterdir()] == ["copy.db"]
    header = (folder / "copy.db").read_bytes()
    assert header[18:20] == bytes([1, 1])  # sqlite.org/fileformat.html: rollback journal
    assert sqlite.fault_of(folder / "copy.db") is None
    assert [file.name for file in folder.iterdir()] == ["copy.db"]


def test_writers_behind_a_lock_wait_side_by_side(settings: Settings) -> None:
    """Not one after the other: the fourth would answer after four times the patience."""
    patience, count = 0.5, 40
    with closing(open_store(settings, busy_seconds=patience)) as store:
        other = driver.connect(str(settings.home / "stoker.db"))
        other.execute("BEGIN IMMEDIATE").close()
        begun = time.monotonic()
        with ThreadPoolExecutor(count) as threads:
            calls = [threads.submit(store.tokens.create, "mine") for _ in range(count)]
            for call in calls:
                with pytest.raises(Unavailable, match="locked"):
                    call.result()
        assert time.monotonic() - begun < patience * count / 2
        other.rollback()
        other.close()
        assert store.tokens.create("mine")


def test_a_file_that_another_process_holds_is_told_from_one_that_cannot_be_written(
    settings: Settings,
) -> None:
    """A worker's runs go on while the file is locked, and on nothing else."""
    with (
        closing(open_store(settings, busy_seconds=0.1)) as store,
        closing(driver.connect(str(settings.home / "stoker.db"))) as other,
    ):
        other.execute("BEGIN IMMEDIATE").close()
        with pytest.raises(FileLocked):
            store.tokens.create("mine")
        other.rollback()
        store.tokens.create("mine")
        with store.database.write() as connection:
            connection.exec_driver_sql("PRAGMA query_only = ON")
        with pytest.raises(Unavailable) as caught:
            store.tokens.create("yours")
    assert not isinstance(caught.value, FileLocked)


def test_a_commit_that_a_reader_refuses_leaves_no_lock_behind(
    rollback_journal: None, settings: Settings
) -> None:
    """Else the connection goes back to the pool with its transaction open."""
    with (
        closing(open_store(settings, busy_seconds=0.1)) as store,
        closing(driver.connect(str(settings.home / "stoker.db"), isolation_level=None)) as reader,
    ):
        store.tokens.create("before")
        reader.execute("BEGIN").close()
        reader.execute("SELECT name FROM tokens").fetchall()
        with pytest.raises(FileLocked):
            store.tokens.create("refused")
        reader.execute("ROLLBACK").close()
        assert another_process_may_write(settings)
        store.tokens.create("after")
        assert [token.name for token in store.tokens.list()] == ["before", "after"]


@pytest.mark.parametrize(
    ("kind", "is_local"), [("ext4", True), ("overlay", True), ("nfs4", False), ("newfs", False)]
)
def test_a_file_is_on_one_host_where_its_file_system_is_known_to_be(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, kind: str, is_local: bool
) -> None:
    """SQLite with a rollback journal works on a network's, too, and says busy there as well."""
    mounted = SimpleNamespace(mountpoint=str(settings.home), fstype=kind)
    monkeypatch.setattr("psutil.disk_partitions", lambda all: [mounted])  # noqa: A006
    with closing(open_store(settings)) as store:
        assert store.database.is_on_one_host() is is_local
