"""On what kind of storage a file lies: on this machine, or across a network."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

# File systems whose reads go to another machine. 9p and virtiofs: the host of a virtual machine.
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "daos", "fuse.ceph", "fuse.cephfs", "fuse.dfs",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.mount-s3",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "sshfs", "virtiofs", "wekafs",
})  # fmt: skip
LOCAL = frozenset({
    "aufs", "bcachefs", "btrfs", "ecryptfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs",
    "fuse.fuse-overlayfs", "fuse.mergerfs", "fuseblk", "hfsplus", "iso9660", "jfs", "msdos", "ntfs",
    "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "udf", "vfat", "xfs",
    "zfs",
})  # fmt: skip


class Mount(NamedTuple):
    folder: str
    kind: str
    """The type of its file system, as /proc/self/mounts has it."""


def on_network(path: Path, mounts: Iterable[Mount] | None = None) -> bool | None:
    """Whether the file lies on network storage; None where its file system is not known here.

    `mounts` in the order in which they were made; those of this process where not given.
    """
    real = path.resolve()
    over = [mount for mount in (mounts or _mounts()) if real.is_relative_to(mount.folder)]
    if not over:
        return None
    # Of mounts on one folder the last one counts: it hides those before it.
    kind = max(enumerate(over), key=lambda at: (len(Path(at[1].folder).parts), at[0]))[1].kind
    if kind in NETWORK:
        return True
    return False if kind in LOCAL else None


def _mounts() -> list[Mount]:
    try:
        return [Mount(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
    except OSError:
        return []
