"""A home that an earlier version left behind opens, and its runs resume and restart."""

import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from app.settings import load_settings
from app.store import open_store
from app.store.engine import migrate
from tests.e2e.service import Service

HOMES = sorted(Path(__file__).parent.glob("[0-9a-f]*.tar.xz"))
# What make_home.py left in each: (name, state, step that it reached) by id.
RUNS = {
    1: ("done", "succeeded", 120),
    2: ("stopped", "stopped", 292),
    3: ("stopped", "succeeded", 1200),  # restarted from run 2
    4: ("paused", "paused", 390),
    5: ("failed", "failed", 200),
    6: ("running", "running", 300),
    7: ("queued", "queued", None),
    8: ("waiting", "queued", None),  # a restart of run 5
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(params=HOMES, ids=lambda path: path.name)
def home(request, tmp_path):
    folder = tmp_path / "home"
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


def newest(service, run_id):
    saved = service.http.get(f"/runs/{run_id}/checkpoints").json()["data"]
    return max((one["step"] for one in saved if one["state"] == "saved"), default=None)


def resumed(service, run_id):
    """The steps that its attempts went on from, the first attempt first."""
    attempts = service.http.get(f"/runs/{run_id}/attempts").json()["data"]
    return [one["resumed_from_step"] for one in sorted(attempts, key=lambda one: one["number"])]


def test_it_upgrades_and_tells_what_it_told(home):
    settings = load_settings(home=home)
    migrate.upgrade(settings)
    assert migrate.check(settings) == []
    with closing(open_store(settings)) as store:
        runs = {run_id: store.runs.get(run_id) for run_id in RUNS}
        assert {i: (run.name, run.state) for i, run in runs.items()} == {
            i: (name, state) for i, (name, state, _) in RUNS.items()
        }
        assert store.runs.counts_by_state() == {
            "succeeded": 2, "stopped": 1, "paused": 1, "failed": 1, "running": 1, "queued": 2
        }  # fmt: skip
        assert store.runs.finished_counts() == {
            ("succeeded", "completed"): 2,
            ("stopped", "stop_requested"): 1,
            ("failed", "killed"): 1,
        }
        assert runs[3].parent_id == 2
        assert runs[8].parent_id == 5
        assert store.metrics.series(1)["val_loss"]


@pytest.mark.minutes
def test_its_runs_resume_and_restart(home):
    service = Service(home)
    try:
        service.start_api()
        for run_id, (name, state, step) in RUNS.items():
            run = service.run(run_id)
            assert run["name"] == name
            # The holder of a running one is gone, which the API's observer sees at its first beat.
            assert run["state"] in ({state, "queued"} if state == "running" else {state})
            assert newest(service, run_id) == step
            for part in ("spec", "events", "logs", "metrics", "attempts"):
                assert service.http.get(f"/runs/{run_id}/{part}").status_code == 200, part
        service.http.post("/runs/4/resume").raise_for_status()
        child = service.http.post("/runs/2/restart", json={})
        assert child.status_code == 201, child.text
        assert child.json()["carry"]["kind"] == "full"
        service.start_agent()
        for run_id in (4, 6, 7, 8, child.json()["id"]):
            run = service.wait_for_end(run_id)
            assert (run["state"], run["reason"]) == ("succeeded", "completed"), run
        assert resumed(service, 4) == [None, 390]
        assert resumed(service, 6) == [None, 300]
        assert resumed(service, 7) == [None]
        assert resumed(service, 8) == [200]
        assert resumed(service, child.json()["id"]) == [292]
        assert service.run(6)["attempt"] == 2
        # That version made the same restart, and its end is the end of this one.
        last, before = (service.run(i)["result"]["last"] for i in (child.json()["id"], 3))
        assert last == pytest.approx(before, rel=3e-3)
    finally:
        service.close()


def test_every_home_has_runs_in_every_state():
    assert {path.name for path in HOMES} == {"f408a70.tar.xz"}
    states = {state for _, state, _ in RUNS.values()}
    assert states == {"queued", "running", "paused", "succeeded", "failed", "stopped"}
