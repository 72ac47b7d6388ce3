"""Which ended runs go when a service has grown too old or too big."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from app.lifecycle import TERMINAL

if TYPE_CHECKING:
    from app.store import Store

SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
BYTES = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
RUNS_AT_ONCE = 200


@dataclass(frozen=True)
class EndedRun:
    """A terminal run, when it ended (unix seconds), and what its artifacts take."""

    id: int
    finished_at: float
    bytes: int


def choose(
    store: "Store", artifact_root: Path, oldest: float | None, most_bytes: int | None
) -> list[EndedRun]:
    """Ended runs to delete, oldest first: those before `oldest`, then until the rest fits."""
    ended = sorted(_ended_runs(store, artifact_root), key=lambda run: run.finished_at)
    total = sum(run.bytes for run in ended)
    chosen = []
    for run in ended:
        too_old = oldest is not None and run.finished_at < oldest
        too_big = most_bytes is not None and total > most_bytes
        if too_old or too_big:
            chosen.append(run)
            total -= run.bytes
    return chosen


def _ended_runs(store: "Store", artifact_root: Path) -> list[EndedRun]:
    from app.store.records import RunFilter  # SQLAlchemy's neighbours: late, as in connect

    runs, cursor = [], None
    while True:
        page = store.runs.list(RunFilter(), RUNS_AT_ONCE, cursor)
        for run in page.data:
            if run.state in TERMINAL and run.finished_at is not None:
                folder = artifact_root / "runs" / str(run.id)
                runs.append(EndedRun(run.id, run.finished_at, _bytes_in(folder)))
        cursor = page.next_cursor
        if cursor is None:
            return runs


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def parse_age(text: str) -> float:
    """`30d`, `12h`, `90m`, `2w` in seconds."""
    return _parse(text, SECONDS, "--older-than", "30d, 12h, 90m or 2w")


def parse_size(text: str) -> int:
    """`50GiB`, `500MiB`, `1TiB` in bytes."""
    return int(_parse(text, BYTES, "--max-size", "50GiB, 500MiB or 1TiB"))


def _parse(text: str, units: dict[str, int], option: str, examples: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]+)", text.strip())
    if match is None or match[2] not in units:
        raise typer.BadParameter(f"{text!r} is not like {examples}", param_hint=option)
    return float(match[1]) * units[match[2]]
