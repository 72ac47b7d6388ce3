"""Tables that SQLite has to rebuild: nothing of them is lost, and nothing is left dangling."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, InternalError

import migrations
from app.errors import Conflict, Unavailable
from app.lifecycle import Intent, Reason
from app.settings import Settings, load_settings
from app.store.engine import migrate
from app.store.engine.database import Database
from app.store.engine.migrate import alone
from app.store.records import Finish
from app.store.tables import metadata
from migrations.rebuilding import rebuilt
from tests.store.conftest import World

ROOT = Path(migrations.__path__[0]).parent


def schema(database: Database) -> dict[str, str]:
    """The definitions of everything, by name; of a table without its layout, which is copied."""
    with database.read() as connection:
        rows = connection.execute(
            text("SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL")
        )
        return {row.name: "" if row.type == "table" else row.sql for row in rows}


def rebuild(settings: Settings, table: str) -> None:
    """As a migration would, but with no change."""
    with alone(settings) as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context), rebuilt(table):
            pass


@pytest.mark.parametrize("table", sorted(metadata.tables))
def test_any_table_can_be_rebuilt_with_rows_that_refer_to_it(world: World, table: str) -> None:
    lease = world.running(labels={"a": "b"})
    world.store.leases.finish(lease.token, Finish(Reason.completed, "It is done."))
    before = world.store.runs.get(lease.run_id)
    definitions = schema(world.database) if world.database.is_sqlite else None
    rebuild(world.settings, table)
    if definitions is not None:
        assert schema(world.database) == definitions
    assert migrate.check(world.settings) == []
    assert world.store.runs.get(lease.run_id) == before
    refused = pytest.raises((IntegrityError, InternalError), match="over does not change")
    with refused, world.database.write() as connection:
        connection.execute(text("UPDATE runs SET reason = 'x'"))
    with pytest.raises(IntegrityError), world.database.write() as connection:
        connection.execute(text("UPDATE run_datasets SET name = 'moon'"))


def test_ids_that_were_given_out_do_not_come_again(world: World) -> None:
    first, _ = world.store.tokens.create("a")
    with world.database.write() as connection:
        connection.execute(text("DELETE FROM tokens"))
    rebuild(world.settings, "tokens")
    assert world.store.tokens.create("b")[0].id > first.id


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_migration_that_leaves_something_dangling_is_undone(world: World) -> None:
    world.submit()

    def change() -> None:
        with alone(world.settings) as connection:
            connection.execute(text("DELETE FROM datasets"))
            connection.execute(text("UPDATE alembic_version SET version_num = '0011'"))

    with pytest.raises(Unavailable, match=r"row of run_datasets refers to a row of datasets"):
        change()
    assert world.store.schema_is_current()
    assert world.store.datasets.get("weather").name == "weather"


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_after_an_upgrade_references_are_looked_at_again(world: World) -> None:
    rebuild(world.settings, "run_labels")
    with pytest.raises(IntegrityError), world.database.write() as connection:
        connection.execute(text("INSERT INTO run_labels VALUES (99, 'a', 'b')"))


def test_a_dataset_that_only_deleted_runs_read_can_be_forgotten(world: World) -> None:
    for name in ("spring", "autumn"):
        world.store.datasets.register(name, f"{name}.h5")
    spec = {"data": {"dataset": "spring", "split": {"validation": "autumn"}}}
    run = world.submit(dataset="spring", spec=spec)
    world.store.runs.set_intent(run.id, Intent.stop)
    for name in ("spring", "autumn"):
        with pytest.raises(Conflict, match=f"Run {run.id} reads"):
            world.store.datasets.forget(name)
    world.store.runs.delete(run.id)
    for name in ("spring", "autumn"):
        world.store.datasets.forget(name)
    assert [one.name for one in world.store.datasets.list(9).data] == ["weather"]
    assert world.submit().id > run.id
    migrate.downgrade(world.settings, "0011")
    assert world.store.datasets.get("spring").message == "It was forgotten."
    migrate.upgrade(world.settings)
    assert migrate.check(world.settings) == []


@pytest.fixture
def by_hand(tmp_path: Path) -> Callable[..., str]:
    """Calls alembic as in a checkout, on a copy of it, and gives what it said."""
    home, checkout = tmp_path / "home", tmp_path / "checkout"
    migrate.upgrade(load_settings(home=home))
    shutil.copytree(ROOT / "migrations", checkout / "migrations")
    shutil.copy(ROOT / "pyproject.toml", checkout)

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=checkout,
            env={"STOKER_HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


def test_alembic_finds_by_hand_that_nothing_is_missing(by_hand: Callable[..., str]) -> None:
    assert "No new upgrade operations" in by_hand("check")


def test_alembic_writes_a_migration_by_hand(by_hand: Callable[..., str], tmp_path: Path) -> None:
    by_hand("revision", "--autogenerate", "--rev-id", "9999", "-m", "Colours of tokens")
    (made,) = (tmp_path / "checkout/migrations/versions").glob("r9999_*.py")
    assert made.name == "r9999_colours_of_tokens.py"
    assert made.read_text().startswith('"""Colours of tokens."""\n')
    compile(made.read_text(), made.name, "exec")
