"""Fixtures of the worker's tests."""

import json
from pathlib import Path

import pytest

from tests.worker.agents import AgentStarter
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
    with AgentStarter() as starter:
        yield starter


@pytest.fixture
def make_farm(tmp_path, agent_starter):
    """Make farms with settings of their own; all are closed after the test."""
    farms: list[Farm] = []

    def make(**settings):
        farms.append(Farm(tmp_path / f"home-{len(farms)}", agent_starter, **settings))
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
