"""What a command works with: the settings, a client, the store. Each imported when asked for.

pydantic, httpx and SQLAlchemy take longer to import than everything else a command does, and
`stoker --help` needs none of them. So commands import what brings them late, where they use it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from app.cli.db.storage import is_created
from app.cli.failures import CommandFailed

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store import Store
    from stoker import Client


def read_settings(**overrides: object) -> "Settings":
    from app.settings import load_settings

    return load_settings(**overrides)


def connect() -> "Client":
    """A client of the service of these settings."""
    from stoker import Client

    return Client(home=read_settings().home)


@contextmanager
def open_database(settings: "Settings") -> Iterator["Store"]:
    """The store, for what is done on the service's own machine; refuses an old or absent schema."""
    from app.store import open_store

    if not is_created(settings):
        raise CommandFailed(
            f"There is no database in {settings.home} yet. `stoker db upgrade` creates it, and so "
            "does the first `stoker up`."
        )
    store = open_store(settings)
    try:
        if not store.schema_is_current():
            raise CommandFailed(
                "The database has a different schema than this version of Stoker needs. "
                "Run `stoker db upgrade` (a backup first: `stoker db backup FILE`)."
            )
        yield store
    finally:
        store.close()
