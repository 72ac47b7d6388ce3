"""Writes a data file as a whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worker.trainer import disk


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """A path beside `out` to write to, which takes its place, on the disk, when the block ends well
    and is removed otherwise. OSError.
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
    finally:
        partial.unlink(missing_ok=True)
