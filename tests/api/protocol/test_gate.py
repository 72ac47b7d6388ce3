"""Token, Host and Origin; and errors that no endpoint answers."""

import asyncio
import re
from contextlib import closing
from importlib.metadata import EntryPoint

import pytest
from structlog.testing import capture_logs

from app.api.main import create_app
from app.errors import Unavailable
from app.settings import load_settings
from app.store.engine.sqlite import driver
from tests.api.support import SPEC, Api

PLACES = {"action": "stop", "which": "latest", "name": "weather"}


@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer wrong", "Basic abc", "Bearer \xff"])
def test_without_a_known_token_nothing_opens(api, value):
    headers = {} if value is None else {"Authorization": value.encode("latin-1")}
    for path, operations in api.app.openapi()["paths"].items():
        if path in ("/healthz", "/readyz", "/metrics"):
            continue
        given = re.sub(r"{(\w+)}", lambda part: PLACES.get(part[1], "1"), path)
        for method in operations:
            # What else is wrong with a call is not told to whoever has no token.
            kind = {"Content-Type": "application/json"}
            body = {} if method == "get" else {"content": b"{bad"}
            asked = {**headers, **(kind if body else {})}
            answer = api.request(method.upper(), given, headers=asked, with_token=False, **body)
            assert answer.problem("unauthorized") == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"


def test_health_metrics_and_the_reference_are_open(api, player):
    for path in ("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"):
        assert api.get(path, with_token=False).status_code == 200


def test_the_reference_asks_no_other_host(api):
    page = api.get("/docs", with_token=False).text
    places = re.findall(r"""(?:src|href)=["']([^"']+)|url: ['"]([^'"]+)""", page)
    assert len(places) >= 4
    for place in map("".join, places):
        assert place.startswith("/"), place
        assert api.get(place, with_token=False).status_code == 200, place


