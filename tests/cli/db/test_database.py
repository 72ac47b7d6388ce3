"""`stoker token` and `stoker db` on a real database."""

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.cli.db.prune import parse_age, parse_size
from app.lifecycle import Intent, Reason
from app.settings import load_settings
from app.store.engine.database import Database
from app.store.engine.sqlite import driver
from app.store.records import Beat, Finish, NewCheckpoint, Restart, RunFilter
from tests.e2e.service import eventually
from tests.store.conftest import World, new_run


@pytest.fixture
def database(cli, home):
    """A home with a database and nothing running."""
    assert cli("db", "upgrade").code == 0
    return home


def test_without_a_database_everything_says_how_to_get_one(cli, home):
    commands = (
        ("token", "list"),
        ("db", "check"),
        ("db", "backup", "x"),
        ("db", "prune", "--older-than", "1d"),
    )
    for command in commands:
        answer = cli(*command)
        assert answer.code == 5, command
        assert "stoker db upgrade" in answer.err, command


def test_upgrade_twice_is_well(cli, database):
    answer = cli("db", "upgrade", "--json")
    assert answer.document["revision"]
    assert cli("db", "check").code == 0


def test_a_token_opens_the_api_until_it_is_revoked(cli, api, monkeypatch):
    created = cli("token", "create", "notebook", "--json").document
    monkeypatch.setenv("STOKER_TOKEN", created["token"])
    assert cli("ls").code == 0
    listed = cli("token", "list")
    assert "notebook" in listed.out
    assert created["token"] not in listed.out
    refused = cli("token", "revoke", str(created["id"]))
    assert refused.code == 5
    assert "stoker token create" in refused.err
    assert cli("ls").code == 0
    assert cli("token", "revoke", str(created["id"]), "--yes-this-one").code == 0
    eventually(lambda: cli("ls").code == 5, "the token is refused")
    found = {line["check"]: line for line in cli("doctor", "--json").document["findings"]}
    assert found["token"]["status"] == "problem"
    assert "refuses it" in found["token"]["found"]


def test_another_token_than_ones_own_is_revoked_without_more_ado(cli, api):
    other = cli("token", "create", "notebook", "--json").document["id"]
    assert cli("token", "revoke", str(other)).code == 0
    assert cli("ls").code == 0
    assert "s ago" in cli("token", "list").out


def test_the_secret_alone_is_on_stdout(cli, database):
    answer = cli("token", "create", "notebook")
    assert len(answer.out.split()) == 1
    assert "not shown again" in answer.err


def test_a_token_without_a_name_or_id_is_refused(cli, database):
    assert cli("token", "create", "  ").code == 5
    assert cli("token", "revoke", "99").code == 5
    assert cli("token", "revoke", "9" * 20).code == 2


def test_backup_and_restore(cli, database, tmp_path):
    cli("token", "create", "before")
    file = tmp_path / "copy.db"
    assert cli("db", "backup", str(file)).code == 0
    assert file.stat().st_mode & 0o077 == 0
    cli("token", "create", "after")
    unasked = cli("db", "restore", str(file))
    assert unasked.code == 5
    assert "--yes" in unasked.err
    restored = cli("db", "restore", str(file), "--yes", "--json").document
    names = [token["name"] for token in cli("token", "list", "--json").document["data"]]
    assert names == ["before"]
    with driver.connect(restored["kept"]) as kept:
        assert kept.execute("SELECT count(*) FROM tokens").fetchone() == (2,)
    kept.close()


@pytest.fixture
def plain_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_what_is_restored_is_its_owners_alone(cli, database, tmp_path, plain_umask):
    cli("db", "backup", str(tmp_path / "copy.db"))
    (tmp_path / "copy.db").chmod(0o644)
    restored = cli("db", "restore", str(tmp_path / "copy.db"), "--yes", "--json").document
    cli("token", "create", "after")
    for path in (database / "stoker.db", Path(restored["kept"])):
        assert path.stat().st_mode & 0o077 == 0
    assert not list(database.glob("*.incoming"))


@pytest.mark.parametrize("place", [0, 100])
def test_a_damaged_database_is_replaced_and_kept_as_it_is(cli, database, tmp_path, place):
    cli("token", "create", "before")
    cli("db", "backup", str(tmp_path / "copy.db"))
    file = database / "stoker.db"
    with file.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"\xff" * 3000)
    damaged = file.read_bytes()
    assert "stoker db restore" in cli("db", "check").out
    answer = cli("db", "restore", str(tmp_path / "copy.db"), "--yes", "--json")
    assert answer.code == 0, answer.err
    assert Path(answer.document["kept"]).read_bytes() == damaged
    names = [token["name"] for token in cli("token", "list", "--json").document["data"]]
    assert names == ["before"]


