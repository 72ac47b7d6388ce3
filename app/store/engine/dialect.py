"""INSERT … ON CONFLICT, which both databases have, but each under its own name."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def _insert(connection: Connection, table: Table) -> Any:
    return _insert_of(connection.dialect.name, table)


def _insert_of(dialect: str, table: Table) -> Any:
    module = sqlite if dialect == "sqlite" else postgresql
    return module.insert(table)


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, all with the same columns; one whose primary key is there replaces it."""
    if rows:
        connection.execute(_upsert(connection.dialect.name, table, tuple(rows[0])), rows)


@cache  # every beat needs two, and to build one costs more than to execute it
def _upsert(dialect: str, table: Table, columns: tuple[str, ...]) -> Any:
    statement = _insert_of(dialect, table)
    keys = [column.name for column in table.primary_key]
    changed = {name: statement.excluded[name] for name in columns if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def insert_unless_there(connection: Connection, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless a unique column holds its value already; whether it was inserted.

    On PostgreSQL it waits for another transaction that is inserting the same.
    """
    statement = _insert(connection, table).values(row).on_conflict_do_nothing()
    returned = connection.execute(statement.returning(*table.primary_key))
    return returned.one_or_none() is not None
