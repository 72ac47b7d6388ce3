"""What a database that a backup replaces hands on to it: ids never come again."""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, insert, inspect, select

from app.errors import Unavailable
from app.settings import Settings
from app.store.artifact_root import highest_run_on_disk
from app.store.engine.database import Database
from app.store.engine.sequences import last_ids, raise_ids
from app.store.tables import database_identity


@dataclass(frozen=True)
class Replaced:
    """How far the ids of a database had come, and its own id; empty where it cannot be read."""

    last_ids: dict[str, int] = field(default_factory=dict)
    database_id: str | None = None


def read_replaced(settings: Settings) -> Replaced:
    """Of the database that is there now."""
    try:
        with closing(Database(settings)) as database, database.read() as connection:
            return Replaced(last_ids(connection), _id_of(connection))
    except Unavailable:
        return Replaced()


def take_over(settings: Settings, replaced: Replaced) -> None:
    """Have the restored database go on above all ids that the replaced one and the artifacts know.

    A restored database has the id that it had; one from before there were ids gets the replaced
    one's, for it goes on with the same artifacts.
    """
    least = dict(replaced.last_ids)
    least["runs"] = max(least.get("runs", 0), _highest_on_disk(settings.artifact_root))
    with closing(Database(settings)) as database, database.write() as connection:
        raise_ids(connection, least)
        if replaced.database_id is not None and _id_of(connection) is None:
            database_identity.create(connection, checkfirst=True)
            connection.execute(insert(database_identity).values(id=replaced.database_id))


def _highest_on_disk(root: Path) -> int:
    """0 where the root is away: a worker looks again when it is back."""
    try:
        return highest_run_on_disk(root)
    except OSError:
        return 0


def _id_of(connection: Connection) -> str | None:
    if not inspect(connection).has_table(database_identity.name):
        return None
    return connection.execute(select(database_identity.c.id)).scalar()
