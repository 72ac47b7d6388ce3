"""Plans of memory beside what was measured: of fixed specs by like runs, and what processes take.

A ratio varies with the machine and its libraries (docs/memory.md), so no test asks for so much.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from app.planning.imports import IMPORTS
from app.spec.installed import RECIPES
from benchmarks.figures import Figure, not_measured
from benchmarks.memory.memory_cases import (
    BUILD,
    CASES,
    NARROW,
    PLAIN_SGD,
    SMALL,
    MemoryCase,
    planned,
    probed,
    profiles_of,
    train,
)
from benchmarks.memory.process_memory import compiler, imports_of_a_trainer, loader_processes
from benchmarks.memory.recipe_cases import RECIPE_CASES

MIB = 2**20
TOLERANCE = 0.15
COMMAND = "python -m benchmarks memory"
NO_PLUGIN = "needs it installed: uv pip install --no-deps ./examples/plugin-recipe"
# A plan by like runs takes 1.0 to 1.25 of what is measured.
MIDDLE = 1.125
ANOTHER_BATCH = MemoryCase("LSTM, batch 512 by 128 and 256", SMALL, {}, 512)
BATCHES = 128, 256, 512
# A probe makes few steps, so these are trained for as few.
PROBED = (
    MemoryCase("LSTM, batch 128", SMALL, {}, 128),
    MemoryCase("LSTM, batch 512", SMALL, {}, 512),
    MemoryCase("GRU, no momentum", NARROW, {"encoder": "gru"}, 128, PLAIN_SGD),
)


def measure() -> list[Figure]:
    """How far each plan is from what was measured, as a share of it."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as made:
        folder = Path(made)
        return [*_of_processes(), *_of_plans(folder), *_by_probes(folder)]


def _of_processes() -> Iterator[Figure]:
    """Before they hold any data."""
    imports = IMPORTS[BUILD]
    yield _off("imports of a trainer", imports.trainer, imports_of_a_trainer())
    if shutil.which("g++") is None:
        yield not_measured("the compiler", "needs a C++ compiler: g++", COMMAND)
    else:
        yield _off("the compiler", imports.compiler, compiler())
    for context, each in (("spawn", imports.spawned), ("forkserver", imports.forked)):
        found = loader_processes(context)
        yield _off(f"a loader's process, {context}", each, max(found.own))
        if found.fork_server is not None:
            yield _off("the fork server", imports.fork_server, found.fork_server)


def _of_plans(folder: Path) -> Iterator[Figure]:
    """Each is trained twice, in a process of its own: the second is planned by the first."""
    for case in (*CASES, *RECIPE_CASES):
        if case.recipe.get("kind", "sequence") not in RECIPES:
            yield not_measured(f"off the middle: {case.name}", NO_PLUGIN, COMMAND)
            continue
        first = train(case, folder)
        found = train(case, folder, profiles_of(first.measured)).compared
        yield _within(case.name, found["planned_bytes"], found["measured_bytes"])
    yield _by_another_batch(folder)


def _by_another_batch(folder: Path) -> Figure:
    """Planned by the line through two runs with smaller batches."""
    small, middle, large = (replace(ANOTHER_BATCH, batch=size) for size in BATCHES)
    first, second = train(small, folder).measured, train(middle, folder).measured
    found = train(large, folder, profiles_of(first, second)).compared
    return _within(large.name, found["planned_bytes"], found["measured_bytes"])


def _by_probes(folder: Path) -> Iterator[Figure]:
    """By one real step, before a training."""
    for case in PROBED:
        profiles = profiles_of(probed(case, folder), by_probe=True)
        plan = planned(case, case.data.write(folder), profiles)
        peak = train(case, folder).compared["measured_bytes"]
        yield _within(f"by a probe: {case.name}", plan["host"]["planned_bytes"], peak)


def _within(name: str, plan: int, measured: int) -> Figure:
    """Planned is 1.0 to 1.25 of the measured peak: how far its ratio is from the middle of both."""
    also = {"MiB planned": plan / MIB, "MiB measured": measured / MIB, "ratio": plan / measured}
    value = abs(plan / measured - MIDDLE)
    return Figure(f"off the middle: {name}", value, "", MIDDLE - 1, 1, COMMAND, also=also)


def _off(name: str, plan: int, measured: int) -> Figure:
    also = {"MiB planned": plan / MIB, "MiB measured": measured / MIB, "ratio": plan / measured}
    value = abs(plan / measured - 1)
    return Figure(f"off the peak: {name}", value, "", TOLERANCE, 1, COMMAND, also=also)