@pytest.mark.parametrize("path", ["/runs", "/healthz", "/runs/1/events", "/metrics", "/docs"])
def test_head_is_answered_as_get_without_the_body(api, player, path):
    api.post("/runs", json=SPEC)
    got, head = api.get(path), api.request("HEAD", path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


def test_the_head_of_a_stream_is_not_waited_for(api, player):
    """The client stays, so that nothing but the service itself ends it."""
    api.post("/runs", json=SPEC)
    sent = []

    async def ask(app):
        headers = [(b"host", b"127.0.0.1"), (b"accept", b"text/event-stream"),
                   (b"authorization", f"Bearer {api.token}".encode())]  # fmt: skip
        scope = {"type": "http", "http_version": "1.1", "method": "HEAD", "scheme": "http",
                 "path": "/runs/1/events", "raw_path": b"/runs/1/events", "root_path": "",
                 "query_string": b"", "headers": headers, "client": None, "server": None,
                 "asgi": {"version": "3.0", "spec_version": "2.3"}}  # fmt: skip
        asked = asyncio.Event()

        async def receive():
            if not asked.is_set():
                asked.set()
                return {"type": "http.request", "body": b"", "more_body": False}
            return await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        await asyncio.wait_for(app(scope, receive, send), 20)

    api._portal.call(ask, api.app)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 200
    assert api.request("HEAD", "/runs/7").status_code == 404


def test_a_revoked_token_opens_nothing_from_then_on(api, store):
    record, secret = store.tokens.create("short-lived")
    headers = {"Authorization": f"Bearer {secret}"}
    assert api.get("/runs", headers=headers).status_code == 200
    store.tokens.revoke(record.id)
    assert api.get("/runs", headers=headers).problem("unauthorized") == 401


@pytest.fixture
def rollback_journal(monkeypatch):
    """As where SQLite must not use a WAL: who commits shuts out who reads."""
    monkeypatch.setattr("app.store.engine.sqlite.journal_mode", lambda: "PERSIST")


def test_a_token_waits_for_whoever_holds_the_database_and_holds_up_nobody(
    rollback_journal, api, settings
):
    with closing(driver.connect(settings.home / "stoker.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        asked = api.start("GET", "/version")
        for _ in range(5):  # the database is waited for 30 seconds
            health = api.start("GET", "/healthz", with_token=False)
            assert health.result(timeout=15).status_code == 200
        assert not asked.done()
    assert asked.result(timeout=30).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.", "127.0.0.1:80x", "", "[::2]:8000"],
)
def test_a_foreign_host_is_refused_also_where_no_token_is_asked(api, host):
    for path in ("/runs", "/metrics", "/docs", "/docs/static/swagger-ui.css", "/openapi.json"):
        answer = api.get(path, headers={"Host": host})
        assert answer.problem("host_not_allowed") == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:8000", "[::1]:8000"])
def test_loopback_hosts_are_known(api, host):
    assert api.get("/runs", headers={"Host": host}).status_code == 200


def test_a_host_can_be_allowed(settings, store):
    home = load_settings(home=settings.home, allowed_hosts=("stoker.example",), auth="none")
    with Api(create_app(home, store), None) as api:
        assert api.get("/runs", headers={"Host": "stoker.example"}).status_code == 200
        assert api.get("/runs", headers={"Host": "other.example"}).status_code == 403


@pytest.mark.parametrize("host", ["fd00::5", "[fd00::5]", "FD00:0:0::5"])
def test_an_address_of_ipv6_is_known_however_it_is_written(settings, store, host):
    home = load_settings(home=settings.home, host=host)
    with Api(create_app(home, store), store.tokens.create("test")[1]) as api:
        for known in ("[fd00::5]:8000", "[FD00::5]", "fd00::5", "[fd00:0::0:5]:8000", "::1"):
            assert api.get("/runs", headers={"Host": known}).status_code == 200, known
        for other in ("[fd00::6]:8000", "[fd00::5", "fd00::5]", "[fd00::5]8000", "[fd00::5]:x"):
            answer = api.get("/runs", headers={"Host": other})
            assert answer.problem("host_not_allowed") == 403, other


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:9999", "http://[", "file://"]
)
def test_a_foreign_origin_is_refused(api, origin):
    headers = {"Host": "127.0.0.1:8000", "Origin": origin}
    assert api.get("/runs", headers=headers).problem("origin_not_allowed") == 403


def test_the_own_origin_is_let_in(api):
    headers = {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000"}
    assert api.get("/runs", headers=headers).status_code == 200


def test_a_wrong_path_is_a_problem(api):
    for path in ("/nothing", "/runs/", "/redoc"):
        assert api.get(path).problem("not_found") == 404


@pytest.mark.parametrize("path", ["/runs", "/datasets", "/runs/bulk/stop"])
def test_bodies_of_wrong_kind_size_or_form_are_problems(api, path):
    json_type = {"Content-Type": "application/json"}
    huge = b'{"name": "' + b"x" * (1 << 20) + b'"}'
    assert api.post(path, content=huge, headers=json_type).problem("payload_too_large") == 413
    streamed = iter([huge[:1000], huge[1000:]])
    answer = api.post(path, content=_aiter(streamed), headers=json_type)
    assert answer.problem("payload_too_large") == 413
    for kind in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/xml"}):
        answer = api.post(path, content=b"{}", headers=kind)
        assert answer.problem("unsupported_media_type") == 415
    for body in (b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"a": "\\ud800"}', b"[" * 9999):
        assert api.post(path, content=body, headers=json_type).problem("invalid_json") == 422


def test_an_unexpected_error_tells_the_client_nothing_but_where_to_look(api, store, monkeypatch):
    def fail(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(store.runs, "get", fail)
    with capture_logs() as logged:
        answer = api.get("/runs/1")
    assert answer.problem("internal_error") == 500
    assert [entry["error_id"] for entry in logged] == [answer.json()["error_id"]]
    assert "secret" not in answer.text
    assert answer.json()["error_id"] in answer.json()["detail"]
    plugin = [EntryPoint("walks", f"{__name__}:Walks", "stoker.recipes")]
    monkeypatch.setattr("app.spec.plugins.entry_points", lambda group: plugin)
    told = api.get("/runs/1").json()["detail"]
    assert "The recipe walks raised RuntimeError: secret detail, in test_an_unexp" in told
    assert f"({__file__}, line " in told


async def _aiter(pieces):
    for piece in pieces:
        yield piece


def test_a_mistake_of_the_service_is_counted(api, store, monkeypatch):
    monkeypatch.setattr(store.runs, "get", None)
    assert api.get("/runs/1").status_code == 500
    counted = 'stoker_http_request_duration_seconds_count{method="GET",route="/runs/{run_id}",'
    assert f'{counted}status="500"}} 1.0' in api.get("/metrics").text


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_a_line_a_request_is_logged_when_asked_for(settings, store, is_asked_for):
    settings = settings.model_copy(update={"access_log": is_asked_for, "auth": "none"})
    with Api(create_app(settings, store), None) as api, capture_logs() as logged:
        assert api.get("/runs/7").status_code == 404
    lines = [entry for entry in logged if entry["event"] == "request"]
    assert [(one["method"], one["path"], one["status"]) for one in lines] == (
        [("GET", "/runs/7", 404)] if is_asked_for else []
    )


def test_a_token_that_cannot_be_looked_up_is_as_none(api, store, monkeypatch):
    """Where the database is away, who asks whether it is hears so."""

    def fail(_secret):
        raise Unavailable("The database is away.")

    monkeypatch.setattr(store.tokens, "verify", fail)
    monkeypatch.setattr(store, "ping", lambda: fail(None))
    assert api.get("/readyz").problem("not_ready") == 503


def test_an_application_may_start_again(settings, store, player):
    store.datasets.register("later", "later.h5")
    app = create_app(settings.model_copy(update={"auth": "none"}), store)
    for _ in range(2):
        with Api(app, None) as api:
            assert api.get("/readyz").status_code == 200
            waiting = api.start("GET", "/datasets/later", params={"wait": 60})
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.5)
            player.inspect("later")
            assert waiting.result(timeout=30).json()["state"] == "ready"
        store.datasets.register("later", "later.h5")
