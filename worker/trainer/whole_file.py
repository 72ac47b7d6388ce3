"""Writes a data file as a whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """A path beside `out` to write to, which takes its place, on the disk, when the block ends well
    and is removed otherwise. OSError.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
