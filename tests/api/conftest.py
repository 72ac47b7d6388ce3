"""A real API on a real store in a folder of its own, and somebody who plays the worker."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.api.main import create_app
from app.settings import Settings, load_settings
from app.store.engine.migrate import upgrade
from app.store.store import Store, open_store
from tests.api.support import Api, Player


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database to copy, for migrating anew in each test is slow."""
    home = tmp_path_factory.mktemp("template")
    upgrade(load_settings(home=home))
    return home / "stoker.db"


@pytest.fixture
def settings(tmp_path: Path, empty_database: Path) -> Settings:
    shutil.copy(empty_database, tmp_path / "stoker.db")
    (tmp_path / "data").mkdir()
    return load_settings(home=tmp_path, port=0)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    opened = open_store(settings)
    yield opened
    opened.close()


@pytest.fixture
def api(settings: Settings, store: Store) -> Iterator[Api]:
    _, secret = store.tokens.create("test")
    with Api(create_app(settings, store), secret) as running:
        yield running


@pytest.fixture
def player(store: Store, settings: Settings) -> Player:
    """Plays the worker, with a dataset `weather` that it has inspected."""
    return Player(store, settings)
