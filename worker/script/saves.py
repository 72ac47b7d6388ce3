"""The saves of a script as they lie in its folder: which there are, and how one is copied."""

import json
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from worker.regular_files import open_regular, read_regular
from worker.script.whole import UNFINISHED, ends_with_trainer_state, is_proved, require_complete
from worker.script.work import ScriptWork

LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)", re.DOTALL)
FILES_BEFORE = "files_before.json"
LARGEST_LIST = 2**28


class FileState(NamedTuple):
    """How a file looked."""

    size: int
    inode: int
    mtime_ns: int


@dataclass(frozen=True)
class Save:
    """One save of the script as it lay at a look: a file, a folder, or files of one number that
    match several patterns.
    """

    paths: tuple[Path, ...]
    """Those that match, in the order of their patterns."""
    patterns: tuple[str, ...]
    root: Path
    """The folder that `files` lie in."""
    files: Mapping[str, FileState]
    """Its files by their path below `root`."""

    @classmethod
    def look(cls, paths: tuple[Path, ...], patterns: tuple[str, ...]) -> Self:
        """Raises FileNotFoundError if a file vanishes meanwhile."""
        if len(paths) == 1:
            root = paths[0] if paths[0].is_dir() else paths[0].parent
        else:
            root = Path(os.path.commonpath([path.parent for path in paths]))
        files = dict[str, FileState]()
        for path in paths:
            for file in sorted(path.rglob("*") if path.is_dir() else [path]):
                if file.is_file():  # regular ones alone: nobody can keep a pipe
                    status = file.stat()
                    state = FileState(status.st_size, status.st_ino, status.st_mtime_ns)
                    files[file.relative_to(root).as_posix()] = state
        return cls(paths, patterns, root, files)

    @property
    def is_unchanged(self) -> bool:
        """True if all of it still is as it was at the look."""
        with suppress(FileNotFoundError):
            return Save.look(self.paths, self.patterns).files == self.files
        return False

    @property
    def path(self) -> Path:
        """What the script is given to go on from."""
        return self.paths[0]

    @property
    def entry(self) -> str | None:
        """The path of that below `root`; None for the folder itself."""
        return None if self.path == self.root else self.path.relative_to(self.root).as_posix()

    @property
    def newest(self) -> float:
        """Unix seconds of the last write."""
        return max((state.mtime_ns for state in self.files.values()), default=0) / 1e9

    @property
    def number(self) -> int | None:
        return number_in(self.path.name)

    def require_whole(self) -> bool:
        """Returns True if all files prove that they are whole, False if one has no mark.

        Raises NotWhole, OSError.
        """
        proofs = [is_proved(self.root / name) for name in self.files]
        if self.path.is_dir() or len(self.paths) > 1:  # else "3 of 10" may count epochs
            require_complete(self.files, self.root)
        return all(proofs)

    @property
    def says_it_is_done(self) -> bool:
        """True of a folder with the file that Hugging Face's Trainer writes last."""
        return ends_with_trainer_state({name: f.mtime_ns for name, f in self.files.items()})


class FilesBefore:
    """The files that matched when an attempt began. They are no saves of it until they change."""

    def __init__(self, files: Mapping[str, FileState], began: float | None = None) -> None:
        """`files`: the states by absolute path. `began`: unix seconds, where the files are not
        known and their times have to tell.
        """
        self._files, self._began = files, began

    @classmethod
    def look(cls, work: ScriptWork) -> Self:
        return cls(
            {
                str(save.root / name): state
                for save in saves_of(work)
                for name, state in save.files.items()
            }
        )

    @classmethod
    def read(cls, attempt: Path) -> Self | None:
        """Those of an earlier attempt; None if there was none. Raises OSError.

        By its time an attempt tells them that an earlier version of Stoker has begun, or of which
        a power cut left no list.
        """
        with suppress(FileNotFoundError, ValueError, TypeError, AttributeError):
            document = json.loads(read_regular(attempt / FILES_BEFORE, LARGEST_LIST))
            return cls({path: FileState(*state) for path, state in document.items()})
        with suppress(FileNotFoundError):
            return cls({}, (attempt / "spec.json").stat().st_mtime)
        return None

    def write(self, attempt: Path) -> None:
        with (attempt / FILES_BEFORE).open("w") as file:
            json.dump(self._files, file)
            file.flush()
            os.fsync(file.fileno())

    def has(self, file: Path, state: FileState) -> bool:
        """Returns True if the file lay there as it is now. Its time is compared with its own
        earlier one, not with a clock, which may be that of another machine.
        """
        if self._began is not None:
            return state.mtime_ns / 1e9 < self._began
        return self._files.get(str(file)) == state

    def new_files(self, save: Save) -> frozenset[str]:
        """The files of a save that were not there, or were otherwise."""
        return frozenset(n for n, state in save.files.items() if not self.has(save.root / n, state))


