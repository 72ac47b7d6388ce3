"""What every request passes first: Host and Origin, the size of the body, the token.

A web page that a user visits can send requests to the loopback address, and a name of an attacker
can be made to point at it: so the Host must be one we know, and an Origin must be our own.
"""

import time
from contextlib import suppress
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.problems import PayloadTooLarge, response_of
from app.errors import Forbidden, StokerError, Unauthorized, Unavailable
from app.service.services import Services
from app.settings import LOOPBACK_NAMES, Settings
from app.store.records import TokenRecord

MAX_BODY_BYTES = 1 << 20
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


class Gate:
    """ASGI middleware; `scope["app"].state.services` must be there when a request comes."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._needs_token = settings.auth == "token"
        names = (*LOOPBACK_NAMES, settings.host, *settings.allowed_hosts)
        self._hosts = frozenset(_plain_address(name.lower().strip("[]")) for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        timed = _Timed(scope, send, services)
        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            limited = _Limited(headers, receive)
            if self._needs_token and scope["path"] not in OPEN_PATHS:
                await check_token(headers, services)
        except StokerError as error:
            await response_of(error)(scope, receive, timed.send)
            return
        await self._app(scope, limited.receive, timed.send)

    def _check_host(self, headers: Headers) -> None:
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


async def check_token(headers: Headers, services: Services) -> None:
    """Unauthorized unless the headers carry a token that is known."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise Unauthorized(
            "Send the header `Authorization: Bearer TOKEN`; the token lies in the file "
            "`token` of the service's home, and `stoker token create` makes another."
        )
    # Asked anew each time, so that a revoked token opens nothing from then on.
    if await _token_of(secret.strip(), services) is None:
        raise Unauthorized(
            "The token is not known: it may be revoked, or of another installation. `stoker token "
            "create NAME`, on the service's machine, makes another."
        )


async def _token_of(secret: str, services: Services) -> TokenRecord | None:
    """From a file before a thread could be asked; in a thread where it has to be waited for."""
    tokens = services.store.tokens
    if services.store.database.is_sqlite:
        with suppress(Unavailable):
            return tokens.verify_at_once(secret)
    return await run_in_threadpool(tokens.verify, secret)


class _Limited:
    """Passes the body on until it is larger than anybody needs; PayloadTooLarge."""

    def __init__(self, headers: Headers, receive: Receive) -> None:
        self._receive = receive
        self._left = MAX_BODY_BYTES
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > MAX_BODY_BYTES:
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise self._too_large()
        return message

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The body is larger than {MAX_BODY_BYTES >> 20} MiB; no request needs that much."
        )


class _Timed:
    """Passes messages on and observes how long the answer took to begin."""

    def __init__(self, scope: Scope, send: Send, services: Services) -> None:
        self._scope = scope
        self._send = send
        self._services = services
        self._started = time.monotonic()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            route = getattr(self._scope.get("route"), "path", "unmatched")
            self._services.telemetry.observe_request(
                self._scope["method"], route, message["status"], self._started
            )
        await self._send(message)


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
