"""The service's ports: whether one can be had, and who has it."""

import errno
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from app.cli.failures import CommandFailed, ExitCode

if TYPE_CHECKING:
    from app.settings import Settings

IN_USE = "it is in use"
# Of a command line, which may hold a whole program.
SHOWN_CHARACTERS = 80
OF_OURS = ["-m", "app.cli", "api"]


def require_port(settings: "Settings") -> None:
    """CommandFailed where the API's address cannot be had, before anything is started."""
    host, port = settings.host, settings.port
    why = why_not_bindable(host, port)
    if why is None:
        return
    what_to_do = (
        "`stoker up --port 0` takes a free one, and `--port N` another (for good: STOKER_PORT)."
    )
    if not why.startswith(IN_USE):
        what_to_do = "Choose another --host or --port (for good: STOKER_HOST, STOKER_PORT)."
    raise CommandFailed(
        f"{host}:{port} cannot be bound: {why}. Nothing was started. {what_to_do}",
        ExitCode.failed,
        code="address_in_use" if why.startswith(IN_USE) else "address_not_bindable",
    )


def why_not_bindable(host: str, port: int) -> str | None:
    """Why an address cannot be listened at, and where it is in use, by whom; None where it can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"{IN_USE} by {_listener(port) or 'a program that the system does not name'}"
        return error.strerror or str(error)
    return None


def _listener(port: int) -> str | None:
    """Who listens at a port; None where it is another user's, which only root is told."""
    with suppress(psutil.Error, OSError):
        for found in psutil.net_connections("tcp"):
            address = found.laddr
            if found.status != psutil.CONN_LISTEN or not address or address.port != port:
                continue
            if found.pid is not None:
                command = psutil.Process(found.pid).cmdline()
                what = "the API of another Stoker"
                if command[-len(OF_OURS) :] != OF_OURS:
                    what = " ".join(command)[:SHOWN_CHARACTERS]
                return f"process {found.pid} ({what})"
    return None
