"""Where files lie that people name: under DATA_ROOT, and nowhere else."""

import os
from collections.abc import Iterable
from pathlib import Path

from app.errors import InvalidRequest
from app.spec.suffixes import CONVERTED, HDF5

LONGEST_NAME = 200


def below_data_root(data_root: Path, given: str) -> str:
    """The path relative to DATA_ROOT; InvalidRequest when it leads out of it, also by a link."""
    root = Path(os.path.realpath(data_root))
    full = Path(os.path.realpath(root / given))
    if full == root or not full.is_relative_to(root):
        if full.suffix.lower() in CONVERTED:
            raise InvalidRequest(
                f"The path {given[:200]!r} does not lead to a dataset. Such a file becomes one by "
                "`stoker data convert`, which puts it where the service reads.",
                code="path_outside_data_root",
            )
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
        way = "Copy it there, or correct the path."
        if full.suffix.lower() in CONVERTED:
            way = "Such a file becomes a dataset by `stoker data convert`, which puts it there."
        raise InvalidRequest(
            f"There is no file {given[:200]!r} under DATA_ROOT ({data_root}), so nothing was "
            f"read. {way}",
            code="no_such_file",
        )
    return str(full.relative_to(root))


def files_called(names: Iterable[str], data_root: Path) -> dict[str, str]:
    """Of these names, those that an HDF5 file in DATA_ROOT has, with or without its suffix."""
    return {
        name: file
        for name in names
        if "/" not in name and "\0" not in name and len(name) <= LONGEST_NAME
        for file in reversed((name, *(f"{name}{suffix}" for suffix in HDF5)))
        if Path(file).suffix.lower() in HDF5 and os.path.isfile(data_root / file)  # noqa: PTH113 - no error for odd names
    }
