"""A backup that is put in a database's place: its ids go on above all that were given."""

from contextlib import closing
from pathlib import Path

import pytest

from app.cli.db.backup import back_up, put_back
from app.settings import Settings
from app.store.artifact_root import ArtifactRoot
from app.store.engine import migrate
from app.store.engine.database import Database
from app.store.engine.restored import read_replaced, take_over
from tests.store.conftest import World


@pytest.fixture
def make_world(settings: Settings):
    """Open the database of the settings anew, with its dataset and a worker."""
    migrate.upgrade(settings)
    opened: list[Database] = []

    def make() -> World:
        opened.append(Database(settings))
        return World(settings, opened[-1])

    yield make
    for database in opened:
        database.close()


def restore(settings: Settings, file: Path) -> None:
    replaced = read_replaced(settings)
    put_back(settings, file)
    take_over(settings, replaced)


def test_ids_of_every_table_go_on_above_the_replaced_database(make_world, settings, tmp_path):
    world = make_world()
    known = ArtifactRoot(world.database, tmp_path / "root").database_id
    back_up(settings, tmp_path / "backup")
    given = [world.submit().id for _ in range(3)]
    worker = world.register_worker()
    world.database.close()
    restore(settings, tmp_path / "backup")
    again = make_world()
    assert again.submit().id == max(given) + 1
    assert again.worker > worker
    assert ArtifactRoot(again.database, tmp_path / "root").database_id == known


def test_ids_go_on_above_the_folders_on_disk(make_world, settings, tmp_path):
    make_world().database.close()
    back_up(settings, tmp_path / "backup")
    (settings.artifact_root / "runs" / "12").mkdir(parents=True)
    restore(settings, tmp_path / "backup")
    assert make_world().submit().id == 13


def test_a_backup_from_before_identities_gets_the_one_it_replaces(make_world, settings, tmp_path):
    world = make_world()
    root = ArtifactRoot(world.database, tmp_path / "root")
    assert root.look() is None
    world.database.close()
    migrate.downgrade(settings, "0006")
    back_up(settings, tmp_path / "backup")
    migrate.upgrade(settings)
    with closing(Database(settings)) as database:
        newer = ArtifactRoot(database, tmp_path / "newer")
        assert newer.look() is None
    restore(settings, tmp_path / "backup")
    migrate.upgrade(settings)
    assert migrate.check(settings) == []
    with closing(Database(settings)) as database:
        again = ArtifactRoot(database, tmp_path / "newer")
        assert again.database_id == newer.database_id != root.database_id
        assert again.look() is None


def test_the_root_of_another_home_is_told_from_the_restored_databases_own(
    make_world, settings, tmp_path, monkeypatch
):
    """A backup that is restored into another home, whose database and root were used already."""
    world = make_world()
    assert ArtifactRoot(world.database, tmp_path / "root").look() is None
    back_up(settings, tmp_path / "backup")
    world.database.close()
    migrate.downgrade(settings, "0006")  # now it is another database, with an id of its own
    migrate.upgrade(settings)
    with closing(Database(settings)) as database:
        assert ArtifactRoot(database, tmp_path / "other").look() is None
    restore(settings, tmp_path / "backup")
    with closing(Database(settings)) as database:
        assert "another database" in (ArtifactRoot(database, tmp_path / "other").look() or "")
        assert ArtifactRoot(database, tmp_path / "root").look() is None


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_database_that_cannot_be_read_hands_nothing_on(make_world, settings, tmp_path):
    make_world().database.close()
    back_up(settings, tmp_path / "backup")
    file = settings.home / "stoker.db"
    file.write_bytes(b"this is no database" * 1000)
    restore(settings, tmp_path / "backup")
    assert make_world().submit().id == 1
