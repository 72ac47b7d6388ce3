"""Where trainers keep what they compile, and what of it an agent removes when it starts."""

import os
from importlib import metadata
from pathlib import Path

import pytest

from worker.launch import compile_cache
from worker.launch.compile_cache import UNUSED_SECONDS, cache_folders, trim_caches

NOW = 2_000_000_000.0
DAY = 86_400.0


@pytest.fixture
def keep(tmp_path):
    """Put a file into the cache that was used so many days ago."""

    def put(name: str, days: float, size: int = 10) -> Path:
        path = Path(tmp_path, "caches", "torch-1.0", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, (NOW - days * DAY, NOW - days * DAY))
        return path

    return put


def test_each_version_of_pytorch_has_its_folders_under_home(tmp_path, monkeypatch):
    assert cache_folders(tmp_path).keys() == {
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "CUDA_CACHE_PATH",
    }
    folders: list[str] = []
    for version in ("2.13.0", "2.14.0"):
        monkeypatch.setattr(metadata, "version", {"torch": version}.__getitem__)
        folders += cache_folders(tmp_path).values()
    assert len(set(folders)) == 6
    assert all(Path(folder).is_relative_to(tmp_path / "caches") for folder in folders)
    assert all("2.13.0" in folder for folder in folders[:3])


def test_what_nobody_used_for_a_month_goes(tmp_path, keep):
    old = keep("inductor/aa/old.so", 31)
    new = keep("inductor/aa/new.so", 29)
    trim_caches(tmp_path, NOW)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_read_counts_as_use(tmp_path, keep):
    read = keep("inductor/aa/read.so", 31)
    os.utime(read, (NOW - DAY, NOW - UNUSED_SECONDS - DAY))
    trim_caches(tmp_path, NOW)
    assert read.exists()


def test_beyond_the_bound_the_oldest_go(tmp_path, keep, monkeypatch):
    monkeypatch.setattr(compile_cache, "MOST_BYTES", 25)
    kept = [keep(f"triton/{days}", days) for days in (3, 1, 2)]
    trim_caches(tmp_path, NOW)
    assert [path.exists() for path in kept] == [False, True, True]


def test_a_home_without_caches_and_a_file_that_cannot_be_removed_are_no_trouble(
    tmp_path, keep, monkeypatch
):
    trim_caches(tmp_path, NOW)
    stays, goes = keep("a/stays", 40), keep("b/goes", 40)

    unlink = Path.unlink

    def refuse(path: Path) -> None:
        if path == stays:
            raise PermissionError
        unlink(path)

    monkeypatch.setattr(Path, "unlink", refuse)
    trim_caches(tmp_path, NOW)
    assert (stays.exists(), goes.exists()) == (True, False)
