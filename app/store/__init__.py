"""Every SQL statement, a file an aggregate."""

from app.store.store import Store, open_store

__all__ = ["Store", "open_store"]
