"""What every request passes before it is routed: HEAD, the time it takes, Host, Origin and size.

A web page that a user visits can send requests to the loopback address, and a name of an attacker
can be made to point at it: so the Host must be one we know, and an Origin must be our own.
"""

import time
from ipaddress import IPv6Address
from urllib.parse import urlsplit

import anyio
import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.operations import operation_of
from app.api.problems import response_of, too_large
from app.errors import Forbidden, InvalidRequest, StokerError
from app.settings import LOOPBACK_NAMES, Settings
from app.spec.reading import MAX_BYTES

log = structlog.get_logger("stoker.access")


class HeadAsGet:
    """HEAD on every GET: answered as GET is, up to the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        as_get = {**scope, "method": "GET"}
        with anyio.CancelScope() as answering:

            async def send_head(message: Message) -> None:
                if message["type"] == "http.response.start":
                    await send(message)
                    await send({"type": "http.response.body", "body": b""})
                elif message.get("more_body"):
                    answering.cancel()  # a stream would go on

            await self._app(as_get, receive, send_head)


class Observed:
    """Observes how long each answer took to begin; a line in the log each where it is asked for.

    It stands outside of all that can fail, so that mistakes of the service are counted as well.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._logs = settings.access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})  # one object for all that see the request, copied or not
        started = time.monotonic()
        status = None

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._observe(scope, status, started)
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception:
            if status is None:  # what the error handler outside of this will answer
                self._observe(scope, 500, started)
            raise

    def _observe(self, scope: Scope, status: int, started: float) -> None:
        operation = operation_of(Request(scope))
        route = operation.path if operation else "unmatched"
        seconds = time.monotonic() - started
        scope["app"].state.telemetry.observe_request(scope["method"], route, status, seconds)
        if self._logs:
            method, path = scope["method"][:20], scope["path"][:200]
            client = scope.get("client")
            log.info(
                "request", method=method, path=path, status=status,
                milliseconds=round(1000 * seconds, 1), client=client and client[0],
            )  # fmt: skip


class Gate:
    """Forbidden for a foreign Host or Origin, PayloadTooLarge for a body that says it is.

    InvalidRequest, and the end of the connection, for a length that is told in two ways.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        names = (*LOOPBACK_NAMES, settings.host, *settings.allowed_hosts)
        self._hosts = frozenset(_plain_address(name.lower().strip("[]")) for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(Headers(scope=scope))
            except StokerError as error:
                # Where bodies end is not known after one that was refused unread.
                response = response_of(error, {"Connection": "close"})
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _host_name(hosts[0]) not in self._hosts:
            raise Forbidden(
                f"The service does not answer to the Host {', '.join(hosts)[:200]!r}. If it is "
                "its name, add it to STOKER_ALLOWED_HOSTS.",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != hosts[0].lower():
            raise Forbidden(
                f"A page of {origin[:200]!r} may not call this service; only its own may. Programs "
                "call it without the header Origin.",
                code="origin_not_allowed",
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            raise InvalidRequest(
                "The request gives the length of its body in two ways, which a proxy before this "
                "service may read otherwise. Send either Content-Length or Transfer-Encoding."
            )
        # Starlette's own limit would answer this one with plain text.
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > MAX_BYTES:
            raise too_large()


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets; empty when it is malformed."""
    host = host.lower()
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        is_name = bool(bracket) and ":" in name
    elif host.count(":") > 1:  # an IPv6 address without brackets, as some clients write it
        name, rest, is_name = host, "", True
    else:
        name, colon, port = host.partition(":")
        rest, is_name = colon + port, True
    is_port = rest == "" or (rest[0] == ":" and rest[1:].isdecimal())
    return _plain_address(name) if is_name and is_port else ""


def _plain_address(name: str) -> str:
    """An IPv6 address in its one short form; another name as it is."""
    if ":" not in name:
        return name
    try:
        return IPv6Address(name).compressed
    except ValueError:
        return name


def _netloc(origin: str) -> str | None:
    """Host and port of an Origin header; None for `null` and what is no web origin."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") else None
