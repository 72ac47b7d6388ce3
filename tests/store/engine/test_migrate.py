"""The schema: built by the migrations alone, up and down, and never touched by older code."""

import os
import sys
from contextlib import ExitStack, closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, select, text

from app.errors import InvalidRequest, Unavailable
from app.lifecycle import Intent, Reason
from app.settings import Settings, load_settings
from app.store import open_store
from app.store.engine import migrate
from app.store.engine.database import Database
from app.store.engine.sqlite import driver, has_wal_reset_bug
from app.store.identity import this_process
from app.store.records import Finish
from app.store.tables import metadata, runs
from app.store.worker_records import NewWorker
from tests.store.conftest import World, new_run


def test_the_migrations_make_the_tables_of_the_code(settings: Settings) -> None:
    migrate.upgrade(settings)
    with closing(Database(settings)) as database, database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_down_to_nothing_and_up_again(settings: Settings) -> None:
    migrate.upgrade(settings)
    store = open_store(settings)
    store.datasets.register("weather", "weather.h5")
    parent, _ = store.runs.create(new_run())
    store.runs.set_intent(parent.id, Intent.stop)
    me = this_process()
    new = NewWorker("agent", me.host, me.boot_id, me.pid, me.start_time, "0.1")
    store.jobs.order_probe(store.workers.register(new), {})
    store.close()
    migrate.downgrade(settings, "0003")
    with closing(Database(settings)) as database, database.read() as connection:
        assert "result" not in [
            column["name"] for column in inspect(connection).get_columns("jobs")
        ]
        kinds = connection.execute(text("SELECT kind FROM jobs")).scalars().all()
        assert kinds == ["inspect_dataset"], "the worker of before knows no probe"
    migrate.downgrade(settings, "base")
    with closing(Database(settings)) as database, database.read() as connection:
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}
    assert migrate.current(settings) is None
    migrate.upgrade(settings)
    assert migrate.current(settings) == migrate.head_revision()
    assert migrate.check(settings) == []


def test_what_runs_have_told_before_counts_after_an_upgrade(world: World) -> None:
    """Of runs that are over, which a trigger keeps as they were, and of those that go on."""
    ended = world.running()
    world.store.leases.finish(ended.token, Finish(Reason.completed, "It is done."))
    running, waiting = world.running(), world.submit(recipe="molecule")
    likeness = select(runs.c.id, runs.c.likeness).order_by(runs.c.id)
    with world.database.read() as connection:
        before = connection.execute(likeness).all()
    migrate.downgrade(world.settings, "0005")
    with world.database.read() as connection:
        assert "likeness" not in {one["name"] for one in inspect(connection).get_columns("runs")}
    migrate.upgrade(world.settings)
    with world.database.read() as connection:
        assert connection.execute(likeness).all() == before
    assert [row.id for row in before] == [ended.run_id, running.run_id, waiting.id]
    assert all(row.likeness for row in before)
    assert world.store.runs.get(ended.run_id).state == "succeeded"


def test_an_upgrade_of_what_is_current_changes_nothing(world: World) -> None:
    run = world.submit()
    migrate.upgrade(world.settings)
    assert world.store.runs.get(run.id) == run
    assert world.store.schema_is_current()


def test_a_database_of_newer_code_is_refused_with_a_way_out(settings: Settings) -> None:
    migrate.upgrade(settings)
    with closing(open_store(settings)) as store:
        with store.database.write() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        assert not store.schema_is_current()
    with pytest.raises(Unavailable, match=r"newer version of Stoker.*9999") as refusal:
        migrate.upgrade(settings)
    assert refusal.value.problem_code == "database_newer"
    assert "9999" in migrate.check(settings)[0]


def test_an_empty_database_is_said_to_be_old(settings: Settings) -> None:
    settings.home.mkdir()
    assert f"this version needs {migrate.head_revision()}" in migrate.check(settings)[0]


