"""Bytes on a connection: what is a request, what is refused, and what is not kept."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from app.api.connections import MOST_HEAD_BYTES
from tests.api.process import ApiProcess

SECONDS = 20
# A read of the socket may bring so much at once, which is looked at as a whole.
ONE_READ = 256 << 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with ApiProcess(tmp_path_factory.mktemp("wire")) as running:
        yield running


def connection_to(server: ApiProcess) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), SECONDS)


def answer_to(server: ApiProcess, sent: bytes) -> bytes:
    """All that comes back until the service closes the connection."""
    with closing(connection_to(server)) as connection:
        connection.sendall(sent)
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
        return received


def request(server: ApiProcess, start: str, *more: str, body: bytes = b"") -> bytes:
    head = [start, "Host: 127.0.0.1", f"Authorization: Bearer {server.token}", *more, "", ""]
    return "\r\n".join(head).encode() + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def sent_until_refused(connection: socket.socket, piece: bytes) -> tuple[int, bytes]:
    """How many bytes of an endless stream were taken, and what was answered."""
    connection.settimeout(0.05)
    sent = 0
    while sent < 1 << 24:
        try:
            sent += connection.send(piece)
            received = connection.recv(1 << 16)
        except TimeoutError:
            continue
        except ConnectionError:
            return sent, b""
        return sent, received
    pytest.fail("an endless stream is taken")


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        ("GET /", b"x" * 4096),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X-Filler: " + b"x" * 1000 + b"\r\n"),
        ("GET / HTTP/1.1\r\nX-Filler: ", b"x" * 4096),
        ("GET / HTTP/1.1\r\n", b"x" * 4096),
        (
            "POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n2;",
            b"x" * 4096,
        ),
        (
            "POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            "2\r\n{}\r\n0\r\nX-Filler: ",
            b"x" * 4096,
        ),
    ],
    ids=["path", "headers", "header", "header name", "chunk extension", "trailer"],
)
def test_what_does_not_end_is_refused(server: ApiProcess, start: str, piece: bytes) -> None:
    with closing(connection_to(server)) as connection:
        connection.sendall(start.encode())
        sent, answer = sent_until_refused(connection, piece)
    assert sent < MOST_HEAD_BYTES + ONE_READ + 16 * len(piece)
    assert not answer or status_of(answer) in (400, 401)
    assert server.client.get("/healthz").status_code == 200


def test_a_head_of_the_longest_kind_is_read(server: ApiProcess) -> None:
    filler = "X-Filler: " + "x" * (MOST_HEAD_BYTES - 1024)
    sent = request(server, "GET /runs HTTP/1.1", filler, "Connection: close")
    assert status_of(answer_to(server, sent)) == 200


def test_a_long_body_in_small_chunks_is_no_long_head(server: ApiProcess) -> None:
    text = json.dumps({"recipe": {"kind": "sequence"}, "notes": "x" * 4 * MOST_HEAD_BYTES}).encode()
    pieces = [text[at : at + 16] for at in range(0, len(text), 16)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    kind = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
    answer = answer_to(server, request(server, "POST /runs HTTP/1.1", *kind, body=body))
    assert status_of(answer) == 422, answer[:300]


def test_header_fields_after_a_body_do_not_count(server: ApiProcess) -> None:
    """Else a proxy that looks at the head alone would let them pass."""
    head = (
        "POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
        "Connection: close\r\n\r\n2\r\n{}\r\n0\r\n"
    )
    answer = answer_to(server, f"{head}Authorization: Bearer {server.token}\r\n\r\n".encode())
    assert status_of(answer) == 401
    good = request(
        server, "GET /runs HTTP/1.1", "Transfer-Encoding: chunked", "Connection: close",
        body=b"0\r\nHost: elsewhere\r\n\r\n",
    )  # fmt: skip
    assert status_of(answer_to(server, good)) == 200


@pytest.mark.parametrize(
    "lines",
    [
        ("GET /runs HTTP/1.1", "Content-Length: 3", "Content-Length: 4"),
        ("GET /runs HTTP/1.1", "Content-Length: +3"),
        ("GET /runs HTTP/1.1", "Transfer-Encoding: xchunked"),
        ("GET /runs HTTP/1.1", "X-One : 1"),
        ("GET /runs HTTP/1.1", "X-\x01: 1"),
        ("GET /ru\tns HTTP/1.1",),
        ("GET / runs HTTP/1.1",),
    ],
)  # fmt: skip
def test_what_two_programs_could_read_in_two_ways_is_refused(
    server: ApiProcess, lines: tuple[str, ...]
) -> None:
    answer = answer_to(server, request(server, *lines, body=b"abc"))
    assert status_of(answer) == 400, answer[:300]


def test_after_a_length_that_is_told_twice_nothing_more_is_read(server: ApiProcess) -> None:
    lines = ("Content-Length: 3", "Transfer-Encoding: chunked")
    sent = request(server, "POST /runs HTTP/1.1", *lines, body=b"0\r\n\r\n")
    answer = answer_to(server, sent + request(server, "GET /healthz HTTP/1.1"))
    assert status_of(answer) == 422
    assert b"in two ways" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("hosts", "status"),
    [((), 400), (("Host: elsewhere",), 403), (("Host: 127.0.0.1", "Host: elsewhere"), 400)],
)
def test_there_is_one_host_that_is_known(
    server: ApiProcess, hosts: tuple[str, ...], status: int
) -> None:
    head = ["GET /runs HTTP/1.1", *hosts, f"Authorization: Bearer {server.token}"]
    sent = "\r\n".join([*head, "Connection: close", "", ""]).encode()
    assert status_of(answer_to(server, sent)) == status


def test_requests_on_one_connection_are_answered_in_their_order(server: ApiProcess) -> None:
    sent = request(server, "GET /healthz HTTP/1.1") + request(server, "GET /runs/7 HTTP/1.1")
    answer = answer_to(server, sent + request(server, "GET /runs HTTP/1.1", "Connection: close"))
    statuses = [int(part.split(b" ", 1)[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 404, 200]
