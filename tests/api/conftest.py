"""A real API on a real store in a folder of its own, and somebody who plays the worker."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.api.main import create_app
from app.settings import Settings, load_settings
from app.store.engine.database import Database
from app.store.store import Store
from tests.api.support import Api, Player


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "data").mkdir()
    return load_settings(home=tmp_path, port=0)


@pytest.fixture
def store(settings: Settings, sqlite_in: Callable[[Path], Database]) -> Store:
    return Store(sqlite_in(settings.home))


@pytest.fixture(scope="session")
def document(empty_database: Path) -> dict[str, Any]:
    """OpenAPI's, by which calls are read: an application makes it at its first request, and to
    make it anew in each test takes longer than most of them.
    """
    return create_app(load_settings(home=empty_database.parent)).openapi()


@pytest.fixture
def api(settings: Settings, store: Store, document: dict[str, Any]) -> Iterator[Api]:
    _, secret = store.tokens.create("test")
    app = create_app(settings, store)
    app.openapi_schema = document
    with Api(app, secret) as running:
        yield running


@pytest.fixture
def player(store: Store, settings: Settings) -> Player:
    """Plays the worker, with a dataset `weather` that it has inspected."""
    return Player(store, settings)
