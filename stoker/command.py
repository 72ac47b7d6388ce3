"""How the command `stoker` begins: with Stoker's own packages, whatever PYTHONPATH names.

A project has an app.py or a worker.py of its own as often as not, and `PYTHONPATH=.` puts it before
everything that is installed: it would be imported in place of ours.
"""

import os
import sys
from pathlib import Path

OURS = ("app", "worker", "migrations")
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """The console script."""
    leave_out_foreign()
    # Only now: nothing of another project can be found in its place any more.
    from app.cli.start import main as run

    run()


def leave_out_foreign() -> None:
    """Take the folders of PYTHONPATH out that hide a package of ours, for this process and for what
    it starts.
    """
    given = os.environ.get("PYTHONPATH")
    if not given:
        return
    kept = [folder for folder in given.split(os.pathsep) if not _hides_ours(folder)]
    os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    named = {Path(folder).resolve() for folder in given.split(os.pathsep)}
    sys.path[:] = [
        entry for entry in sys.path if Path(entry).resolve() not in named or not _hides_ours(entry)
    ]


def _hides_ours(folder: str) -> bool:
    there = Path(folder).resolve()
    if there == ROOT:
        return False
    return any(
        (there / f"{name}.py").is_file() or (there / name / "__init__.py").is_file()
        for name in OURS
    )
