"""No call blocks for ever on PostgreSQL: a real server, behind a proxy that stops forwarding."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from app.errors import Unavailable
from app.settings import load_settings
from app.store.engine.database import Database
from tests.store.server import FreezingProxy, PostgresServer

pytestmark = pytest.mark.postgres

BUSY_SECONDS = 0.5


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[FreezingProxy]:
    with closing(FreezingProxy(postgres.new_database())) as proxy:
        yield proxy


@pytest.fixture
def database(proxy: FreezingProxy, tmp_path: Path) -> Iterator[Database]:
    settings = load_settings(home=tmp_path, database_url=proxy.url)
    with closing(Database(settings, BUSY_SECONDS)) as database:
        with database.write() as connection:
            connection.execute(text("CREATE TABLE one (n integer)"))
            connection.execute(text("INSERT INTO one VALUES (1)"))
        yield database
        proxy.thaw()


def count(database: Database) -> int:
    with database.read() as connection:
        return int(connection.execute(text("SELECT count(*) FROM one")).scalar_one())


def test_calls_end_while_nothing_is_passed_on_and_work_again_after(
    database: Database, proxy: FreezingProxy
) -> None:
    proxy.freeze()
    for _ in range(2):  # with a connection from the pool, and with a new one
        with pytest.raises(Unavailable):
            count(database)
    proxy.thaw()
    assert count(database) == 1


def test_a_transaction_that_freezes_on_its_way_ends(
    database: Database, proxy: FreezingProxy
) -> None:
    def insert() -> None:
        with database.write() as connection:
            connection.execute(text("INSERT INTO one VALUES (2)"))
            proxy.freeze()
            connection.execute(text("INSERT INTO one VALUES (3)"))

    with pytest.raises(Unavailable):
        insert()
    proxy.thaw()
    assert count(database) == 1


def test_of_a_commit_that_freezes_nobody_knows_whether_it_is_stored(
    database: Database, proxy: FreezingProxy
) -> None:
    def insert() -> None:
        with database.write() as connection:
            connection.execute(text("INSERT INTO one VALUES (2)"))
            proxy.freeze()

    with pytest.raises(Unavailable) as caught:
        insert()
    assert caught.value.problem_code == "outcome_unknown"


def test_a_row_that_another_holds_is_waited_for_no_longer_than_busy_seconds(
    database: Database,
) -> None:
    with database.write() as holder:
        holder.execute(text("UPDATE one SET n = 2"))
        with pytest.raises(Unavailable, match="lock"), database.write() as connection:
            connection.execute(text("UPDATE one SET n = 3"))


def test_a_process_that_stands_still_in_a_transaction_holds_up_nobody(database: Database) -> None:
    def stand_still() -> None:
        with database.write() as standing:
            standing.execute(text("UPDATE one SET n = 2"))
            time.sleep(3 * BUSY_SECONDS)
            with database.write() as connection:
                connection.execute(text("UPDATE one SET n = 3"))
            standing.execute(text("UPDATE one SET n = 4"))

    with pytest.raises(Unavailable):
        stand_still()
    assert count(database) == 1


def test_a_server_that_was_restarted_meanwhile_costs_no_call(
    database: Database, postgres: PostgresServer
) -> None:
    assert count(database) == 1
    postgres.restart()
    assert count(database) == 1
    with database.read() as connection, database.read() as other:  # the pool holds two
        assert other.execute(text("SELECT 1")).scalar() == 1
        assert connection.execute(text("SELECT 1")).scalar() == 1
    postgres.restart()
    with database.read() as connection, database.read() as other:
        assert other.execute(text("SELECT 1")).scalar() == 1
        assert connection.execute(text("SELECT 1")).scalar() == 1