def test_a_store_whose_connections_are_all_in_use_is_a_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.store.database.engine.pool, "_timeout", 0)
    with ExitStack() as stack:

        def take_all() -> None:
            while True:
                stack.enter_context(world.store.database.read())

        with pytest.raises(Unavailable, match="in use"):
            take_all()


def test_a_server_out_of_reach_is_a_sentence() -> None:
    settings = load_settings(database_url="postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    with closing(open_store(settings)) as store, pytest.raises(Unavailable, match="stoker doctor"):
        store.ping()
    assert "could not do its work" in migrate.check(settings)[0]


@pytest.mark.parametrize(
    "url",
    ["no url", "postgresql://u:geheim@h:port/db", "", "postgresql://u:geheim@h/?port=1&port=2"],
)
def test_what_is_no_url_is_a_sentence_that_keeps_the_password(url: str) -> None:
    with pytest.raises(InvalidRequest, match="STOKER_DATABASE_URL cannot be read") as refusal:
        open_store(load_settings().model_copy(update={"database_url": url}))
    assert "geheim" not in refusal.value.detail


def test_postgresql_without_its_library_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "psycopg"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidRequest, match=r"psycopg.*pip install"):
        open_store(load_settings(database_url="postgresql://nobody@127.0.0.1:1/nothing"))


def test_a_parameter_that_the_server_does_not_know_is_a_sentence() -> None:
    settings = load_settings(database_url="postgresql://nobody@127.0.0.1:1/nothing?colour=red")
    with closing(open_store(settings)) as store, pytest.raises(Unavailable, match="colour"):
        store.ping()


def test_a_parameter_that_would_have_no_effect_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="colour"):
        open_store(load_settings(database_url="sqlite:////tmp/x.db?colour=red"))


@pytest.mark.parametrize("url", ["mysql://u@h/d", "sqlite://", "oracle://h/d"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="SQLite file"):
        open_store(load_settings(database_url=url))


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
class TestSqlite:
    def test_the_file_is_its_owners_alone(self, settings: Settings) -> None:
        before = os.umask(0)
        try:
            migrate.upgrade(settings)
        finally:
            os.umask(before)
        assert (settings.home / "stoker.db").stat().st_mode & 0o777 == 0o600

    def test_connections_follow_the_recipe(self, world: World) -> None:
        with world.store.database.read() as connection:
            found = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("foreign_keys", "synchronous", "journal_mode", "busy_timeout")
            }
        journal = "persist" if has_wal_reset_bug(driver.sqlite_version_info) else "wal"
        assert found == {
            "foreign_keys": 1,
            "synchronous": 2,
            "journal_mode": journal,
            "busy_timeout": 10_000,
        }

    def test_an_agent_does_not_wait_out_its_lease_for_the_file(self, world: World) -> None:
        with closing(open_store(world.settings, busy_seconds=0.0)) as hasty:
            with world.store.database.write(), pytest.raises(Unavailable, match="locked"):
                hasty.workers.set_state(world.worker, "draining")
            hasty.workers.set_state(world.worker, "draining")
        assert world.store.workers.get(world.worker).state == "draining"

    @pytest.mark.parametrize(
        ("version", "has_bug"),
        [
            ((3, 6, 23), False), ((3, 7, 0), True), ((3, 40, 1), True), ((3, 44, 5), True),
            ((3, 44, 6), False), ((3, 45, 0), True), ((3, 50, 6), True), ((3, 50, 7), False),
            ((3, 51, 2), True), ((3, 51, 3), False), ((3, 52, 0), False),
        ],
    )  # fmt: skip
    def test_versions_with_the_wal_reset_bug(
        self, kind: str, version: tuple[int, int, int], has_bug: bool
    ) -> None:
        assert has_wal_reset_bug(version) is has_bug

    def test_a_damaged_file_is_found(self, world: World) -> None:
        for _ in range(50):
            world.submit(notes="x" * 2000)
        world.store.close()
        file = world.settings.home / "stoker.db"
        data = bytearray(file.read_bytes())
        data[len(data) // 2 : len(data) // 2 + 8192] = b"\x55" * 8192
        file.write_bytes(data)
        assert migrate.check(world.settings) != []
