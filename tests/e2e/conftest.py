"""A running service with a small registered dataset."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.service import Service, write_waves


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """API, one agent, and the dataset `waves`: for the tests of a file, one after the other."""
    with serving(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture
def own_service(tmp_path):
    """The same for one test alone."""
    with serving(tmp_path) as service:
        yield service


@contextmanager
def serving(folder: Path) -> Iterator[Service]:
    service = Service(folder / "home")
    try:
        service.start_api()
        service.start_agent()
        write_waves(service.home / "data" / "waves.h5")
        assert service.register("waves", "waves.h5")["state"] == "ready"
        yield service
    finally:
        service.close()
