"""Serving: bind, leave the address where clients look for it, drain streams at the end."""

import gc
import json
import os
import resource
import signal
import sys
import threading
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from app.api.connections import MOST_HEAD_BYTES, AnnouncingServer, BoundedHttp
from app.api.token_file import write_atomically
from app.errors import StokerError
from app.logs import quiet
from app.service.services import Services
from app.settings import Settings

GRACE_SECONDS = 5
LISTEN_BACKLOG = 1024
MOST_CONNECTIONS = 1000
# Descriptors of the process itself: database, doorbell, log, and what threads open for a moment.
OWN_DESCRIPTORS = 64


class AddressInUse(StokerError):
    code, title = "address_in_use", "The address cannot be bound"


class _Server(AnnouncingServer):
    """Leaves its address once it is bound, and sends streams home before connections must end."""

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self._settings = settings

    def listens(self, port: int) -> None:
        url = f"http://{_url_host(self._settings.host)}:{port}"
        address = json.dumps({"url": url, "pid": os.getpid()}) + "\n"
        write_atomically(self._settings.home / "api.json", address)
        structlog.get_logger("stoker.api").info("the API listens", url=url)

    def ends(self) -> None:
        app = self.config.app
        if isinstance(app, FastAPI) and hasattr(app.state, "services"):
            services: Services = app.state.services
            services.tailer.drain()


def run_server(settings: Settings, app: FastAPI) -> None:
    """Serve until SIGTERM or SIGINT; HOME/api.json holds the address meanwhile.

    Raises AddressInUse when host and port cannot be bound.
    """
    _leave_in_order()
    _search_less_for_garbage()
    connections = _connections_for(_all_descriptors())
    quiet("uvicorn.error", "asyncio")
    config = uvicorn.Config(
        app,
        host=settings.host.strip("[]"),
        port=settings.port,
        http=BoundedHttp,
        log_config=None,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=connections,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        # Also how many are taken at a time, before any can be closed for another.
        backlog=min(LISTEN_BACKLOG, connections // 2),
    )
    server = _Server(config, settings)
    try:
        server.run()
    except SystemExit:
        if server.started or server.lifespan.should_exit:
            raise
        raise AddressInUse(
            f"{settings.host}:{settings.port} cannot be bound; the line above says why. "
            "Another program may be using it: choose another STOKER_PORT, or 0 for a free one."
        ) from None
    finally:
        if _is_ours(settings):
            (settings.home / "api.json").unlink()


def _search_less_for_garbage() -> None:
    """Objects of the start stay, and a request makes some thousand that need no search: it took 8 %
    of the time of `POST /runs`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _all_descriptors() -> int:
    """How many files and sockets this process may have open, once it may have all it is allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most if most != resource.RLIM_INFINITY else sys.maxsize


def _connections_for(descriptors: int) -> int:
    """A connection takes a descriptor, and a second one while a file is sent over it."""
    return max(2, min(MOST_CONNECTIONS, (descriptors - OWN_DESCRIPTORS) // 2))


def _leave_in_order() -> None:
    """Have uvicorn's repeat of the signal, once it has shut down, unwind instead of kill."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(0)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, leave)


def _url_host(host: str) -> str:
    """The host that a client on this machine uses for the bound address."""
    if host in ("0.0.0.0", ""):  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _is_ours(settings: Settings) -> bool:
    try:
        document = json.loads((settings.home / "api.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("pid") == os.getpid()
