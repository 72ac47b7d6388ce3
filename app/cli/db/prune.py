"""Which ended runs go when a service has grown too old or too big."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from app.store import Store

SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
BYTES = {"m": 2**20, "g": 2**30, "t": 2**40}
AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
# Written as in a spec (app.spec.script): 20GiB, 20GB and 20g are one size.
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MGT])(?:i?B)?", re.IGNORECASE)
RUNS_AT_ONCE = 100


@dataclass(frozen=True)
class EndedRun:
    """A terminal run, and what its artifacts take."""

    id: int
    bytes: int


def choose(
    store: "Store", artifact_root: Path, oldest: float | None, most_bytes: int | None
) -> list[EndedRun]:
    """Ended runs to delete, those that ended first come first: all that ended before `oldest`, and
    of the others as many as have to go until what is left of all their artifacts fits.
    """
    sizes = _sizes(artifact_root / "runs")
    old = [] if oldest is None else store.runs.ended_before(oldest)
    chosen = [EndedRun(run_id, sizes.pop(run_id, 0)) for run_id in old]
    if most_bytes is None:
        return chosen
    others = [run_id for run_id in store.runs.ended_before(math.inf) if run_id in sizes]
    total = sum(sizes[run_id] for run_id in others)
    for run_id in others:
        if total <= most_bytes:
            break
        chosen.append(EndedRun(run_id, sizes[run_id]))
        total -= sizes[run_id]
    return chosen


def delete(store: "Store", chosen: list[EndedRun]) -> dict[int, str]:
    """Delete them; by id, why one was kept."""
    kept: dict[int, str] = {}
    for start in range(0, len(chosen), RUNS_AT_ONCE):
        some = [run.id for run in chosen[start : start + RUNS_AT_ONCE]]
        refused = store.runs.delete_all(some)
        kept |= {run_id: error.detail for run_id, error in refused.items()}
    return kept


def _sizes(folder: Path) -> dict[int, int]:
    """By run: the bytes of its artifacts, where it has some."""
    folders = [run for run in folder.glob("*") if run.name.isdecimal()]
    sizes = {int(run.name): _bytes_in(run) for run in folders}
    return {run_id: size for run_id, size in sizes.items() if size}


def _bytes_in(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def parse_age(
    text: str, option: str = "--older-than", examples: str = "30d, 12h, 90m or 2w"
) -> float:
    """`30d`, `12h`, `90m`, `2w` in seconds; BadParameter of the option for anything else."""
    return _parse(AGE, text, SECONDS, option, examples)


def parse_size(text: str) -> int:
    """`50GiB`, `500MiB`, `1TiB` in bytes."""
    return int(_parse(SIZE, text, BYTES, "--max-size", "50GiB, 500MiB or 1TiB"))


def _parse(
    form: re.Pattern[str], text: str, units: dict[str, int], option: str, examples: str
) -> float:
    match = form.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not of the form {examples}", param_hint=option)
    if (found := float(match[1]) * units[match[2].lower()]) == math.inf:
        raise typer.BadParameter(f"{text[:20]}… is too large", param_hint=option)
    return found
