"""Rebuilding a table, which SQLite needs for whatever its ALTER TABLE cannot do."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations
from sqlalchemy import Connection


@contextmanager
def rebuilt(table: str) -> Iterator[BatchOperations]:
    """Alembic's batch operations on a table, also on one that others refer to.

    SQLite: a copy with the changes takes the table's place, and keeps what alembic's copy loses:
    triggers, indexes just as they were, and ids that were given out and are gone. Migrations run
    with foreign keys off and are checked before the commit, see app.store.engine.migrate.
    PostgreSQL changes the table itself.
    """
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        with op.batch_alter_table(table) as batch:
            yield batch
        return
    definition = _definitions(connection, table, "table")[table]
    kept = _definitions(connection, table, "index")
    triggers = _definitions(connection, table, "trigger")
    counts = "AUTOINCREMENT" in definition
    last_id = _last_id(connection, table) if counts else None
    options = {
        "sqlite_autoincrement": counts,
        "sqlite_with_rowid": "WITHOUT ROWID" not in definition,
    }
    with op.batch_alter_table(table, recreate="always", table_kwargs=options) as batch:
        yield batch
    for name in _definitions(connection, table, "index").keys() & kept.keys():
        connection.exec_driver_sql(f'DROP INDEX "{name}"')  # what was read of it may be less
        connection.exec_driver_sql(kept[name])
    for trigger in triggers.values():
        connection.exec_driver_sql(trigger)
    if last_id is not None:
        _give_out_after(connection, table, last_id)


def _definitions(connection: Connection, table: str, kind: str) -> dict[str, str]:
    """What was written to make it, by name; without what SQLite makes by itself."""
    query = sa.text(
        "SELECT name, sql FROM sqlite_master "
        "WHERE tbl_name = :table AND type = :kind AND sql IS NOT NULL"
    )
    rows = connection.execute(query, {"table": table, "kind": kind})
    return {row.name: row.sql for row in rows}


def _last_id(connection: Connection, table: str) -> int | None:
    query = sa.text("SELECT seq FROM sqlite_sequence WHERE name = :table")
    return connection.execute(query, {"table": table}).scalar()


def _give_out_after(connection: Connection, table: str, last_id: int) -> None:
    for statement in (
        "DELETE FROM sqlite_sequence WHERE name = :table",
        "INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :last_id)",
    ):
        connection.execute(sa.text(statement), {"table": table, "last_id": last_id})
