"""Keeps half a file out of what trainers have compiled: one would end every run that loads it.

The compiler writes its libraries in place, so a trainer that is killed, or whose machine fails,
meanwhile leaves one cut short; to load that is the end of the process (SIGBUS), also of the next.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from worker.trainer.report.preparing import StopRequested

FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
EMPTIED = (
    "What earlier runs had compiled was thrown away: a trainer had died or failed while it "
    "compiled, and may have left a file cut short. All is compiled anew, this once."
)


@contextmanager
def whole_cache() -> Iterator[bool]:
    """Compile in here. A mark lies beside the cache meanwhile, and stays if this process dies or
    fails: whoever compiles next then begins with an empty cache (yields True), as soon as nobody
    else is compiling.
    """
    folders = [Path(os.environ[name]) for name in FOLDERS if name in os.environ]
    if not folders:
        yield False
        return
    marks = folders[0].parent / "compiling"
    marks.mkdir(parents=True, exist_ok=True)
    mark = marks / f"{uuid4().hex}.mark"
    with ExitStack() as held:
        with _locked(marks / "lock"):
            emptied = _empty_if_torn(folders, marks)
            held.enter_context(_locked(mark))
        try:
            yield emptied
        except StopRequested:
            mark.unlink()
            raise
        mark.unlink()


def _empty_if_torn(folders: list[Path], marks: Path) -> bool:
    """A mark that nobody holds is of one that did not end well."""
    left, held = [], False
    for mark in marks.glob("*.mark"):
        try:
            with _locked(mark, wait=False):
                left.append(mark)
        except BlockingIOError:
            held = True
    if not left or held:
        return False
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for mark in left:
        mark.unlink(missing_ok=True)
    return True


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """BlockingIOError where another process has it, and this one does not wait."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
