"""Server-sent events over a real connection: replay, live progress, the end, many at once."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from app.lifecycle import Reason
from app.settings import load_settings
from app.store.store import open_store
from stoker.events import Event, lines_of, parse_event_stream
from tests.api.process import ApiProcess
from tests.api.support import SPEC, Player


@pytest.fixture(scope="module")
def settings(tmp_path_factory, empty_database):
    home = tmp_path_factory.mktemp("streams")
    shutil.copy(empty_database, home / "stoker.db")
    return load_settings(home=home, port=0)


@pytest.fixture(scope="module")
def store(settings):
    with closing(open_store(settings)) as opened:
        yield opened


@pytest.fixture(scope="module")
def player(store, settings):
    return Player(store, settings)


@pytest.fixture(scope="module")
def server(settings, store) -> Iterator[ApiProcess]:
    """For the tests of this file, one after the other; the last one ends it."""
    with ApiProcess(settings.home) as running:
        yield running


@pytest.fixture
def run_id(server, player):
    """A run that is alone in the queue."""
    for other in server.client.get("/runs", params={"state": "queued"}).json()["data"]:
        server.client.post(f"/runs/{other['id']}/stop").raise_for_status()
    return server.client.post("/runs", json=SPEC).json()["id"]


@contextmanager
def following(server, path, **headers) -> Iterator[Iterator[Event]]:
    headers["Accept"] = "text/event-stream"
    with server.client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        yield parse_event_stream(lines_of(response.iter_text()))


def test_a_stream_replays_goes_on_live_and_ends(server, run_id, player):
    lease = player.claim()
    with following(server, f"/runs/{run_id}/events") as events:
        assert [(e.seq, e.kind) for e in (next(events), next(events))] == [
            (1, "state"),
            (2, "state"),
        ]
        player.event(lease, "phase", phase="train\u2028ing")
        phase = next(events)
        assert (phase.seq, phase.kind, phase.data["phase"]) == (3, "phase", "train\u2028ing")
        assert phase.data["t"].endswith("Z")
        player.progress(lease, step=7, loss=0.5)
        progress = next(events)
        assert (progress.seq, progress.kind, progress.data["step"]) == (None, "progress", 7)
        player.finish(lease, Reason.completed, "The spec is done.")
        rest = list(events)
    assert [event.kind for event in rest] == ["state", "end"]
    assert rest[-1].seq is None
    assert rest[-1].data == {
        "state": "succeeded",
        "reason": "completed",
        "message": "The spec is done.",
    }


def test_a_stream_goes_on_after_the_last_event_id(server, run_id, player):
    player.finish(player.claim(), Reason.completed)
    with following(server, f"/runs/{run_id}/events", **{"Last-Event-ID": "2"}) as events:
        assert [(event.seq, event.kind) for event in events] == [(3, "state"), (None, "end")]
    with following(server, f"/runs/{run_id}/events?after=3") as events:
        assert [event.kind for event in events] == ["end"]


def test_an_attempts_end_does_not_end_the_stream(server, run_id, player):
    lease = player.claim()
    player.event(lease, "end", reason="interrupted")
    player.finish(lease, Reason.interrupted)
    player.finish(player.claim(), Reason.completed)
    with following(server, f"/runs/{run_id}/events") as events:
        kinds = [event.kind for event in events]
    assert kinds.count("end") == 1
    assert kinds[-1] == "end"


def test_the_log_streams_over_attempts(server, run_id, player):
    lease = player.claim()
    player.log(lease, "one\n")
    with following(server, f"/runs/{run_id}/logs") as events:
        first = next(events)
        assert (first.kind, first.data["text"]) == ("log", "one\n")
        player.finish(lease, Reason.interrupted)
        second = player.claim()
        player.log(second, "two\n")
        assert next(events).data["text"] == "two\n"
        player.finish(second, Reason.completed)
        assert [event.kind for event in events] == ["end"]
    with following(server, f"/runs/{run_id}/logs", **{"Last-Event-ID": str(first.seq)}) as events:
        assert [event.data.get("text") for event in events] == ["two\n", None]


def test_a_stream_of_nothing_is_a_problem(api):
    headers = {"Accept": "text/event-stream"}
    for path in ("/runs/99/events", "/runs/99/logs"):
        assert api.get(path, headers=headers).problem("not_found") == 404


@pytest.mark.parametrize("what", ["events?limit=1", "events?wait=1", "logs?wait=1"])
def test_what_would_have_no_effect_on_a_stream_is_refused(api, player, what):
    queued = api.post("/runs", json=SPEC).json()["id"]
    answer = api.get(f"/runs/{queued}/{what}", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 422
    assert "no effect" in answer.json()["detail"]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "²"])
def test_a_last_event_id_that_was_never_sent_is_refused(api, player, last):
    queued = api.post("/runs", json=SPEC).json()["id"]
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last.encode()}
    assert api.get(f"/runs/{queued}/events", headers=headers).problem("invalid_request") == 422


def test_a_run_stopped_in_the_queue_ends_its_stream(server, run_id, player):
    with following(server, f"/runs/{run_id}/events") as events:
        next(events)
        server.client.post(f"/runs/{run_id}/stop")
        assert [event.kind for event in events][-1] == "end"


def test_many_streams_leave_room_for_other_requests(server, run_id, player):
    lease = player.claim()
    seen: list[str] = []

    def follow() -> None:
        with following(server, f"/runs/{run_id}/events") as events:
            seen.append([event.kind for event in events][-1])

    threads = [threading.Thread(target=follow) for _ in range(60)]
    for thread in threads:
        thread.start()
    assert server.client.get(f"/runs/{run_id}").status_code == 200
    player.finish(lease, Reason.completed)
    for thread in threads:
        thread.join(30)
    assert seen == ["end"] * 60


def test_sigterm_ends_streams_and_leaves_nothing(server, run_id, player):
    player.claim()
    with following(server, f"/runs/{run_id}/events") as events:
        next(events)
        server.process.terminate()
        kinds = [event.kind for event in events]
    assert "end" not in kinds
    assert server.process.wait(4) == 0
    assert not (server.home / "api.json").exists()
    assert "Traceback" not in server.log
