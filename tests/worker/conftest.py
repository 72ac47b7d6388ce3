"""Fixtures of the worker's tests."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def fake_nvml(monkeypatch):
    """Give every child a driver with these GPUs."""

    def install(**world):
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "fake_nvml"))
        monkeypatch.setenv("FAKE_NVML", json.dumps(world))

    return install
