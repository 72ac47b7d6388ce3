"""Connections that are opened and left: they cost the others nothing, and the log a line a second.

Real sockets to a server process that may have few descriptors and gives a request little time.
"""

import asyncio
import pydoc
import re
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest
import uvicorn
from fastapi import FastAPI

from app.api.connections import AnnouncingServer, BoundedHttp
from tests.api.process import ApiProcess
from tests.api.protocol.test_wire import answer_to, connection_to, request, status_of
from tests.api.support import SPEC
from tests.worker.eventually import eventually

FEW, MANY = 150, 300
FEW_DESCRIPTORS = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FEW}, {FEW}))\n"
HURRY = "import app.api.connections; app.api.connections.PATIENCE_SECONDS = 0.5\n"
LONG_KEPT_ALIVE = (
    "import functools, uvicorn\n"
    "uvicorn.Config = functools.partial(uvicorn.Config, timeout_keep_alive=60)\n"
)
BEGUN = b"POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthor"


@contextmanager
def opened(server: ApiProcess, count: int, start: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections on which no more than the start is sent."""
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(connection_to(server))
            connections.append(connection)
            try:
                connection.sendall(start)
            except ConnectionError:
                continue  # closed for one that came after it
        yield connections


def health(server: ApiProcess) -> int:
    """As somebody new asks, over a connection of their own."""
    return httpx.get(f"{server.url}/healthz", timeout=30, trust_env=False).status_code


def received(connection: socket.socket) -> bytes:
    """All that comes until the service closes the connection."""
    pieces = []
    try:
        while piece := connection.recv(1 << 16):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def one_answer(connection: socket.socket) -> bytes:
    """Head and body, which may come apart."""
    answer = b""
    while piece := connection.recv(1 << 16):
        answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        if length is not None and len(body) == int(length[1]):
            return answer
    pytest.fail(f"the connection was closed after {answer!r}")


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with ApiProcess(tmp_path_factory.mktemp("hurried"), before=HURRY) as running:
        yield running


@pytest.mark.parametrize("start", [b"", BEGUN], ids=["silent", "begun"])
def test_many_that_say_nothing_keep_nobody_out(tmp_path: Path, start: bytes) -> None:
    with ApiProcess(tmp_path, before=FEW_DESCRIPTORS) as server, opened(server, MANY, start):
        lines = len(server.log.splitlines())
        begun = time.monotonic()
        for _ in range(20):
            assert health(server) == 200
            assert server.client.post("/runs", json=SPEC).status_code == 422
        assert psutil.Process(server.process.pid).num_fds() < FEW
        told = server.log.splitlines()[lines:]
    assert "Traceback" not in server.log
    assert len(told) <= 2 + time.monotonic() - begun, told


def test_a_connection_that_is_answered_stays_when_many_others_come(tmp_path: Path) -> None:
    with ApiProcess(tmp_path, before=FEW_DESCRIPTORS) as server:
        server.client.post("/datasets", json={"name": "later", "path": "later.h5"})
        with connection_to(server) as patient:
            patient.sendall(request(server, "GET /datasets/later?wait=2 HTTP/1.1"))
            with opened(server, MANY):
                assert patient.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_one_that_was_just_answered_is_not_the_first_to_go(tmp_path: Path) -> None:
    before = FEW_DESCRIPTORS + LONG_KEPT_ALIVE
    with ApiProcess(tmp_path, before=before) as server, connection_to(server) as patient:
        body = b'{"name": "later", "path": "later.h5"}'
        kind = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        patient.sendall(request(server, "POST /datasets HTTP/1.1", *kind))
        with opened(server, 10) as silent:
            assert health(server) == 200  # they are taken in their order, so these are by now
            patient.sendall(body)
            assert status_of(one_answer(patient)) == 202
            with ExitStack() as more:
                for _ in range(FEW):
                    if select.select([silent[0]], [], [], 0)[0]:
                        break
                    more.enter_context(connection_to(server))
                    assert health(server) == 200  # it is taken; not all of them at once
                assert received(silent[0]) == b"", "the one that has waited longest goes"
                patient.sendall(request(server, "GET /runs HTTP/1.1"))
                assert status_of(one_answer(patient)) == 200


def test_when_all_are_being_answered_one_more_is_told_so(tmp_path: Path) -> None:
    with ApiProcess(tmp_path, before=FEW_DESCRIPTORS) as server:
        server.client.post("/datasets", json={"name": "later", "path": "later.h5"})
        wait = request(server, "GET /datasets/later?wait=300 HTTP/1.1")
        with opened(server, MANY, wait) as connections:
            assert health(server) == 503
            connections[0].settimeout(1)
            with pytest.raises(TimeoutError):
                connections[0].recv(1)
            assert received(connections[-1]).startswith(b"HTTP/1.1 503 ")
        eventually(lambda: health(server) == 200, "it answers again when they have left")
    assert "Traceback" not in server.log


def test_it_takes_all_descriptors_that_it_may_have(tmp_path: Path) -> None:
    limits = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4000))\n"
    with ApiProcess(tmp_path, before=limits) as server:
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (4000, 4000)


@pytest.mark.parametrize(
    "begun",
    [
        BEGUN,
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /heal",
    ],
    ids=["head", "body", "second head"],
)
@pytest.mark.parametrize("is_trickling", [False, True], ids=["silent", "trickling"])
def test_a_request_that_does_not_come_is_not_waited_for(
    hurried: ApiProcess, begun: bytes, is_trickling: bool
) -> None:
    with connection_to(hurried) as connection:
        connection.sendall(begun)
        connection.settimeout(0.1)
        answer, end = b"", time.monotonic() + 30
        while time.monotonic() < end:
            try:
                if is_trickling:
                    connection.sendall(b"x")
                piece = connection.recv(1 << 16)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if not piece:
                break
            answer += piece
        else:
            pytest.fail("it is waited for")
    assert b"HTTP/1.1 408 " in answer
    assert "Traceback" not in hurried.log


def test_a_connection_without_a_word_is_closed_without_one(hurried: ApiProcess) -> None:
    with connection_to(hurried) as connection:
        assert received(connection) == b""


def test_a_line_end_after_an_answer_gives_a_connection_no_longer_life(hurried: ApiProcess) -> None:
    with connection_to(hurried) as connection:
        connection.sendall(request(hurried, "GET /healthz HTTP/1.1"))
        assert status_of(one_answer(connection)) == 200
        connection.sendall(b"\r\n")
        answer = received(connection)
    assert not answer or status_of(answer) == 400


def test_a_body_that_was_refused_by_its_head_is_not_waited_for_either(hurried: ApiProcess) -> None:
    head = b"POST /runs HTTP/1.1\r\nHost: elsewhere\r\nContent-Length: 10\r\n\r\n"
    assert status_of(answer_to(hurried, head)) == 403


def test_an_answer_may_take_longer_than_a_request(hurried: ApiProcess) -> None:
    hurried.client.post("/datasets", json={"name": "later", "path": "later.h5"})
    wait = request(hurried, "GET /datasets/later?wait=2 HTTP/1.1")
    second = request(hurried, "POST /runs HTTP/1.1", "Content-Length: 2")
    with connection_to(hurried) as connection:
        connection.sendall(wait + second)
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200 "), "the second's time begins when its turn comes"


def test_an_answer_that_is_not_taken_is_given_up(hurried: ApiProcess) -> None:
    process = psutil.Process(hurried.process.pid)

    def is_open(port: int) -> bool:
        return any(one.raddr and one.raddr.port == port for one in process.net_connections())

    with connection_to(hurried) as connection:
        port = connection.getsockname()[1]
        connection.sendall(request(hurried, "GET /healthz HTTP/1.1"))
        assert connection.recv(1 << 16)
        assert is_open(port)
        connection.sendall(request(hurried, "GET /openapi.json HTTP/1.1") * 200)
        eventually(lambda: not is_open(port), "the connection is given up")
    assert health(hurried) == 200


def has_left(server: ApiProcess) -> bool:
    text = server.client.get("/metrics").text
    return re.search(r'_seconds_count{.*route="/runs",status="499"} 1', text) is not None


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_mistake(tmp_path: Path) -> None:
    with ApiProcess(tmp_path) as server:
        lines = ("Content-Type: application/json", "Content-Length: 100")
        with connection_to(server) as connection:
            connection.sendall(request(server, "POST /runs HTTP/1.1", *lines, body=b"{"))
        eventually(partial(has_left, server), "the request ends with its client")
    assert "Traceback" not in server.log
    assert "unexpected" not in server.log


def test_the_log_has_a_line_a_second_of_those_that_do_not_speak_http(tmp_path: Path) -> None:
    with ApiProcess(tmp_path) as server:
        begun = time.monotonic()
        for _ in range(MANY):
            answer_to(server, b"\x16\x03\x01 hello\r\n\r\n")
        took = time.monotonic() - begun
        told = [line for line in server.log.splitlines() if "Invalid HTTP" in line]
        assert 1 <= len(told) <= 2 + took
        time.sleep(1.1)
        answer_to(server, b"nothing\r\n\r\n")
        last = server.log.splitlines()[-1]
    assert re.search(r"Invalid HTTP request received\. \(\d+ more like this", last), last


# What app/api reads of FastAPI, Starlette and uvicorn that their documents do not name.
BEYOND_DOCUMENTATION = [
    ("starlette.routing.BaseRoute", "matches"),
    ("starlette.routing.Match", "FULL"),
    ("uvicorn.Server", "startup"),
    ("uvicorn.Server", "shutdown"),
    *(
        ("uvicorn.protocols.http.h11_impl.H11Protocol", name)
        for name in (
            "connection_made", "connection_lost", "data_received", "on_response_complete",
            "pause_writing", "resume_writing",
        )
    ),
]  # fmt: skip
# What a connection and a server have once they are made.
OF_A_CONNECTION = ("conn", "connections", "limit_concurrency", "loop", "transport")
OF_A_SERVER = ("servers", "started", "config", "lifespan")


@pytest.mark.parametrize(("place", "name"), BEYOND_DOCUMENTATION)
def test_what_is_read_beyond_the_documentation_is_there(place: str, name: str) -> None:
    owner = pydoc.locate(place)
    assert hasattr(owner, name), f"{place} has no {name} any more: see app/api/connections.py"


def test_connections_and_servers_have_what_is_read_of_them() -> None:
    async def made() -> tuple[AnnouncingServer, BoundedHttp]:
        config = uvicorn.Config(FastAPI(), port=0, http=BoundedHttp, log_config=None)
        server = AnnouncingServer(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        try:
            port = server.servers[0].sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            (one,) = server.server_state.connections
            assert isinstance(one, BoundedHttp)
            writer.close()
            return server, one
        finally:
            await server.shutdown()

    server, connection = asyncio.run(made())
    gone = [name for name in OF_A_SERVER if not hasattr(server, name)]
    gone += [name for name in OF_A_CONNECTION if not hasattr(connection, name)]
    assert gone == [], "uvicorn has these no more: see app/api/connections.py"
