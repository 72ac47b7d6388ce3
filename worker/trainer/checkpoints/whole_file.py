"""Writes a data file, or a folder of them, as a whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from worker.trainer.checkpoints import disk


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """A path beside `out` to write to, which takes its place, on the disk, when the block ends well
    and is removed otherwise, with the folders that were made for it. OSError.
    """
    new = [folder for folder in (out.parent, *out.parent.parents) if not folder.exists()]
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        disk.sync_file(partial)
        partial.chmod(0o644)
        disk.rename(partial, out)
        for folder in (out.parent, *(made.parent for made in new)):
            disk.sync_folder(folder)
    except BaseException:
        partial.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else has put something there
            for folder in new:
                folder.rmdir()
        raise


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to put files into, which takes its place when the block ends well; what
    was there before is removed then. OSError.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as beside:
        partial, replaced = Path(beside, "new"), Path(beside, "old")
        partial.mkdir()
        yield partial
        for path in (*partial.iterdir(), partial):
            disk.sync_file(path)
        if out.exists():
            disk.rename(out, replaced)
        disk.rename(partial, out)
        disk.sync_folder(out.parent)
