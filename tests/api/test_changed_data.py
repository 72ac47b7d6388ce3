"""A dataset's file that is no more what was inspected: told before a run ends for it."""

import os
from pathlib import Path

import pytest
from sqlalchemy import update

from app.store.tables import datasets
from tests.api.support import SPEC, Api, Player


@pytest.fixture
def file(api: Api, player: Player) -> Path:
    """Of the dataset `weather`, as it was inspected, on a local disk."""
    path = api.services.settings.data_root / "weather.h5"
    path.write_bytes(bytes(1000))
    stat = path.stat()
    seen = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": "0"}
    with api.services.store.database.write() as connection:
        values = {"fingerprint": seen, "layout": {"network": False}, "path": "weather.h5"}
        connection.execute(update(datasets).values(values))
    return path


def test_a_file_as_it_was_is_no_finding(api: Api, file: Path) -> None:
    assert api.post("/runs", json=SPEC).status_code == 201


@pytest.mark.parametrize("what", ["size", "modification time"])
def test_a_changed_file_is_told_by_a_plan_and_refuses_a_run(
    api: Api, file: Path, what: str
) -> None:
    stat = file.stat()
    if what == "size":
        file.write_bytes(bytes(1001))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    else:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    (issue,) = api.post("/runs?dry_run=true", json=SPEC).json()["issues"]
    assert issue["code"] == "correctness.dataset_changed"
    assert f"has changed since it was registered: its {what}." in issue["message"]
    assert "stoker data register weather weather.h5" in issue["why"]
    assert api.post("/runs", json=SPEC).problem("dataset_not_ready") == 409


def test_of_a_file_that_this_host_does_not_see_nothing_is_said(api: Api, file: Path) -> None:
    file.unlink()
    assert api.post("/runs", json=SPEC).status_code == 201


def test_a_folder_has_changed_with_a_file_more(api: Api, file: Path) -> None:
    folder = file.with_name("parts")
    folder.mkdir()
    (folder / "a.feather").write_bytes(bytes(10))
    newest = (folder / "a.feather").stat().st_mtime_ns
    seen = {"size": 10, "mtime_ns": newest, "files": 1, "sha256": "0"}
    with api.services.store.database.write() as connection:
        connection.execute(update(datasets).values(fingerprint=seen, path="parts"))
    (folder / "notes.txt").write_text("do not count")
    assert api.post("/runs", json=SPEC).status_code == 201
    (folder / "b.feather").write_bytes(b"")
    os.utime(folder / "b.feather", ns=(newest, newest))
    (issue,) = api.post("/runs?dry_run=true", json=SPEC).json()["issues"]
    assert "its number of files." in issue["message"]