def saves_of(work: ScriptWork) -> list[Save]:
    """Returns what lies where the patterns of the spec say, the oldest first. Names that say they
    are unfinished are left out.
    """
    saves = dict[Path, Save]()
    for pattern in work.checkpoints:
        for path in _matching(work.cwd, pattern):
            with suppress(FileNotFoundError):
                if path not in saves and (save := Save.look((path,), (pattern,))).files:
                    saves[path] = save
    found = list(saves.values()) if work.like else _grouped(list(saves.values()))
    return sorted(found, key=lambda save: (save.newest, save.number or 0, save.path))


def _grouped(saves: list[Save]) -> list[Save]:
    """Joins those that have the same number: model, optimizer and settings of a step. They match
    several patterns, or one and lie in one folder.
    """
    by_number = defaultdict[int | None, list[Save]](list)
    for save in sorted(saves, key=lambda save: save.path):
        by_number[save.number].append(save)
    grouped = by_number.pop(None, [])
    for same in by_number.values():
        same.sort(key=lambda save: [one.patterns for one in saves].index(save.patterns))
        patterns = tuple(save.patterns[0] for save in same)
        folders = {(save.patterns[0], save.path.parent) for save in same}
        names = without_numbers(f"{save.patterns[0]} {save.path.name}" for save in same)
        is_one = len(folders) == len(set(patterns)) and max(names.values()) == 1
        if len(same) > 1 and is_one:
            with suppress(FileNotFoundError):
                grouped.append(Save.look(tuple(save.path for save in same), patterns))
        else:
            grouped += same
    return grouped


def unmatched(work: ScriptWork, before: FilesBefore | None) -> str | None:
    """Returns a sentence on the patterns of which nothing was saved; None if there is none. One
    pattern of those that `like` knows is enough. `before`: what lay there does not count.
    """
    saves = saves_of(work)
    new = [save for save in saves if before is None or before.new_files(save)]
    matched = {pattern for save in new for pattern in save.patterns}
    none = [pattern for pattern in work.checkpoints if pattern not in matched]
    if not none or (work.like is not None and matched):
        return None
    older = " What matches lay there before the run." if saves and not new else ""
    return (
        f"Nothing that matches {' or '.join(none)} in {work.cwd} was saved by the end, so no "
        f"checkpoint was kept of it, and a restart would begin anew.{older} Does the script save "
        "somewhere else? --checkpoints says where."
    )


def older_saves(work: ScriptWork) -> str | None:
    """Returns a sentence on saves that lie there before the script begins; None without any."""
    saves = saves_of(work)
    if not saves:
        return None
    count = "1 older save matches" if len(saves) == 1 else f"{len(saves):,} older saves match"
    return (
        f"{count} {' or '.join(work.checkpoints)}; the newest is {saves[-1].path}. They are not of "
        "this run, so it does not go on from them, but the script may take them for its own, or "
        "remove its own because of them. Move them away, or save somewhere else."
    )


def _matching(cwd: Path, pattern: str) -> list[Path]:
    """Also an absolute pattern."""
    place = Path(pattern)
    base, relative = (
        (Path(place.anchor), place.relative_to(place.anchor)) if place.anchor else (cwd, place)
    )
    try:
        paths = list(base.glob(str(relative)))
    except (ValueError, NotImplementedError):
        return []
    return [path for path in paths if not any(path.match(name) for name in UNFINISHED)]


def without_numbers(names: Iterable[str]) -> Counter[str]:
    """Returns how often each name comes, with 0 for any number: names of files as they are in each
    save, of whatever step.
    """
    return Counter(re.sub(r"[0-9]+", "0", name) for name in names)


def number_in(name: str) -> int | None:
    """Returns the last number of a name; None without one."""
    match = LAST_NUMBER.search(name)
    return None if match is None else int(match[1])


def bring(save: Save, target: Path) -> None:
    """Copies its files, each to its place below `target`."""
    for name, state in save.files.items():
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        _copy(save.root / name, to, state.size)


def _copy(source: Path, target: Path, size: int) -> None:
    with open_regular(source) as old, target.open("xb") as new:
        left = size
        with suppress(OSError):  # another file system: below
            while left and (count := os.copy_file_range(old.fileno(), new.fileno(), left)):
                left -= count
        if left:
            old.seek(size - left)
            new.seek(size - left)
            shutil.copyfileobj(old, new)
