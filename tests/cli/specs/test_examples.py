"""Every example is a valid spec, on every preset, and nothing in it waits for a later version."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.cli.specs.specfile import read_request
from app.guard.facts import (
    DatasetFacts,
    DeviceFacts,
    EdgeFacts,
    LengthFacts,
    PartFacts,
    SourceFacts,
)
from app.guard.plan import make_plan
from app.planning.arithmetic import PartSizes
from tests.guard.world import CATALOG, CPU, FIELDS, GIB, HOST, weather, world

FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(path for path in FOLDER.iterdir() if path.is_file())
FULL = sorted((FOLDER / "full").iterdir())
LARGE = ("a100-80g", "h200")
CAPABILITIES = ((6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0))


def bars(name: str, features: int, **windows: int) -> DatasetFacts:
    """A dataset of several timeframes, with the window of each; a sample a bar of the first."""
    found = {
        timeframe: replace(FIELDS["features"], shape=(window, features), series_steps=8_760)
        for timeframe, window in windows.items()
    }
    fields = {**found, "targets": FIELDS["targets"]}
    return weather(name=name, samples=4884, fields=fields, window_steps=dict.fromkeys(found, 1))


def positions(name: str, samples: int) -> DatasetFacts:
    """Chess positions in record batches, packed, split by game."""
    kinds = {"planes": ((144,), "uint8"), "legal": ((584,), "uint8"), "move": ((), "int16"),
             "value": ((), "int8"), "game_part": ((), "int8")}  # fmt: skip
    fields = {
        field: replace(
            FIELDS["targets"],
            shape=shape,
            dtype=dtype,
            storage="record_batches",
            chunk_rows=1_024,
            mean=24.7,
            std=70.2,
        )
        for field, (shape, dtype) in kinds.items()
    }
    parts = PartFacts(PartSizes(samples // 10 * 8, samples // 10, samples // 10))
    fields["game_part"] = replace(fields["game_part"], parts=parts)
    return weather(name=name, samples=samples, fields=fields)


def graphs(name: str, samples: int, *parts: str, targets: bool = True) -> DatasetFacts:
    """Molecules as packed graphs, split by fields."""
    found = {
        "molecules": replace(
            FIELDS["features"],
            shape=(8,),
            dtype="uint8",
            lengths=LengthFacts(1, 16.4, 122),
            edges=EdgeFacts(17.5, 134, "uint16", (4,), "uint8"),
        )
    }
    if targets:
        found["targets"] = replace(FIELDS["targets"], shape=(), mean=-2.7, std=2.1, sorted=False)
    tenth = samples // 10
    for part in parts:
        sizes = PartFacts(PartSizes(samples - 2 * tenth, tenth, tenth))
        found[part] = replace(FIELDS["targets"], shape=(), dtype="int8", parts=sizes)
    return weather(name=name, samples=samples, fields=found)


def panel(name: str, samples: int, entities: int) -> DatasetFacts:
    """All entities of a date, with windows kept as a series."""
    kinds = {"features": ((60, entities, 5), "float32"), "present": ((60, entities), "uint8"),
             "date": ((), "int32"), "targets": ((entities, 2), "float32"),
             "known": ((entities, 2), "uint8")}  # fmt: skip
    fields = {
        field: replace(FIELDS["targets"], shape=shape, dtype=dtype)
        for field, (shape, dtype) in kinds.items()
    }
    for field in ("features", "present"):
        fields[field] = replace(fields[field], series_steps=samples + 59)
    return weather(name=name, samples=samples, fields=fields, window_steps={"features": 1})


DATASETS = (
    panel("panel", 8_195, 20),
    panel("prices", 2_400, 256),
    graphs("molecules", 4_991, "scaffold_part", targets=False),
    graphs("solubility", 1_282, "scaffold_part", "part"),
    graphs("compounds", 2_000_000, "scaffold_part", targets=False),
    graphs("assay", 50_000, "scaffold_part"),
    positions("board", 33_869),
    positions("games", 40_600_000),
    bars("bars", 16, h1=96, h3=72, h6=48, h12=24, d1=12),
    bars("minutes", 6, m1=480, m5=288, m15=192, h1=96, h4=48),
)


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


def require_accepted(path: Path, preset: str, capability: tuple[int, int]) -> None:
    """Without a word."""
    request = read_request(str(path), [])
    tensors = ("tower.stem.weight", "encoder.atoms.weight")
    begun_with = SourceFacts(run_id=1, tensors=tensors) if "init_from" in request else None
    facts = world(*DATASETS, devices=(device_for(preset, capability),), source=begun_with)
    for name in ("auto", preset):
        plan = make_plan({**request, "preset": name}, facts, CATALOG)
        assert plan.issues == []
        assert plan.unchecked == []
        assert plan.require_ok()["preset"] == preset


@pytest.mark.parametrize(("preset", "capability"), PLACES, ids=str)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_would_be_accepted_without_a_word(path: Path, preset: str, capability):
    require_accepted(path, preset, capability)


@pytest.mark.parametrize(
    ("preset", "capability"), [place for place in PLACES if place[0] in LARGE], ids=str
)
@pytest.mark.parametrize("path", FULL, ids=lambda path: path.name)
def test_one_of_full_size_would_be_accepted_on_large_devices(path: Path, preset: str, capability):
    require_accepted(path, preset, capability)
