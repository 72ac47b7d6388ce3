"""Every example is a valid spec, and nothing in it waits for a later version."""

from pathlib import Path

import pytest

from app.cli.specfile import read_request
from app.guard.facts import DatasetFacts, DeviceFacts, Facts, FieldFacts
from app.guard.plan import make_plan
from app.presets.catalog import load_catalog

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").iterdir())


def test_there_are_examples_in_yaml_and_toml():
    assert {path.suffix for path in EXAMPLES} >= {".yaml", ".toml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_would_be_accepted(path: Path, tmp_path: Path):
    weather = DatasetFacts(
        name="weather",
        state="ready",
        samples=4020,
        fields={
            "features": FieldFacts((360, 15), "float32"),
            "targets": FieldFacts((36,), "float32"),
        },
        size_bytes=87_000_000,
        problems=(),
    )
    facts = Facts(
        datasets={"weather": weather},
        devices=(DeviceFacts(kind="cpu", name="cpu"),),
        host_memory_bytes=2**33,
        cores=2,
    )
    plan = make_plan(read_request(str(path), []), facts, load_catalog(tmp_path))
    assert plan.issues == []
    assert plan.spec is not None
