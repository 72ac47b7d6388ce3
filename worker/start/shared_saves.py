"""Scripts that run at once and save to the same place: nobody can tell whose a save is."""

import os
import re
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from app.spec.script import ScriptSpec
from app.store.records import NewEvent

WILD = re.compile(r"[*?\[\]]")


def shared_saves(
    run_id: int, spec: ScriptSpec, running: Mapping[int, Mapping[str, Any]]
) -> list[NewEvent]:
    """A warning for each other run whose patterns of checkpoints may match the same names.

    `running`: the specs of the scripts that run on this host, by run.
    """
    own = spec.recipe
    told = []
    for other, its in running.items():
        theirs = its["recipe"]
        met = [
            pattern
            for pattern in own.checkpoints
            for its_pattern in theirs["checkpoints"]
            if may_meet(_place(own.cwd, pattern), _place(theirs["cwd"], its_pattern))
        ]
        if other != run_id and met:
            told.append(_warning(other, met[0]))
    return told


def _warning(other: int, pattern: str) -> NewEvent:
    message = (
        f"Run {other} runs at the same time and saves to the same place ({pattern}). Nobody can "
        "tell whose a save is: each of both may keep the other's as its own, and go on from it. "
        "Give each a folder of its own: stop one, and run it with another output folder, which "
        "--checkpoints names too, or in a copy (--snapshot)."
    )
    return NewEvent("warning", time.time(), {"code": "shared_checkpoints", "message": message})


def _place(cwd: str | None, pattern: str) -> str:
    return os.path.normpath(Path(cwd or Path.home(), pattern))


def may_meet(one: str, other: str) -> bool:
    """Whether two absolute patterns may match the same path, or one a folder of the other's."""
    return all(
        _parts_meet(part, its) for part, its in zip(one.split("/"), other.split("/"), strict=False)
    )


def _parts_meet(one: str, other: str) -> bool:
    """Exact but where both are patterns: then by what they begin and end with."""
    if not WILD.search(one):
        return fnmatchcase(one, other)
    if not WILD.search(other):
        return fnmatchcase(other, one)
    begin, its_begin = WILD.split(one)[0], WILD.split(other)[0]
    end, its_end = WILD.split(one)[-1], WILD.split(other)[-1]
    return (begin.startswith(its_begin) or its_begin.startswith(begin)) and (
        end.endswith(its_end) or its_end.endswith(end)
    )
