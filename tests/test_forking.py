"""APIs and agents that tests fork are seen to be of their service, and their starter of none."""

import psutil

from tests.e2e import service as services
from tests.e2e.service import Service
from tests.forking import Starter


def test_a_service_sees_what_was_forked_for_it_alone(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("STOKER_HOME", str(home))
    with Starter("tests.services") as starter:
        monkeypatch.setattr(services, "starter", lambda: starter)
        service, other = Service(home), Service(tmp_path / "other")
        api, others = service.start_api(), other.start_api()
        assert [process.pid for process in service.left_running()] == [api.pid]
        assert [process.pid for process in other.left_running()] == [others.pid]
        service.close()
        assert service.left_running() == []
        assert psutil.pid_exists(others.pid), "of another home"
        other.close()
