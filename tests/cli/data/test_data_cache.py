"""`stoker data cache`: what recipes have prepared of data is listed, and removed."""

import json
import os

from app.cli.failures import ExitCode
from app.datacache import MANIFEST, TABLES, EntryLock


def kept(home, key: str, used_at: int, size: int = 1000):
    """As a trainer writes it."""
    folder = home / "data-cache" / key
    folder.mkdir(parents=True)
    manifest = {"recipe": "toy", "version": "0.2", "datasets": {"games": {}}}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    (folder / TABLES).write_bytes(bytes(size))
    os.utime(folder / MANIFEST, (used_at, used_at))
    return folder


def test_nothing_is_kept_at_first(cli, home):
    assert "Nothing is kept" in cli("data", "cache", "ls").out
    assert cli("data", "cache", "ls", "--json").document["data"] == []
    assert cli("data", "cache", "clear").out == "Removed 0 of 0: 0 B.\n"


def test_what_is_kept_is_listed_and_removed_by_key(cli, home, monkeypatch):
    monkeypatch.setenv("STOKER_DATA_CACHE_BYTES", "3GiB")
    kept(home, "old", 1_000), kept(home, "new", 2_000)
    shown = cli("data", "cache", "ls").out
    assert shown.index("new") < shown.index("old")
    assert "toy 0.2" in shown
    assert "tables" in shown
    assert "of 3.0 GiB" in shown
    listed = cli("data", "cache", "ls", "--json").document
    assert listed["most_bytes"] == 3 * 2**30
    assert listed["bytes"] == sum(row["bytes"] for row in listed["data"]) > 2_000
    assert [row["used_at"] for row in listed["data"]] == [
        "1970-01-01T00:33:20+00:00",
        "1970-01-01T00:16:40+00:00",
    ]
    assert cli("data", "cache", "clear", "old", "--json").document["removed"] == ["old"]
    assert [row["key"] for row in cli("data", "cache", "ls", "--json").document["data"]] == ["new"]


def test_all_is_removed_but_what_a_trainer_is_at(cli, home):
    free, used = kept(home, "free", 1_000), kept(home, "used", 2_000)
    with EntryLock(home / "data-cache", "used") as lock:
        assert lock.take()
        answer = cli("data", "cache", "clear")
        assert answer.code == ExitCode.refused
        assert "Removed 1 of 2" in answer.out
        assert "A trainer is at used now" in answer.err
    assert (free.exists(), used.exists()) == (False, True)


def test_a_key_that_is_not_there(cli, home):
    answer = cli("data", "cache", "clear", "nothing")
    assert answer.code == ExitCode.refused
    assert "There is no entry nothing" in answer.err


def test_damaged_entries_can_be_removed(cli, home):
    folder, other = kept(home, "torn", 1_000), kept(home, "without", 1_000)
    (folder / MANIFEST).write_text("{")
    (other / MANIFEST).unlink()
    assert "?" in cli("data", "cache", "ls").out
    assert cli("data", "cache", "clear").code == 0
    assert not folder.exists()
    assert not other.exists()
