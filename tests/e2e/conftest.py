"""A running service with a small registered dataset, ended after each test."""

import pytest

from tests.e2e.service import Service, write_waves


@pytest.fixture
def service(tmp_path):
    """API, one agent, and the dataset `waves`."""
    service = Service(tmp_path / "home")
    try:
        service.start_api()
        service.start_agent()
        write_waves(service.home / "data" / "waves.h5")
        assert service.register("waves", "waves.h5")["state"] == "ready"
        yield service
    finally:
        service.close()
