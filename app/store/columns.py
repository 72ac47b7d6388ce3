"""What the tables are made of: types of columns that both databases have, and kinds of tables."""

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, ForeignKey, Integer, MetaData, Table, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine


class PlainText(TypeDecorator[str]):
    """Text as both databases can hold it: NUL and lone surrogates become U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return storable(value)


# What JSON cannot say becomes null, see app.plainjson; order of keys is kept.
Document = JSON(none_as_null=True)


def storable(text: str) -> str:
    """The text without NUL and lone surrogates."""
    return (
        text.replace("\x00", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    )


# SQLite gives automatic ids to INTEGER alone.
Id: TypeEngine[int] = BigInteger().with_variant(Integer(), "sqlite")
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def table(name: str, *parts: Any) -> Table:
    return Table(name, metadata, *parts, sqlite_autoincrement=True)


def narrow_table(name: str, *parts: Any) -> Table:
    """A table of small rows, clustered by its key: one run's rows lie together."""
    return Table(name, metadata, *parts, sqlite_with_rowid=False)


def wide_table(name: str, *parts: Any) -> Table:
    """A table of rows too big to be clustered well."""
    return Table(name, metadata, *parts)


def run_key() -> Column[int]:
    return Column("run_id", Id, ForeignKey("runs.id"), primary_key=True)


def id_column() -> Column[int]:
    return Column("id", Id, primary_key=True)
