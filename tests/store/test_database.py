"""The file of SQLite: its locks hold, whatever else this process opens."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.settings import Settings, load_settings
from app.store import migrate
from app.store.database import make_engine
from app.store.store import open_store

WRITE = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"


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


def test_a_lock_outlives_what_else_this_process_opens(settings: Settings) -> None:
    """The system drops all of a process's locks on a file when it closes any descriptor of it."""
    with closing(open_store(settings)) as store:
        _, secret = store.tokens.create("mine")
        with store.database.write() as connection:
            connection.exec_driver_sql("UPDATE tokens SET name = 'yours'")
            assert not another_process_may_write(settings)
            with make_engine(settings.database_url).connect():
                assert store.tokens.verify(secret, at_once=True) is not None
            assert not another_process_may_write(settings)
        assert another_process_may_write(settings)
