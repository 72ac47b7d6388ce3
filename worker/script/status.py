"""The route to which a trainer posts its status, on loopback, with a token of the attempt.

It is Kubeflow's protocol, which Hugging Face's Trainer speaks by itself where the environment
names a server.
"""

import hmac
import json
import secrets
import threading
from collections import deque
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stoker.manifest import COUNTS
from worker.script.points import CurvePoint, number_of, point_of

MOST_BYTES = 2**16
SECONDS = 5.0
# What was posted and not read yet; older ones go first.
MOST_WAITING = 1000


class StatusServer:
    """Listens on a free port of 127.0.0.1. `take` gives what was posted since the last call."""

    def __init__(self, folder: Path, run_id: int) -> None:
        """The token goes into `folder`, for the script alone to read. OSError."""
        token = secrets.token_urlsafe(24)
        self.token_file = folder / "status_token"
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(token)
        self.ratio: float | None = None
        """How far the trainer says that it is, 0 to 1."""
        self.eta_seconds: float | None = None
        self.epoch: float | None = None
        self.steps: int | None = None
        self._points: deque[CurvePoint] = deque(maxlen=MOST_WAITING)
        route = f"/runs/{run_id}/status"
        handler = _handler(route, token, self._told)
        self._server = _QuietServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}{route}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.5,), name="status", daemon=True
        )
        self._thread.start()

    def take(self) -> list[CurvePoint]:
        """The points that were posted, in their order."""
        taken = []
        while self._points:
            taken.append(self._points.popleft())
        return taken

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _told(self, status: dict[str, Any]) -> None:
        percent = number_of(status.get("progressPercentage"))
        self.ratio = None if percent is None else min(1.0, max(0.0, percent / 100))
        self.eta_seconds = number_of(status.get("estimatedRemainingSeconds"))
        metrics = status.get("metrics")
        named = {
            str(one["name"]): one.get("value")
            for one in (metrics if isinstance(metrics, list) else [])
            if isinstance(one, dict) and "name" in one
        }
        total, epoch = number_of(named.pop("total_steps", None)), named.pop("current_epoch", None)
        if total is not None and 1 <= total <= COUNTS["step"]:
            self.steps = int(total)
        self.epoch = number_of(epoch) if epoch is not None else self.epoch
        if (point := point_of(named)) is not None:
            self._points.append(point)


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who hangs up before the answer is no error of the script's, in whose log it would be."""


def _handler(route: str, token: str, told: Any) -> type[BaseHTTPRequestHandler]:
    class StatusHandler(BaseHTTPRequestHandler):
        timeout = SECONDS

        def do_POST(self) -> None:
            given = self.headers.get("Authorization", "")
            length = number_of(self.headers.get("Content-Length", ""))
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                self._answer(HTTPStatus.UNAUTHORIZED, "the token of this attempt is needed")
            elif self.path != route:
                self._answer(HTTPStatus.NOT_FOUND, f"only {route} is here")
            elif length is None or not 0 <= length <= MOST_BYTES:
                self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MOST_BYTES} bytes")
            else:
                self._take(int(length))

        def _take(self, length: int) -> None:
            try:
                status = json.loads(self.rfile.read(length))["trainerStatus"]
                told(dict(status))
            except (ValueError, KeyError, TypeError, RecursionError):
                self._answer(HTTPStatus.BAD_REQUEST, "the body is no {trainerStatus: {…}}")
            else:
                self._answer(HTTPStatus.OK, None)

        def _answer(self, status: HTTPStatus, detail: str | None) -> None:
            body = b"{}" if detail is None else json.dumps({"detail": detail}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """The script's log is its own."""

    return StatusHandler
