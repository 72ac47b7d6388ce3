"""An artifact root that is away, and ids after a restore, as the command line shows them."""

import shutil
from contextlib import closing

import pytest

from app.lifecycle import Reason
from app.settings import load_settings
from app.store.artifact_root import MARKER, ArtifactRoot
from app.store.engine.database import Database
from app.store.records import Beat, Finish, NewCheckpoint
from tests.cli.conftest import stoker
from tests.e2e.service import eventually
from tests.store.conftest import World


@pytest.fixture
def world(cli, home):
    """A home with a run that has saved a checkpoint and is over."""
    assert cli("db", "upgrade").code == 0
    settings = load_settings(home=home)
    with closing(Database(settings)) as connections:
        world = World(settings, connections)
        assert ArtifactRoot(connections, settings.artifact_root).look() is None
        lease = world.running()
        path = f"runs/{lease.run_id}/attempt-1/checkpoints/step-5"
        (settings.artifact_root / path).mkdir(parents=True)
        (settings.artifact_root / path / "weights").write_bytes(bytes(100))
        saved = Beat(checkpoints=[NewCheckpoint(5, 0, path, 1, {}, 0)], applied={"threads": 1})
        world.store.leases.finish(lease.token, Finish(Reason.completed, "", final=saved))
        yield world


def doctor(cli):
    findings = cli("doctor", "--json").document["findings"]
    (found,) = [f for f in findings if f["check"] == "artifact id"]
    return found


def test_doctor_says_what_is_missing_and_changes_nothing(cli, world):
    assert doctor(cli)["status"] == "ok"
    root = world.settings.artifact_root
    root.rename(root.with_name("aside"))
    root.mkdir()
    found = doctor(cli)
    assert found["status"] == "problem"
    assert "Mount it, or correct STOKER_ARTIFACT_ROOT" in found["found"]
    assert list(root.iterdir()) == []


def test_artifacts_that_are_lost_for_good_are_given_up_on_ones_word(cli, world):
    root = world.settings.artifact_root
    assert cli("db", "accept-root", "--json").document["was_away"] is None
    shutil.rmtree(root)
    refused = cli("db", "accept-root")
    assert refused.code == 5
    assert "will be forgotten" in refused.err
    assert not root.exists()
    accepted = cli("db", "accept-root", "--yes")
    assert accepted.code == 0, accepted.err
    assert (root / MARKER).exists()
    assert doctor(cli)["status"] == "ok"


def test_a_service_starts_without_its_artifacts_and_goes_on_when_they_are_back(cli, world, home):
    root = world.settings.artifact_root
    aside = root.with_name("aside")
    root.rename(aside)
    waiting = world.submit().id
    world.store.workers.set_state(world.worker, "gone")
    started = stoker(home, "up", "--detach")
    try:
        assert started.code == 0, started.err
        log = home / "logs" / "stoker.log"
        eventually(lambda: "away: runs wait" in log.read_text(), "the service says so, and stays")
        assert "may not be mounted" in cli("workers").out
        assert world.store.runs.get(waiting).attempt == 0
        aside.rename(root)
        eventually(lambda: world.store.runs.get(waiting).attempt, "the run is claimed")
    finally:
        assert stoker(home, "down").code == 0


def test_nothing_is_pruned_by_the_size_of_what_is_away(cli, world):
    root = world.settings.artifact_root
    command = ("db", "prune", "--max-size", "0MiB", "--dry-run", "--json")
    assert len(cli(*command).document["runs"]) == 1
    root.rename(root.with_name("aside"))
    answer = cli(*command)
    assert answer.code != 0
    assert "may not be mounted" in answer.err


def test_a_restore_gives_no_id_again(cli, world, tmp_path):
    cli("db", "backup", str(tmp_path / "copy.db"))
    lost = world.submit().id
    (world.settings.artifact_root / "runs" / str(lost + 5)).mkdir()
    world.database.close()
    assert cli("db", "restore", str(tmp_path / "copy.db"), "--yes").code == 0
    with closing(Database(world.settings)) as connections:
        assert World(world.settings, connections).submit().id == lost + 6
