"""API and two agents on one PostgreSQL database: what runs go through there."""

import json
from contextlib import contextmanager

import psutil
import psycopg
import pytest
from sqlalchemy.engine import make_url

from tests.e2e.service import Service, eventually, write_waves
from tests.e2e.shell import ROOT, typed
from tests.e2e.test_a_run import SPEC
from tests.store.server import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(300)]

LONG = {**SPEC, "training": {**SPEC["training"], "epochs": 400}, "checkpoint": {"every_steps": 100}}


@pytest.fixture(scope="module")
def server():
    server = PostgresServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def make_service(server, tmp_path_factory):
    """A service on a database of its own, with agents and the dataset `waves`."""

    @contextmanager
    def make(agents, **settings):
        home = tmp_path_factory.mktemp("service") / "home"
        service = Service(home, STOKER_DATABASE_URL=server.new_database(), **settings)
        try:
            service.start_api()
            for _ in range(agents):
                service.start_agent()
            write_waves(service.home / "data" / "waves.h5")
            assert service.register("waves", "waves.h5")["state"] == "ready"
            yield service
        finally:
            service.close()

    return make


@pytest.fixture(scope="module")
def service(make_service):
    """For the first two tests, of which the second ends one of the agents."""
    with make_service(agents=2) as service:
        yield service


def test_stop_restart_succeed(service):
    run_id = service.submit(SPEC)
    service.wait_for_step(run_id, 100)
    service.http.post(f"/runs/{run_id}/stop").raise_for_status()
    stopped = service.wait_for_end(run_id)
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stop_requested")
    answer = service.http.post(f"/runs/{run_id}/restart", json={})
    assert answer.status_code == 201, answer.text
    done = service.wait_for_end(answer.json()["id"])
    assert (done["state"], done["reason"]) == ("succeeded", "completed"), done
    assert done["result"]["last"]["step"] == 1350
    assert resumed_from(service, done["id"]) == [stopped["progress"]["step"]]
    events = service.http.get(f"/runs/{done['id']}/events").json()["data"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert_no_traceback(service)


@pytest.mark.minutes
def test_pause_resume_and_the_death_of_an_agent(service):
    run_id = service.submit(SPEC)
    service.wait_for_step(run_id, 100)
    service.http.post(f"/runs/{run_id}/pause").raise_for_status()
    paused = service.wait_for_end(run_id)
    assert (paused["state"], paused["reason"]) == ("paused", "pause_requested")

    service.http.post(f"/runs/{run_id}/resume").raise_for_status()
    service.wait_for_step(run_id, paused["progress"]["step"] + 100)
    holder = service.run(run_id)["worker"]
    agent_of(service, holder).kill()
    eventually(lambda: service.run(run_id)["attempt"] == 3, "the run is taken over")
    done = service.wait_for_end(run_id)
    assert (done["state"], done["attempt"]) == ("succeeded", 3), done
    assert done["worker"] != holder
    first, second, third = resumed_from(service, run_id)
    assert first is None
    assert second == paused["progress"]["step"]
    assert third > second
    assert done["result"]["last"]["step"] == 1350
    assert_no_traceback(service)


def test_a_command_is_claimed_by_the_home_that_took_it(make_service, tmp_path):
    """Two workers of one user on one host; only one home has the command's environment."""
    with make_service(agents=1) as service:
        database, artifacts = service.environment["STOKER_DATABASE_URL"], service.home / "artifacts"
        other = Service(
            tmp_path / "other", STOKER_DATABASE_URL=database, STOKER_ARTIFACT_ROOT=str(artifacts)
        )
        other.http = service.http
        environment = {**service.environment, "PYTHONPATH": str(ROOT), "MINE": "of this shell"}

        def run(command: str) -> int:
            done = typed(tmp_path, environment, "run", "--json", "--", "sh", "-c", command)
            assert done.exit_code == 0, done.stderr
            return int(json.loads(done.stdout)["id"])

        try:
            other.start_agent()
            ids = [run('sleep 1; test "$MINE" = "of this shell"') for _ in range(4)]
            ends = [service.wait_for_end(run_id) for run_id in ids]
            assert [end["state"] for end in ends] == ["succeeded"] * 4, ends
            holds, waits = run("sleep 600"), run("true")
            eventually(lambda: service.run(holds)["state"] == "running", "it begins")
            service.stop(service.processes[-1])
            told = eventually(lambda: service.run(waits)["message"], "it says what it waits for")
            assert f"`stoker up --home {service.home}` starts one there" in told
            assert service.run(waits)["state"] == "queued"
            assert service.http.post(f"/runs/{holds}/stop").status_code in (200, 202)
            service.start_agent()
            assert service.wait_for_end(waits)["state"] == "succeeded"
        finally:
            other.close()


def test_the_doorbell_is_felt_between_two_beats(make_service):
    with make_service(agents=1, STOKER_BEAT_SECONDS="60") as service:

        def starts_and_stops_between_beats():
            before = beats_of_agents(service)
            run_id = service.submit(LONG)
            eventually(lambda: service.run(run_id)["state"] == "running", "the run is claimed")
            service.http.post(f"/runs/{run_id}/stop").raise_for_status()
            assert service.wait_for_end(run_id)["state"] == "stopped"
            return beats_of_agents(service) == before

        # Twice, since a beat may happen to come meanwhile; without a bell it always comes first.
        assert any(starts_and_stops_between_beats() for _ in range(2))


@pytest.mark.minutes
def test_a_restart_of_the_server_is_survived_by_all(make_service, server):
    with make_service(agents=1, STOKER_BEAT_SECONDS="1") as service:
        run_id = service.submit(LONG)
        reached = service.wait_for_step(run_id, 100)["progress"]["step"]
        server.restart()
        assert service.wait_for_step(run_id, reached + 200)["attempt"] == 1
        service.http.post(f"/runs/{run_id}/stop").raise_for_status()
        assert service.wait_for_end(run_id)["state"] == "stopped"
        assert_no_traceback(service)


def resumed_from(service, run_id):
    attempts = service.http.get(f"/runs/{run_id}/attempts").json()["data"]
    return [attempt["resumed_from_step"] for attempt in attempts]


def agent_of(service, name):
    workers = service.http.get("/workers").json()["data"]
    (pid,) = [worker["pid"] for worker in workers if worker["name"] == name]
    return psutil.Process(pid)


def beats_of_agents(service):
    """How often the agents have said that they live; the beats of their runs do not count here."""
    url = make_url(service.environment["STOKER_DATABASE_URL"]).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        (beats,) = connection.execute("SELECT sum(beat) FROM workers").fetchall()
        return beats[0]


def assert_no_traceback(service):
    for name in ("api", "agent"):
        assert "Traceback" not in (service.home / f"{name}.log").read_text()
