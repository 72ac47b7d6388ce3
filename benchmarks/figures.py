"""What a measurement is, and how the results are shown: a table for people, JSON for machines."""

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

PACKAGES = ("stoker", "fastapi", "sqlalchemy", "h5py", "torch")


@dataclass(frozen=True)
class Figure:
    """One measured value with its bound; `n` is the number of measurements behind it."""

    name: str
    value: float
    unit: str
    bound: float | None
    n: int
    command: str

    @property
    def holds(self) -> bool | None:
        return None if self.bound is None else self.value <= self.bound


def environment() -> dict[str, Any]:
    """The machine and the versions that the figures belong to."""
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "packages": {name: version(name) for name in PACKAGES},
    }


def as_json(figures: list[Figure]) -> str:
    rows = [{**asdict(figure), "holds": figure.holds} for figure in figures]
    return json.dumps({"environment": environment(), "figures": rows}, indent=2)


def print_table(figures: list[Figure]) -> None:
    table = Table(title=f"Stoker on {psutil.cpu_count()} cores")
    for heading in ("figure", "measured", "bound", "n", ""):
        table.add_column(heading)
    for figure in figures:
        bound = "" if figure.bound is None else f"≤ {figure.bound:.4g} {figure.unit}"
        verdict = {True: "holds", False: "EXCEEDED", None: ""}[figure.holds]
        table.add_row(
            figure.name, f"{figure.value:.4g} {figure.unit}", bound, str(figure.n), verdict
        )
    Console().print(table)
