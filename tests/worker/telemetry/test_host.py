"""What the agent finds out about its host."""

from worker.start.preparation import threads_of
from worker.telemetry.host import host_now, host_setup


def test_the_facts_of_this_host_fit_together(tmp_path):
    fixed, now = host_setup(), host_now(tmp_path)
    assert fixed["cores"] >= 1
    assert 0 < now["available_memory_bytes"] <= fixed["host_memory_bytes"]
    assert fixed["shared_memory_bytes"] is None or fixed["shared_memory_bytes"] > 0
    assert now["disk_free_bytes"] > 0


def test_an_agent_has_what_its_container_has(tmp_path, monkeypatch):
    """And not what the host has; how it is found is in the tests of app/container.py."""
    allowed = {"usable_cores": 3, "total_memory": 8 * 2**30, "available_memory": 5 * 2**30}
    for name, value in allowed.items():
        monkeypatch.setattr(f"worker.telemetry.host.{name}", lambda value=value: value)
    monkeypatch.setattr("worker.start.preparation.usable_cores", lambda: 3)
    told = {**host_setup(), **host_now(tmp_path)}
    names = ("cores", "host_memory_bytes", "available_memory_bytes")
    assert [told[name] for name in names] == list(allowed.values())
    assert [threads_of("auto", slots) for slots in (1, 3)] == [3, 1]
