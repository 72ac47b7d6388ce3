"""Whether a folder is the artifact root of a database, and that ids never come again."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import Unavailable
from app.lifecycle import Intent
from app.store.artifact_root import MARKER, ArtifactRoot, highest_run_on_disk
from app.store.engine import migrate
from app.store.engine.database import Database
from app.store.engine.sequences import last_ids, raise_ids
from app.store.records import Beat, NewCheckpoint
from tests.store.conftest import World


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "artifacts"


def root_of(world: World, folder: Path) -> ArtifactRoot:
    """As a process sees it that has just started."""
    return ArtifactRoot(world.database, folder)


def save(world: World, folder: Path) -> Path:
    """A run in training with a checkpoint, on disk and in the store; its folder."""
    lease = world.running()
    path = f"runs/{lease.run_id}/attempt-1/checkpoints/step-5"
    (folder / path).mkdir(parents=True)
    saved = NewCheckpoint(5, 0, path, 1, {}, 0)
    world.store.leases.beat(lease.token, Beat(checkpoints=[saved], applied={"threads": 1}))
    return folder / path


def test_the_first_use_makes_and_marks_the_folder(world: World, folder: Path) -> None:
    root = root_of(world, folder)
    assert root.why_away() is None
    assert not folder.exists(), "to ask changes nothing"
    assert root.look() is None
    marker = json.loads((folder / MARKER).read_text())
    assert marker["database"] == root.database_id
    assert "no checkpoint is forgotten" in marker["purpose"]
    assert [path.name for path in folder.iterdir()] == [MARKER]
    assert root_of(world, folder).look() is None


def test_a_folder_that_lacks_what_was_saved_is_not_the_root(world: World, folder: Path) -> None:
    root = root_of(world, folder)
    root.look()
    save(world, folder)
    folder.rename(folder.with_name("unmounted"))
    for there in (False, True):
        if there:
            folder.mkdir()
        for one in (root, root_of(world, folder)):
            assert "may not be mounted" in (one.look() or "")
            assert one.away == one.look()
            assert not one.is_here()
        assert not there or list(folder.iterdir()) == []
    folder.rmdir()
    folder.with_name("unmounted").rename(folder)
    assert root.look() is None
    assert root.away is None


def test_an_attempt_alone_is_missed_too(world: World, folder: Path) -> None:
    lease = world.running()
    world.store.leases.beat(lease.token, Beat(applied={"threads": 1}))
    assert "may not be mounted" in (root_of(world, folder).look() or "")
    assert not folder.exists()
    (folder / f"runs/{lease.run_id}/attempt-1").mkdir(parents=True)
    assert root_of(world, folder).look() is None


def test_a_deleted_run_is_not_missed(world: World, folder: Path) -> None:
    save(world, folder)
    lease_of = world.store.leases.holders()[0]
    world.store.runs.set_intent(lease_of.run_id, Intent.stop)
    world.store.leases.declare_lost(lease_of.token, lease_of.beat)
    world.store.runs.delete(lease_of.run_id)
    shutil.rmtree(folder)
    assert root_of(world, folder).look() is None
    shutil.rmtree(folder)
    assert "may not be mounted" in (root_of(world, folder).look() or ""), "it was used before"


def test_a_home_from_before_markers_is_known_by_its_folders(world: World, folder: Path) -> None:
    paths = [save(world, folder) for _ in range(3)]
    migrate.downgrade(world.settings, "0006")
    migrate.upgrade(world.settings)
    root = root_of(world, folder)
    for path in paths[:2]:
        shutil.rmtree(path.parents[2])
    assert "may not be mounted" in (root.look() or ""), "most of it is not there"
    for path in paths[:2]:
        path.mkdir(parents=True)
    shutil.rmtree(paths[0])
    assert root.look() is None, "a checkpoint that somebody has removed does not matter"
    assert (folder / MARKER).exists()


def test_the_root_of_another_database_is_refused_until_it_is_accepted(
    world: World, folder: Path
) -> None:
    folder.mkdir(parents=True)
    (folder / MARKER).write_text('{"database": "of somebody else"}')
    (folder / "runs" / "41").mkdir(parents=True)
    root = root_of(world, folder)
    assert "belongs to another database (of somebody else)" in (root.look() or "")
    with pytest.raises(Unavailable, match="accept-root"):
        root.require()
    root.accept()
    assert root.look() is None
    root.require()
    assert world.submit().id == 42


def test_what_cannot_be_read_is_away(world: World, folder: Path) -> None:
    root = root_of(world, folder)
    folder.parent.mkdir()
    folder.write_text("no folder")
    assert "cannot be used" in (root.look() or "")
    folder.unlink()
    assert root.look() is None
    (folder / MARKER).write_text("{torn")
    assert "is damaged" in (root.look() or "")
    (folder / MARKER).unlink()
    (folder / MARKER).mkdir()  # stands for a read that fails: root may read every file
    assert "cannot be read" in (root.look() or "")


def test_ids_go_on_above_the_folders_on_disk(world: World, folder: Path) -> None:
    first = world.submit().id
    for name in ("7", "19-moved-aside-1", "x20", "9" * 30):
        (folder / "runs" / name).mkdir(parents=True)
    assert highest_run_on_disk(folder) == 19
    root_of(world, folder).look()
    assert [first, world.submit().id, world.submit().id] == [1, 20, 21]


def test_sequences_are_moved_on_and_never_back(world: World) -> None:
    world.submit()
    with world.database.write() as connection:
        before = last_ids(connection)
        raise_ids(connection, {"runs": 10, "checkpoints": 4, "workers": 0})
        raise_ids(connection, {"runs": 3})
        assert last_ids(connection) == before | {"runs": 10, "checkpoints": 4}
    assert world.submit().id == 11


def test_each_database_has_an_id_of_its_own(world: World, tmp_path: Path) -> None:
    other = world.settings.model_copy(
        update={"home": tmp_path / "other", "database_url": f"sqlite:///{tmp_path}/other/stoker.db"}
    )
    migrate.upgrade(other)
    with closing(Database(other)) as database:
        another = ArtifactRoot(database, tmp_path).database_id
    assert len(another) == 36
    assert another != root_of(world, tmp_path).database_id
