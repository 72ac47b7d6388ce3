"""Files that a script may have replaced are read without waiting for anybody."""

import os

import pytest

from worker.agent.checkpoint_folders import on_disk
from worker.regular_files import NotReadable, open_regular, read_regular


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("fifo", "zero"):
        with pytest.raises(NotReadable, match="is no regular file"):
            open_regular(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing")


def test_a_file_is_read_up_to_a_bound(tmp_path):
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 2**40)
    with pytest.raises(NotReadable, match="more than 1,048,576 bytes"):
        read_regular(tmp_path / "sparse")
    (tmp_path / "small").write_bytes(b"12345")
    assert read_regular(tmp_path / "small", limit=5) == b"12345"


def test_a_checkpoint_whose_manifest_is_a_fifo_is_a_damaged_one(tmp_path):
    folder = tmp_path / "attempt-1" / "checkpoints" / "step-5"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "manifest.json")
    [(path, why)] = on_disk(tmp_path).damaged
    assert (path, "no regular file" in why) == (folder, True)
