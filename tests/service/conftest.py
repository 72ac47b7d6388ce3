"""The stores of tests/store, for what stands on them."""

from tests.store.conftest import (
    kind,
    postgres,
    settings,
    store,
    upgraded_postgres,
    world,
)

__all__ = ["kind", "postgres", "settings", "store", "upgraded_postgres", "world"]