KILLED_IN_THE_MIDDLE = """
import os, sys
from app.store.engine.sqlite import driver
connection = driver.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA journal_mode={sys.argv[2]}")
connection.execute("PRAGMA cache_size=5")
connection.execute("CREATE TABLE padding (x)")
connection.execute("INSERT INTO padding SELECT randomblob(3000) FROM pragma_function_list LIMIT 50")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE padding SET x = zeroblob(3000)")
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("journal", ["WAL", "PERSIST"])
def test_a_backup_of_what_a_killed_process_left_is_whole(cli, database, tmp_path, journal):
    file, copy = database / "stoker.db", tmp_path / "copy.db"
    program = [sys.executable, "-c", KILLED_IN_THE_MIDDLE, str(file), journal]
    assert subprocess.run(program, check=False).returncode == -9
    torn = tmp_path / "torn.db"
    for path in database.glob("stoker.db*"):
        shutil.copy(path, torn.with_name(path.name.replace("stoker.db", torn.name)))
    refused = cli("db", "restore", str(torn), "--yes")
    assert (refused.code, "is not whole" in refused.err) == (5, True)
    assert cli("db", "backup", str(copy)).code == 0
    with closing(driver.connect(copy)) as connection:
        query = "SELECT count(*) FROM padding WHERE x <> zeroblob(3000)"
        assert connection.execute(query).fetchone() == (50,)


def test_a_backup_never_overwrites(cli, database, tmp_path):
    (tmp_path / "copy.db").write_text("mine")
    assert cli("db", "backup", str(tmp_path / "copy.db")).code == 5
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_what_is_no_backup_is_not_restored(cli, database, tmp_path):
    file = tmp_path / "copy.db"
    file.write_text("not a database at all")
    assert "not a SQLite database" in cli("db", "restore", str(file)).err
    file.unlink()
    with driver.connect(file) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    assert "of another program" in cli("db", "restore", str(file)).err
    assert cli("db", "backup", str(tmp_path / "whole.db")).code == 0
    whole = (tmp_path / "whole.db").read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "is damaged" in cli("db", "restore", str(file), "--yes").err
    assert cli("db", "check").code == 0


def test_nothing_is_restored_under_a_running_api(cli, api, tmp_path):
    assert cli("db", "backup", str(tmp_path / "copy.db")).code == 0
    answer = cli("db", "restore", str(tmp_path / "copy.db"), "--yes")
    assert answer.code == 5
    assert "stop it" in answer.err


def test_a_damaged_database_is_found(cli, database):
    file = database / "stoker.db"
    with file.open("r+b") as raw:
        raw.seek(100)
        raw.write(os.urandom(3000))
    answer = cli("db", "check")
    assert answer.code == 1
    assert "Traceback" not in answer.err


def test_prune_by_age_and_by_size(cli, api, spec_file):
    ids = []
    for _ in range(2):
        run_id = cli("submit", str(spec_file), "--json").document["id"]
        cli("stop", str(run_id))
        folder = api / "artifacts" / "runs" / str(run_id)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(2**20))
        ids.append(run_id)
    assert cli("db", "prune", "--older-than", "1h", "--dry-run", "--json").document["runs"] == []
    by_size = cli("db", "prune", "--max-size", "1MiB", "--dry-run", "--json").document["runs"]
    assert ids[0] in by_size
    assert ids[1] not in by_size
    assert cli("show", str(ids[0])).code == 0
    said = cli("db", "prune", "--older-than", "0m", "--dry-run").out
    assert str(ids[0]) in said.partition("(")[2].partition(")")[0].split(", ")
    everything = cli("db", "prune", "--older-than", "0m", "--json").document["runs"]
    assert set(ids) <= set(everything)
    assert cli("show", str(ids[0])).code == 5


def test_prune_wants_a_bound(cli, api):
    assert cli("db", "prune").code == 2
    assert cli("db", "prune", "--older-than", "long").code == 2
    assert cli("db", "prune", "--max-size", "50").code == 2
    beyond = cli("db", "prune", "--max-size", "9" * 400 + "TiB")
    assert (beyond.code, "9… is too large" in beyond.err) == (2, True)


@pytest.mark.parametrize(("text", "value"), [("90m", 5400), ("12h", 43200), ("1.5d", 129600)])
def test_ages(text, value):
    assert parse_age(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("500MiB", 500 * 2**20), ("1TiB", 2**40), ("20G", 20 * 2**30), ("1.5 gb", 3 * 2**29)],
)
def test_sizes(text, value):
    assert parse_size(text) == value


def test_prune_keeps_what_is_needed_and_says_why(cli, database, monkeypatch):
    monkeypatch.setattr("app.cli.db.prune.RUNS_AT_ONCE", 2)
    settings = load_settings(home=database)
    with closing(Database(settings)) as connections:
        world = World(settings, connections)
        lease = world.running()
        path = f"runs/{lease.run_id}/attempt-1/checkpoints/step-5"
        saved = Beat(checkpoints=[NewCheckpoint(5, 0, path, 1, {}, 0)])
        world.store.leases.finish(lease.token, Finish(Reason.completed, "", final=saved))
        restart = Restart(lease.run_id, "latest", {"kind": "full"})
        child, _ = world.store.runs.restart(restart, new_run())
        over = [world.submit().id for _ in range(4)]
        for run_id in over:
            world.store.runs.set_intent(run_id, Intent.stop)
        pruned = cli("db", "prune", "--older-than", "0m", "--json").document
        assert pruned["runs"] == over
        reason = f"Run {child.id} goes on from a checkpoint of run {lease.run_id}"
        assert pruned["kept"][str(lease.run_id)].startswith(reason)
        assert world.store.runs.find_ids(RunFilter(), 9) == [child.id, lease.run_id]
        said = cli("db", "prune", "--older-than", "0m").out
        assert said.startswith("0 runs are deleted, 0 B of artifacts.\nKept: " + reason)
