"""Every example is a valid spec, on every preset, and nothing in it waits for a later version."""

from pathlib import Path

import pytest

from app.cli.specfile import read_request
from app.guard.facts import DeviceFacts
from app.guard.plan import make_plan
from tests.guard.world import CATALOG, CPU, GIB, HOST, world

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").iterdir())
CAPABILITIES = ((6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0))


def capabilities_of(preset: str) -> tuple[tuple[int, int], ...]:
    """Of the devices that the preset is made for; a CPU has none, so it is one case."""
    made_for = CATALOG.presets[preset].match
    assert made_for is not None
    return CAPABILITIES[:1] if made_for.device == "cpu" else CAPABILITIES


PLACES = [(preset, found) for preset in CATALOG.names for found in capabilities_of(preset)]


def device_for(preset: str, capability: tuple[int, int]) -> DeviceFacts:
    """A device of the class that a preset was made for."""
    made_for = CATALOG.presets[preset].match
    assert made_for is not None
    if made_for.device == "cpu":
        return CPU
    memory = int(made_for.memory_gib * GIB * 0.98)
    return DeviceFacts("cuda", "NVIDIA GPU", memory, memory - GIB, capability, HOST)


def test_there_are_examples_in_yaml_and_toml():
    assert {path.suffix for path in EXAMPLES} >= {".yaml", ".toml"}


@pytest.mark.parametrize(("preset", "capability"), PLACES, ids=str)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_would_be_accepted_without_a_word(path: Path, preset: str, capability):
    facts = world(devices=(device_for(preset, capability),))
    for name in ("auto", preset):
        plan = make_plan({**read_request(str(path), []), "preset": name}, facts, CATALOG)
        assert plan.issues == []
        assert plan.unchecked == []
        assert plan.require_ok()["preset"] == preset
