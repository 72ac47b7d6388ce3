"""The saves of a script as they lie in its folder: which there are, and how one is copied."""

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.script.whole import UNFINISHED, proves_itself
from worker.script.work import ScriptWork

Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Save:
    """One save of the script as it lay at a look: name, size and time of each file."""

    path: Path
    signature: Signature
    pattern: str
    """The pattern of the spec that it matches."""

    @property
    def names(self) -> frozenset[str]:
        """Of its files, with any number for another."""
        return without_numbers(name for name, _, _ in self.signature)

    @property
    def proves_itself(self) -> bool:
        """Whether a cut one cannot be taken for a whole one."""
        return proves_itself(self.path)

    @property
    def newest(self) -> float:
        """Unix seconds of the last write."""
        return _newest(self.signature)


def saves_of(work: ScriptWork, began: float) -> list[Save]:
    """What lies where the patterns of the spec say, was written since, and is not obviously
    unfinished; the oldest first.
    """
    found = dict[Path, Save]()
    for pattern in work.checkpoints:
        for path in _matching(work.cwd, pattern):
            with suppress(FileNotFoundError):
                save = Save(path, signature_of(path), pattern)
                if save.signature and save.newest >= began:
                    found[path] = save
    return sorted(found.values(), key=lambda save: save.newest)


def unmatched(work: ScriptWork, since: float) -> str | None:
    """A sentence on the patterns of which nothing was saved since; None: there is none. Of those
    that `like` knows one is enough.
    """
    none = [
        pattern
        for pattern in work.checkpoints
        if not any(_written(path) >= since for path in _matching(work.cwd, pattern))
    ]
    if not none or (work.like is not None and len(none) < len(work.checkpoints)):
        return None
    return (
        f"Nothing that matches {' or '.join(none)} in {work.cwd} was saved by the end, so no "
        "checkpoint was kept of it, and a restart would begin anew. Does the script save somewhere "
        "else? --checkpoints says where."
    )


def _newest(signature: Signature) -> float:
    return max((time for _, _, time in signature), default=0) / 1e9


def _written(path: Path) -> float:
    """When it was written last, in unix seconds; 0 where it is gone."""
    with suppress(FileNotFoundError):
        return _newest(signature_of(path))
    return 0.0


def _matching(cwd: Path, pattern: str) -> list[Path]:
    """Also an absolute pattern; unfinished names are passed over."""
    place = Path(pattern)
    base, relative = (
        (Path(place.anchor), place.relative_to(place.anchor)) if place.anchor else (cwd, place)
    )
    try:
        found = list(base.glob(str(relative)))
    except (ValueError, NotImplementedError):
        return []
    return [path for path in found if not any(path.match(name) for name in UNFINISHED)]


def signature_of(path: Path) -> Signature:
    """Empty of what is neither file nor folder, such as a pipe, which nobody can read. Raises
    FileNotFoundError when something of it vanishes meanwhile.
    """
    paths = path.rglob("*") if path.is_dir() else [path]
    files = sorted(p for p in paths if p.is_file())
    told = []
    for file in files:
        status = file.stat()
        name = str(file.relative_to(path)) if path.is_dir() else file.name
        told.append((name, status.st_size, status.st_mtime_ns))
    return tuple(told)


def without_numbers(names: Iterable[str]) -> frozenset[str]:
    """Names of files as they are in each save, of whatever step."""
    return frozenset(re.sub(r"[0-9]+", "0", name) for name in names)


def bring(save: Save, target: Path) -> None:
    """Copy its files. In a folder below, a file keeps its place."""
    for name, size, _ in save.signature:
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        _copy(save.path / name if save.path.is_dir() else save.path, to, size)


def _copy(source: Path, target: Path, size: int) -> None:
    with source.open("rb") as old, target.open("xb") as new:
        left = size
        with suppress(OSError):  # another file system: below
            while left and (count := os.copy_file_range(old.fileno(), new.fileno(), left)):
                left -= count
        if left:
            old.seek(size - left)
            new.seek(size - left)
            shutil.copyfileobj(old, new)
