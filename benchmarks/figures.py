"""What a measurement is, and how the results are shown: a table for people, JSON for machines."""

import json
import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from app.codestate import checkout
from benchmarks.heap import settings_in_force

ROOT = Path(__file__).parents[1]
FILE_COLUMNS = 200
LARGE = 100


@dataclass(frozen=True)
class Figure:
    """One measured value with its bound; `n` is the number of measurements behind it, of which
    `spread` are the least and the greatest. `at_least`: the bound is one from below. `also`: what
    else the same measurements say, by unit. `seen`: what a full run had where it missed the bound.
    `note`: why it was not measured; the value is NaN then.
    """

    name: str
    value: float
    unit: str
    bound: float | None
    n: int
    command: str
    spread: tuple[float, float] | None = None
    at_least: bool = False
    also: Mapping[str, float] = field(default_factory=dict)
    seen: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool | None:
        if self.bound is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def of_quick_form(self) -> "Figure":
        """Judged by half of what is asked for, or of what was seen where that is missed anyway,
        and only if it is a ratio: what is measured in a short time on a machine that is not known
        says no more than that nothing fell apart.
        """
        bound = None if self.unit else self.seen or self.bound
        if bound is not None:
            bound = bound / 2 if self.at_least else bound * 2
        return replace(self, bound=bound, command=f"{self.command} --quick")


def figure_of(
    name: str, unit: str, values: Sequence[float], command: str, bound: float | None = None
) -> Figure:
    """The median of several, with the least and the greatest; a bound is one from below."""
    spread = min(values), max(values)
    value = statistics.median(values)
    return Figure(name, value, unit, bound, len(values), command, spread, at_least=True)


def not_measured(name: str, why: str, command: str) -> Figure:
    """A row for what should be there."""
    return Figure(name, math.nan, "", None, 0, command, note=why)


def environment(peers: Mapping[str, str]) -> dict[str, Any]:
    """The code, the day, the machine and the versions that the figures belong to."""
    installed = {one.name.lower(): one.version for one in distributions()}
    return {
        **checkout(ROOT),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_settings": settings_in_force(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": dict(sorted(installed.items())) | dict(peers),
    }


def cpu_model() -> str:
    """As the kernel names it; the architecture where it has no name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def place_for(path: Path, parts: Sequence[str]) -> Path:
    """The file to write to: in a folder, one named by the day, the commit and the parts."""
    if not path.is_dir():
        return path
    commit = str(checkout(ROOT).get("git_sha", "no-commit"))[:7]
    return path / f"{datetime.now(UTC):%Y-%m-%d}-{commit}-{'-'.join(parts)}.json"


def as_json(figures: list[Figure], left_out: Sequence[str], peers: Mapping[str, str]) -> str:
    """`peers`: versions of those that are not among the packages here."""
    rows = [
        {**asdict(figure), "value": None if figure.note else figure.value, "holds": figure.holds}
        for figure in figures
    ]
    document = {"environment": environment(peers), "figures": rows, "left_out": list(left_out)}
    return json.dumps(document, indent=2)


def print_table(figures: list[Figure]) -> None:
    table = Table(title=f"Stoker on {psutil.cpu_count()} cores")
    for heading in ("figure", "measured", "spread", "bound", "n", "", "also"):
        table.add_column(heading)
    for figure in figures:
        measured = "–" if figure.note else f"{figure.value:.4g} {figure.unit}"
        spread = "" if figure.spread is None else "{:.3g}–{:.3g}".format(*figure.spread)
        sign = "≥" if figure.at_least else "≤"
        bound = "" if figure.bound is None else f"{sign} {figure.bound:.4g} {figure.unit}"
        verdict = {True: "holds", False: "MISSED", None: ""}[figure.holds]
        also = " · ".join(f"{_short(value)} {unit}" for unit, value in figure.also.items())
        table.add_row(
            figure.name, measured, spread, bound, str(figure.n), verdict, also or figure.note
        )
    console = Console()
    # A file has no width; on a terminal, lines are broken to fit.
    (console if console.is_terminal else Console(width=FILE_COLUMNS)).print(table)


def _short(value: float) -> str:
    """Three digits, with separators rather than powers of ten."""
    return f"{value:,.0f}" if abs(value) >= LARGE else f"{value:.3g}"
