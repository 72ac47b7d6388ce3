"""Fixtures of the worker's tests."""

import json
from pathlib import Path

import pytest

from tests.forking import Starter
from tests.worker.farm import Farm


@pytest.fixture
def fake_nvml(monkeypatch):
    """Give every child a driver with these GPUs."""

    def install(**world):
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "fake_nvml"))
        monkeypatch.setenv("FAKE_NVML", json.dumps(world))

    return install


@pytest.fixture(scope="session")
def agent_starter():
    with Starter("tests.worker.agent_process") as starter:
        yield starter


@pytest.fixture
def make_farm(tmp_path, agent_starter, empty_database):
    """Make farms with settings of their own; all are closed after the test."""
    farms: list[Farm] = []

    def make(**settings):
        farms.append(
            Farm(tmp_path / f"home-{len(farms)}", agent_starter, empty_database, **settings)
        )
        return farms[-1]

    yield make
    for farm in farms:
        farm.close()


@pytest.fixture
def farm(make_farm):
    """A home with one agent."""
    farm = make_farm()
    farm.start_agent()
    return farm
