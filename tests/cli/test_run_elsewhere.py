"""`stoker run` under STOKER_URL: a command starts here only for the service that is named."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.settings import load_settings
from app.store.engine.migrate import upgrade
from app.store.store import Store, open_store
from tests.cli.conftest import use_home
from worker.agent.admission import AdmissionSocket

COMMAND = ("run", "--", "/bin/true")


def use_url(api_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_URL", json.loads((api_home / "api.json").read_text())["url"])
    monkeypatch.setenv("STOKER_TOKEN", (api_home / "token").read_text())


@contextmanager
def listening(home: Path) -> Iterator[Store]:
    """The store of a home whose agent takes commands."""
    settings = load_settings(home=home)
    home.mkdir(exist_ok=True)
    upgrade(settings)
    store = open_store(settings)
    admission = AdmissionSocket(settings, store, 7)
    try:
        yield store
    finally:
        admission.close()
        store.close()


@pytest.fixture
def other_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_home(tmp_path / "other", monkeypatch)


def test_nothing_starts_on_a_machine_without_a_worker(cli, api_home, other_home, monkeypatch):
    use_url(api_home, monkeypatch)
    before = cli("ls", "--json").document["data"]
    refused = cli(*COMMAND)
    assert refused.code == 5
    assert "nothing was started" in refused.err
    assert "env -u STOKER_URL stoker run" in refused.err
    assert refused.out == ""
    assert not other_home.exists()
    assert cli("ls", "--json").document["data"] == before


def test_an_address_where_nothing_answers_starts_nothing_either(cli, other_home, monkeypatch):
    monkeypatch.setenv("STOKER_URL", "http://127.0.0.1:9")
    refused = cli(*COMMAND)
    assert (refused.code, refused.out) == (5, "")
    assert not other_home.exists()


def test_the_worker_of_another_service_takes_nothing(cli, api_home, other_home, monkeypatch):
    with listening(other_home) as store:
        use_url(api_home, monkeypatch)
        refused = cli("run", "--json", "--", "/bin/true")
        assert refused.code == 5
        assert json.loads(refused.err)["code"] == "other_service"
        assert sum(store.runs.counts_by_state().values()) == 0


def test_the_worker_of_the_named_service_takes_the_command(cli, api_home, api, monkeypatch):
    with listening(api_home) as store:
        use_url(api_home, monkeypatch)
        taken = cli("run", "--json", "--", "/bin/true")
        assert taken.code == 0, taken.err
        assert store.runs.get(taken.document["id"]).name == "true"


def test_a_run_that_cannot_be_shown_is_said_to_be_queued(cli, other_home):
    with listening(other_home) as store:
        answer = cli(*COMMAND)
        assert answer.code == 6
        assert "Run 1 is queued, but cannot be shown" in answer.err
        assert store.runs.get(1).name == "true"
