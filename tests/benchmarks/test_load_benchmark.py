"""What the benchmark of the API under load stands on: its history, and what it leaves out."""

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select

from app.lifecycle import Reason, RunState
from app.settings import load_settings
from app.store.engine import migrate
from app.store.engine.database import Database
from app.store.records import Finish, RunFilter
from app.store.tables import runs
from benchmarks.service import load_figures, mlflow_server
from benchmarks.service.long_history import add_copies
from tests.store.conftest import World

TOTAL = 1000


@pytest.fixture
def world(tmp_path: Path):
    settings = load_settings(home=tmp_path)
    migrate.upgrade(settings)
    with closing(Database(settings)) as database:
        yield World(settings, database)


def test_a_long_history_is_one_that_runs_could_have_made(world):
    lease = world.running()
    ended = world.store.leases.finish(lease.token, Finish(Reason.completed, "It is done."))
    add_copies(world.store, ended.id, TOTAL)
    with world.database.read() as connection:
        states = Counter(connection.execute(select(runs.c.state)).scalars())
    assert states.total() == TOTAL
    assert states == world.store.runs.counts_by_state(), "counts say what there is"
    newest = world.store.runs.list(RunFilter(), 500).data
    assert [run.id for run in newest] == list(range(TOTAL, TOTAL - 500, -1))
    assert newest[0].finished_at < ended.finished_at + 1
    for wanted in (RunFilter(state=RunState.failed), RunFilter(label="sweep=s7")):
        assert len(world.store.runs.list(wanted, 50).data) == 50
    assert world.store.runs.get(TOTAL - 9).parent_id == TOTAL - 10
    assert world.submit().id == TOTAL + 1


def test_without_a_load_generator_a_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    [line] = load_figures.measure(None)  # type: ignore[arg-type]
    assert line.name.startswith("the API under load was left out: wrk is not on PATH")
    assert (line.holds, line.n) == (None, 0)


def test_where_mlflow_cannot_be_installed_it_is_said_why(monkeypatch, tmp_path):
    for name, value in {"NO_INDEX": "1", "CONFIG_FILE": "/dev/null", "FIND_LINKS": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(mlflow_server.NotInstalled, match="mlflow"):
        mlflow_server.install(tmp_path / "mlflow")
