"""The client against a server that misbehaves in the ways real networks and programs do."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app.cli.main import CALLED_HERE, GROUPS, TOPICS
from stoker import Client, ClientError, Event, Problem, ServiceUnreachable
from stoker.events import lines_of, parse_event_stream
from tests.cli.conftest import environment_of, stoker
from tests.e2e.service import write_waves

Handle = Callable[[BaseHTTPRequestHandler, int], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Handle], str]]:
    """Start a server on a free port; `handle(request, number)` answers the number-th GET."""
    servers: list[ThreadingHTTPServer] = []

    def start(handle: Handle) -> str:
        count = iter(range(10_000))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                handle(self, next(count))

            def log_message(self, *arguments: object) -> None:
                return None

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def answer(request: BaseHTTPRequestHandler, status: int, kind: str, text: str) -> None:
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(text.encode())))
    request.end_headers()
    request.wfile.write(text.encode())


def test_a_lost_stream_goes_on_after_the_last_event(serve):
    asked: list[str | None] = []

    def handle(request: BaseHTTPRequestHandler, number: int) -> None:
        asked.append(request.headers["Last-Event-ID"])
        texts = [
            "retry: 1000\n\nid: 1\nevent: state\ndata: {}\n\n: still here\n\nid: 2\nevent: epo",
            'id: 2\nevent: epoch\ndata: {"epoch": 1}\n\nevent: end\ndata: {}\n\n',
        ]
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.end_headers()
        request.wfile.write(texts[number].encode())

    with Client(serve(handle)) as client:
        events = list(client.watch(1))
    assert [(event.seq, event.kind) for event in events] == [
        (1, "state"),
        (None, "connection_lost"),
        (2, "epoch"),
        (None, "end"),
    ]
    assert asked == [None, "1"]


PAGES: tuple[tuple[list[int], str | None], ...] = (
    ([9, 8, 7], "7"),
    ([], "5"),
    ([4], "4"),
    ([2, 1], None),
)


@pytest.mark.parametrize(
    ("limit", "ids", "cursor", "asked"),
    [
        (2, [9, 8, 7], "7", ["limit=2&label=x"]),
        (4, [9, 8, 7, 4], "4", [f"limit={left}{then}&label=x" for left, then in (
            (4, ""), (1, "&after=7"), (1, "&after=5"))]),
        (50, [9, 8, 7, 4, 2, 1], None, [f"limit={left}{then}&label=x" for left, then in (
            (50, ""), (47, "&after=7"), (47, "&after=5"), (46, "&after=4"))]),
    ],
)  # fmt: skip
def test_short_pages_are_followed_until_there_are_so_many(serve, limit, ids, cursor, asked):
    paths: list[str] = []

    def handle(request: BaseHTTPRequestHandler, number: int) -> None:
        paths.append(request.path)
        found, after = PAGES[number]
        page = {"data": [{"id": run_id} for run_id in found], "next_cursor": after}
        answer(request, 200, "application/json", json.dumps(page))

    with Client(serve(handle)) as client:
        page = client.runs(limit=limit, label="x")
    assert page == {"data": [{"id": run_id} for run_id in ids], "next_cursor": cursor}
    assert paths == [f"/runs?{query}" for query in asked]


def test_a_stream_that_never_comes_back_is_given_up(serve):
    def handle(request: BaseHTTPRequestHandler, number: int) -> None:
        request.connection.close()

    with Client(serve(handle)) as client:
        events = client.watch(1, patience_seconds=0.1)
        assert next(events).kind == "connection_lost"
        with pytest.raises(ServiceUnreachable):
            next(events)


def test_a_stream_waits_for_a_service_that_starts_again(serve):
    problem = {"status": 503, "code": "unavailable", "detail": "It starts."}

    def handle(request: BaseHTTPRequestHandler, number: int) -> None:
        if number == 0:
            answer(request, 503, "application/problem+json", json.dumps(problem))
        else:
            answer(request, 200, "text/event-stream", "event: end\ndata: {}\n\n")

    with Client(serve(handle)) as client:
        assert [event.kind for event in client.watch(1)] == ["connection_lost", "end"]


def test_watching_says_that_the_connection_is_lost_and_ends_with_six(serve, cli, home, monkeypatch):
    streams = iter((True,))

    def handle(request: BaseHTTPRequestHandler, number: int) -> None:
        if "events" in request.path and next(streams, False):
            request.send_response(200)
            request.send_header("Content-Type", "text/event-stream")
            request.end_headers()
            request.wfile.write(b'id: 1\nevent: state\ndata: {"to": "queued"}\n\n')
        else:
            request.connection.close()

    monkeypatch.setenv("STOKER_URL", serve(handle))
    monkeypatch.setattr("stoker.stream.PATIENCE_SECONDS", 0.1)
    answer = cli("watch", "1")
    assert answer.code == 6
    assert answer.out.splitlines() == ["queued", "connection lost, trying again"]
    assert "does not answer" in answer.err


def test_a_checkpoint_that_stops_coming_is_a_sentence(serve):
    def handle(request: BaseHTTPRequestHandler, number: int) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "100")
        request.end_headers()
        request.wfile.write(b"ten bytes.")
        request.connection.close()

    with Client(serve(handle)) as client, pytest.raises(ClientError, match="broke off"):
        list(client.download_checkpoint(1))


def test_a_problem_carries_what_the_service_said(serve):
    problem = {
        "status": 409,
        "code": "action_not_allowed",
        "title": "No",
        "detail": "Run 1 has ended.",
        "allowed_actions": ["restart"],
    }

    def handle(request: BaseHTTPRequestHandler, number: int) -> None:
        answer(request, 409, "application/problem+json", json.dumps(problem))

    with Client(serve(handle)) as client, pytest.raises(Problem) as raised:
        client.run(1)
    assert raised.value.status == 409
    assert raised.value.code == "action_not_allowed"
    assert raised.value.detail == "Run 1 has ended."
    assert raised.value.allowed_actions == ["restart"]


@pytest.mark.parametrize("status", [200, 404, 500])
def test_another_program_on_the_port_is_recognized(serve, status):
    def handle(request: BaseHTTPRequestHandler, number: int) -> None:
        answer(request, status, "text/html", "<h1>hello</h1>")

    with Client(serve(handle)) as client, pytest.raises(Problem, match="another program"):
        client.run(1)


@pytest.mark.parametrize("url", ["box:8000", "http://[::", "http://", "ftp://box"])
def test_what_is_no_address_is_a_sentence(url):
    with pytest.raises(ServiceUnreachable), Client(url) as client:
        client.run(1)


def test_no_service_is_a_sentence_with_what_to_do(home):
    with pytest.raises(ServiceUnreachable, match="stoker up"):
        Client()
    with Client("http://127.0.0.1:9") as client:
        assert client.ready() is False
        with pytest.raises(ServiceUnreachable, match="does not answer"):
            client.run(1)


@pytest.mark.parametrize("name", ["a..b", "x" * 64])
def test_what_is_no_host_name_is_a_sentence(cli, home, monkeypatch, name):
    monkeypatch.setenv("STOKER_URL", f"http://{name}:8000")
    listed = cli("ls")
    assert (listed.code, f"{name}:8000 is not the address of a service" in listed.err) == (5, True)
    with pytest.raises(ServiceUnreachable, match="is not an address"):
        Client(f"http://{name}:8000")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_what_json_cannot_say_is_refused_before_it_is_sent(value):
    with Client("http://127.0.0.1:9") as client, pytest.raises(ClientError, match="JSON"):
        client.submit({"optimizer": {"lr": value}})


def test_address_and_token_come_from_the_environment_first(home, monkeypatch):
    home.mkdir()
    (home / "api.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    (home / "token").write_text("of-the-file\n")
    with Client() as client:
        assert client.url == "http://127.0.0.1:1"
    monkeypatch.setenv("STOKER_URL", "http://127.0.0.1:2/")
    with Client() as client:
        assert client.url == "http://127.0.0.1:2"


def test_a_home_can_be_named_and_what_a_run_finds_in_its_environment_is_no_hindrance(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("STOKER_URL", raising=False)
    monkeypatch.setenv("STOKER_RUN_ID", "7")  # which is no setting of a service
    (tmp_path / "api.json").write_text('{"url": "http://127.0.0.1:3", "pid": 1}')
    with Client(home=tmp_path) as client:
        assert client.url == "http://127.0.0.1:3"


def test_a_misspelt_setting_is_refused_and_not_passed_over(cli, monkeypatch):
    monkeypatch.setenv("STOKER_HOEM", "/srv/stoker")
    answer = cli("ls")
    assert answer.code == 5
    assert "STOKER_HOEM is not a setting. Did you mean STOKER_HOME?" in answer.err


@pytest.mark.parametrize(
    ("word", "said"),
    [("status", "`stoker ls` shows the state of all runs"), ("rm", "`stoker delete RUN`"),
     ("lgos", "Did you mean 'logs'")],
)  # fmt: skip
def test_another_tools_word_for_a_command_is_answered_with_ours(cli, word, said):
    answer = cli(word)
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.parametrize("command", [(), ("submit",), ("queue", "move")])
def test_help_shows_a_value_only_where_an_option_takes_one(cli, command):
    said = cli(*command, "--help").out
    assert "--help" in said
    assert "<bool>" not in said
    assert ("A.B=VALUE" in said) == (command == ("submit",))


def test_what_is_answered_names_commands_that_are_there():
    there = {*GROUPS, *(name for commands in TOPICS.values() for name in commands)}
    for word, said in CALLED_HERE.items():
        assert word not in there
        assert set(re.findall(r"`stoker ([a-z]+)", said)) <= there, said


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\x00", b'{"url": 1}'])
def test_an_address_file_that_a_power_cut_has_damaged_is_as_none(home, data):
    home.mkdir()
    (home / "api.json").write_bytes(data)
    with pytest.raises(ServiceUnreachable, match=r"Start one with `stoker up`"):
        Client()


def test_a_damaged_token_is_a_sentence(home):
    home.mkdir()
    (home / "api.json").write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
    (home / "token").write_bytes(b"\xff\x00")
    with pytest.raises(ClientError, match=r"does not hold a token"):
        Client()


def test_what_the_terminal_cannot_show_ends_no_command(tmp_path):
    """`RUN…` where only ASCII is known, and a file whose name is no UTF-8."""
    helped = subprocess.run(
        [sys.executable, "-m", "app.cli", "stop", "--help"],
        env={**environment_of(tmp_path / "home"), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (helped.returncode, b"RUN" in helped.stdout) == (0, True), helped.stderr
    data = write_waves(tmp_path / os.fsdecode(b"\xff.h5"))
    looked = stoker(tmp_path / "home", "data", "inspect", str(data))
    assert (looked.code, "\\udcff.h5" in looked.out) == (0, True), looked.err


@pytest.mark.parametrize("token", ["", "zwölf-geheim", "two geheim", "a\ngeheim"])
def test_what_is_no_token_is_a_sentence_that_does_not_show_it(home, monkeypatch, token):
    monkeypatch.setenv("STOKER_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("STOKER_TOKEN", token)
    with pytest.raises(ClientError, match="STOKER_TOKEN does not hold a token") as refusal:
        Client()
    assert "geheim" not in str(refusal.value)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_ends_where_the_standard_says(end):
    text = f'data: {{"text": "a\u2028b\x85c"}}{end}{end}: beat{end}'
    for size in (1, 2, 3, len(text)):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert list(parse_event_stream(lines_of(pieces))) == [
            Event(None, "message", {"text": "a\u2028b\x85c"})
        ]


def test_lines_of_one_event_are_joined():
    lines = ["event: log", 'data: {"text":', 'data: "a"}', "id: 7", "", "data: {}", ""]
    assert list(parse_event_stream(lines)) == [
        Event(7, "log", {"text": "a"}),
        Event(None, "message", {}),
    ]
