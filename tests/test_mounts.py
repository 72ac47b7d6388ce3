"""Which file systems count as a network's, and which mount a file belongs to."""

from pathlib import Path

import pytest

from app.mounts import Mount, on_network

ROOT = Mount("/", "ext4")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "lustre", "ceph", "9p"])
def test_a_file_below_a_network_mount_is_on_the_network(tmp_path, kind):
    mounts = [Mount(str(tmp_path / "share"), kind), ROOT]
    assert on_network(tmp_path / "share" / "deep" / "a.h5", mounts) is True
    assert on_network(tmp_path / "shared.h5", mounts) is False


def test_the_mount_nearest_to_the_file_counts(tmp_path):
    mounts = [ROOT, Mount(str(tmp_path), "nfs"), Mount(str(tmp_path / "scratch"), "xfs")]
    assert on_network(tmp_path / "scratch" / "a.h5", mounts) is False
    assert on_network(tmp_path / "a.h5", mounts) is True


def test_of_mounts_on_one_folder_the_last_counts(tmp_path):
    below = [Mount(str(tmp_path), "autofs"), Mount(str(tmp_path), "nfs4")]
    assert on_network(tmp_path / "a.h5", [ROOT, *below]) is True


def test_a_link_is_where_it_leads(tmp_path):
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "near").symlink_to(far)
    assert on_network(tmp_path / "near" / "a.h5", [ROOT, Mount(str(far), "nfs")]) is True


@pytest.mark.parametrize("kind", ["fuse.something", "autofs", "newfs"])
def test_what_is_not_known_is_not_guessed(tmp_path, kind):
    assert on_network(tmp_path / "a.h5", [Mount("/", kind)]) is None


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm here")
def test_the_mounts_of_this_machine_are_asked():
    assert on_network(Path("/dev/shm/a.h5")) is False
