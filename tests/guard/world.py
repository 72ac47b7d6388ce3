"""A small world for the guard's tests: datasets, devices, and a request that is fine in it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.guard.case import Case
from app.guard.facts import (
    Carried,
    DatasetFacts,
    DeviceFacts,
    Facts,
    FieldFacts,
    HostFacts,
    ParentFacts,
)
from app.guard.plan import RunPlan, make_plan, settle
from app.guard.presets.catalog import load_catalog
from app.guard.resolve import resolve
from app.planning.pace import Pace
from app.planning.profile import Point, Profile
from app.service.profiles import keys_of
from app.spec.issue import Issue
from app.spec.layers import overlay
from app.spec.parse import parse_spec

Identities = set[tuple[str, tuple[str | int, ...]]]
GIB = 2**30
CATALOG = load_catalog(Path("/nonexistent"))
FIELDS = {
    "features": FieldFacts(
        (360, 15), "float32", "contiguous", nonfinite=0, mean=0.5, std=1.0, sorted=False,
        target_feature=0,
    ),
    "targets": FieldFacts(
        (36,), "float32", "contiguous", nonfinite=0, mean=0.5, std=1.0, sorted=False
    ),
}  # fmt: skip
WEATHER = DatasetFacts(
    "weather", "ready", 4020, FIELDS, size_bytes=87_000_000, window_steps={}, network=False,
    read_bytes_per_second=2e6, path="weather.h5",
)  # fmt: skip
HOST = HostFacts(
    memory_bytes=24 * GIB, available_bytes=20 * GIB, cores=2, slots=1,
    disk_free_bytes=100 * GIB, missing_tools={}, torch_build="cpu",
)  # fmt: skip
CPU = DeviceFacts("cpu", "cpu", host=HOST)
RTX = DeviceFacts("cuda", "NVIDIA RTX 4090", 24 * GIB, 23 * GIB, (8, 9), HOST)
A100 = DeviceFacts("cuda", "NVIDIA A100", 80 * GIB, 79 * GIB, (8, 0), HOST)
TURING = DeviceFacts("cuda", "NVIDIA RTX 2080", 8 * GIB, 7 * GIB, (7, 5), HOST)
HISTORY = Pace((1,), iterations_per_second=20.0, checkpoint_seconds=0.05)
REQUEST: dict[str, Any] = {"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}}


def weather(**changes: Any) -> DatasetFacts:
    """The dataset with other facts."""
    return replace(WEATHER, **changes)


def with_field(name: str, **changes: Any) -> DatasetFacts:
    """The dataset with other facts of one array."""
    return weather(fields={**FIELDS, name: replace(FIELDS[name], **changes)})


def world(*datasets: DatasetFacts, devices: tuple[DeviceFacts, ...] = (CPU,), **more: Any) -> Facts:
    """The facts, with `datasets` beside the weather or in its place."""
    known = {dataset.name: dataset for dataset in (WEATHER, *datasets)}
    return Facts(known, devices, history_looked_for=True, **{"history": HISTORY, **more})


def plan_of(change: Mapping[str, Any] | None = None, facts: Facts | None = None) -> RunPlan:
    """The plan of the request with `change` on top."""
    return make_plan(overlay(REQUEST, change or {}), facts or world(), CATALOG)


def as_measured(change: Mapping[str, Any], facts: Facts, *points: Point) -> Facts:
    """The facts, with points, the newest first, of runs like the request with `change`, on each of
    their devices.
    """
    resolved = settle(resolve(overlay(REQUEST, change), CATALOG, facts), facts)
    assert resolved.spec is not None
    keys = keys_of(Case(resolved.spec, facts))
    return replace(facts, profiles={**facts.profiles, **dict.fromkeys(keys, Profile(points))})


def point(batch: int, mib: float, evaluation_mib: float | None = None, **more: Any) -> Point:
    """What a run took with a batch, of MiB beside the exact part; an evaluation as much, unless it
    is said, and a GPU's host 1 GiB.
    """
    evaluated = mib if evaluation_mib is None else evaluation_mib
    values = {"host_bytes": GIB, "run_id": 7, "worker": "box", "measured_at": 1_700_000_000.0}
    sizes = int(mib * 2**20), batch, int(evaluated * 2**20)
    return Point(batch, *sizes, **{**values, **more})


def paced(batch: int, rate: float, mib: float = 300) -> tuple[Point]:
    """What a run took with a batch, and how many samples a second its steps made."""
    return (point(batch, mib * batch / 128, samples_per_second=rate),)


def parent_of(change: Mapping[str, Any], step: int, *, succeeded: bool = False) -> ParentFacts:
    """A run of the request with `change`, accepted before any like it, saved at `step` of 130."""
    spec, _ = parse_spec(plan_of(change, world(history=None)).require_ok())
    assert spec is not None
    return ParentFacts(spec, Carried(step, 130, succeeded))


def codes(plan: RunPlan) -> list[str]:
    return [issue.code for issue in plan.issues]


def identities(issues: list[Issue]) -> Identities:
    return {(issue.code, tuple(issue.loc)) for issue in issues}


def brought(issue: Issue, before: RunPlan, after: RunPlan) -> Identities:
    """What the fix of an issue has brought that is as severe: a warning is none to an error."""
    if issue.severity == "error":
        return identities(after.errors) - identities(before.errors)
    return identities(after.issues) - identities(before.issues)
