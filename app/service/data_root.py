"""Where files lie that people name: under DATA_ROOT, and nowhere else."""

import os
from pathlib import Path

from app.errors import InvalidRequest


def below_data_root(data_root: Path, given: str) -> str:
    """The path relative to DATA_ROOT; InvalidRequest when it leads out of it, also by a link."""
    root = Path(os.path.realpath(data_root))
    full = Path(os.path.realpath(root / given))
    if full == root or not full.is_relative_to(root):
        raise InvalidRequest(
            f"The path {given[:200]!r} does not lead to a file under DATA_ROOT ({data_root}): only "
            "what lies there can be read. Move or copy the file there and give the path within; or "
            "start the service with STOKER_DATA_ROOT set to a folder that holds it.",
            code="path_outside_data_root",
        )
    if os.path.islink(full):  # noqa: PTH114 - left of one that was followed; pathlib raises for long names
        raise InvalidRequest(
            f"{given[:200]!r} is a link that leads back to itself, so nothing was read. "
            "Point the link to the data, or give the path of the data.",
            code="no_such_file",
        )
    if root.is_dir() and not os.path.lexists(full):  # without the folder, only a worker can tell
        raise InvalidRequest(
            f"There is no file {given[:200]!r} under DATA_ROOT ({data_root}), so nothing was "
            "read. Copy it there, or correct the path.",
            code="no_such_file",
        )
    return str(full.relative_to(root))
