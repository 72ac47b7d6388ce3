"""Tables that a recipe prepares, such as the graphs of a panel, are planned to the byte."""

import json
from dataclasses import replace
from typing import Any

import pytest

from app.guard.case import Case
from app.guard.facts import DeviceFacts, FieldFacts
from app.guard.memory.budget import PHASES
from app.guard.memory.measuring import measured
from app.guard.memory.memory_plan import MemoryPlan
from app.planning.imports import IMPORTS
from app.spec.layers import overlay
from app.spec.run import RunSpec
from tests.guard.changes import PANEL, PRICES, with_host
from tests.guard.test_measured import taken
from tests.guard.world import CPU, GIB, REQUEST, RTX, as_measured, codes, plan_of, point, world

ENTITIES, STEPS = 2_000, 5_000
# A graph every 20 of 4,941 dates.
TABLES = 248 * ENTITIES**2
SHAPES = {
    "features": (60, ENTITIES, 5),
    "present": (60, ENTITIES),
    "targets": (ENTITIES, 1),
    "known": (ENTITIES, 1),
}


def large(steps: int | None = STEPS) -> dict[str, FieldFacts]:
    """The arrays of a panel of many entities, whose windows slide over so many steps."""
    fields = dict(PRICES.fields)
    for name, shape in SHAPES.items():
        sliding = steps if name in ("features", "present") else None
        fields[name] = replace(fields[name], shape=shape, series_steps=sliding)
    return fields


def case(
    recipe: dict[str, Any] | None = None, device: DeviceFacts = CPU, steps: int | None = STEPS
) -> Case:
    change = overlay(dict(PANEL), {"recipe": recipe or {}})
    spec = RunSpec.model_validate_json(json.dumps(overlay(REQUEST, change)))
    dataset = replace(PRICES, samples=4_936, fields=large(steps))
    return Case(spec, world(dataset, devices=(device,)))


def more(found: MemoryPlan, none: MemoryPlan) -> dict[str, dict[str, int]]:
    """By place and phase, what one plan has more of than another."""
    places = {"host": (found.host, none.host), "device": (found.device, none.device)}
    return {
        place: {phase: one.peaks[phase] - other.peaks[phase] for phase in PHASES}
        for place, (one, other) in places.items()
        if one is not None and other is not None
    }


def test_on_a_cpu_they_are_there_all_the_time_and_twice_while_they_are_made() -> None:
    once = dict.fromkeys(PHASES, TABLES)
    none = case({"graph": {"rebuild_every": "batch", "lookback": 60}}).memory
    assert more(case().memory, none) == {"host": {**once, "building": 2 * TABLES}}


def test_on_a_gpu_they_leave_the_host_when_the_training_begins() -> None:
    none = case({"graph": {"rebuild_every": "batch", "lookback": 60}}, RTX).memory
    found = case(device=RTX).memory
    assert more(found, none) == {
        "host": {**dict.fromkeys(PHASES, 0), "building": 2 * TABLES},
        "device": dict.fromkeys(PHASES, TABLES),
    }
    assert found.beside_bytes > none.beside_bytes, "the trainer leaves so much free"


@pytest.mark.parametrize(
    ("recipe", "steps", "graphs"),
    [
        ({}, STEPS, 248),
        ({"graph": {"rebuild_every": 1_000_000}}, STEPS, 1),
        ({"graph": {"rebuild_every": 1}}, STEPS, 4_941),
        # Windows that are stored one by one: as many dates as samples, at least.
        ({}, None, 247),
        ({"graph": {"rebuild_every": "batch", "lookback": 60}}, STEPS, 0),
        ({"graph": None}, STEPS, 0),
        # What does not fit is told by itself, and nothing is planned of it.
        ({"graph": {"neighbors": ENTITIES}}, STEPS, 0),
    ],
)
def test_there_is_a_graph_for_every_so_many_dates(
    recipe: dict[str, Any], steps: int | None, graphs: int
) -> None:
    items = case(recipe, steps=steps).memory.as_json()["host"]["items"]
    assert items.get("tables", 0) == items.get("copy_of_tables", 0) == graphs * ENTITIES**2


def test_a_plan_shows_them_and_refuses_those_for_which_there_is_no_room() -> None:
    """In 24 GiB a graph every 20 dates has room, and one for each date has not."""
    dataset = replace(PRICES, samples=4_936, fields=large())
    host = with_host(CPU, available_bytes=24 * GIB + IMPORTS["cpu"].trainer)
    facts = replace(host, datasets={**host.datasets, "prices": dataset})
    few: dict[str, Any] = {**PANEL, "training": {"batch_size": 1}}
    for every, is_over in ((20, False), (1, True)):
        change = overlay(few, {"recipe": {"graph": {"rebuild_every": every}}})
        known = as_measured(change, facts, point(1, 300))
        found = plan_of(change, known)
        assert found.memory is not None
        assert found.memory["host"]["items"]["tables"] == -(-4_941 // every) * ENTITIES**2
        assert ("memory.over_budget" in codes(found)) == is_over


def test_what_a_run_took_of_them_is_not_planned_again_as_activations() -> None:
    attempt = taken()
    phases = dict.fromkeys(("building", "training", "evaluating"), 90 * GIB)
    peak = {"host_bytes": 90 * GIB, "device_bytes": None, "phases": phases}
    attempt = replace(attempt, progress={**attempt.progress, "peak_memory": peak})
    beside = []
    for every in (20, "batch"):
        found = measured(case({"graph": {"rebuild_every": every, "lookback": 60}}), attempt)
        assert found is not None
        (one,) = found.points
        assert one.training_bytes is not None
        assert one.evaluation_bytes is not None
        beside.append((one.training_bytes, one.evaluation_bytes))
    (trained, evaluated), (without, of_without) = beside
    assert without - trained == of_without - evaluated == TABLES
