"""The sequences that ids come from: how far each has come, and moving it on, never back."""

from collections.abc import Mapping

from sqlalchemy import Connection, text

from app.store.tables import metadata

COUNTED = frozenset(
    table.name for table in metadata.tables.values() if table.autoincrement_column is not None
)


def last_ids(connection: Connection) -> dict[str, int]:
    """The highest id that each table has given out, rows that are gone included; 0: none yet."""
    if connection.dialect.name == "sqlite":
        query = "SELECT name, seq FROM sqlite_sequence"
        return {name: seq for name, seq in connection.execute(text(query)) if name in COUNTED}
    query = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema()"
    found = {
        name.removesuffix("_id_seq"): seq or 0 for name, seq in connection.execute(text(query))
    }
    return {name: seq for name, seq in found.items() if name in COUNTED}


def raise_ids(connection: Connection, least: Mapping[str, int]) -> None:
    """Have each table's next id be above the given one, if it would not be so anyway."""
    known = last_ids(connection)
    for table, seq in least.items():
        if seq <= known.get(table, 0):
            continue
        if connection.dialect.name == "sqlite":
            _raise_on_sqlite(connection, table, seq)
        elif table in known:
            # Nobody takes an id between the look and the change: each INSERT waits for the lock.
            connection.execute(text(f"LOCK TABLE {table} IN EXCLUSIVE MODE"))
            connection.execute(
                text(
                    f"SELECT setval('{table}_id_seq', greatest(:seq, last_value)) "  # noqa: S608
                    f"FROM {table}_id_seq"
                ),
                {"seq": seq},
            )


def _raise_on_sqlite(connection: Connection, table: str, seq: int) -> None:
    values = {"name": table, "seq": seq}
    moved = text("UPDATE sqlite_sequence SET seq = :seq WHERE name = :name")
    if not connection.execute(moved, values).rowcount:  # no row was ever inserted
        begun = text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)")
        connection.execute(begun, values)


def take_id(connection: Connection, table: str) -> int:
    """The next id of a table, for a row that comes later; nobody else gets it."""
    if connection.dialect.name != "sqlite":
        taken = connection.execute(text(f"SELECT nextval('{table}_id_seq')"))
        return int(taken.scalar_one())
    seq = last_ids(connection).get(table, 0) + 1
    _raise_on_sqlite(connection, table, seq)
    return seq
