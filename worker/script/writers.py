"""Finds the files that the processes of a script have open for writing."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class OpenFiles:
    """What the processes below this one have open for writing."""

    files: frozenset[tuple[int, int]]
    """Device and inode of each."""
    unknown: str = ""
    """Name of a process that does not let itself be looked at; empty if there is none."""

    def hold(self, file: Path) -> bool:
        with suppress(OSError):
            status = file.stat()
            return (status.st_dev, status.st_ino) in self.files
        return False


def open_for_writing() -> OpenFiles:
    """Looks at all descendants of this process, which is their subreaper."""
    files, unknown = set[tuple[int, int]](), ""
    for process in psutil.Process().children(recursive=True):
        folder = Path(f"/proc/{process.pid}")
        try:
            for descriptor in (folder / "fd").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    status = descriptor.stat()
                    fdinfo = folder / "fdinfo" / descriptor.name
                    if stat.S_ISREG(status.st_mode) and _writes(fdinfo):
                        files.add((status.st_dev, status.st_ino))
        except PermissionError:
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:  # which has no open files
                    unknown = process.name()
        except FileNotFoundError:  # it has ended meanwhile
            continue
    return OpenFiles(frozenset(files), unknown)


def _writes(fdinfo: Path) -> bool:
    for line in fdinfo.read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return True
