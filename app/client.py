"""HTTP client of the service, for the CLI, the tests and notebooks: one method a call.

    with StokerClient() as stoker:
        run = stoker.submit({"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}})
        for event in stoker.events(run["id"]):
            print(event.kind, event.data)

ClientError
├── ServiceUnreachable    no answer came
└── Problem               the service answered with problem+json
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx

from app.settings import Settings, load_settings

Document = dict[str, Any]
Which = Literal["latest", "best"]

# The service sends a heartbeat more often than this; a longer silence means a lost connection.
STREAM_SILENCE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 5.0


class ClientError(Exception):
    """A call that did not succeed; the text is a sentence for a person."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class ServiceUnreachable(ClientError):
    """No answer: the service is not running, or not at this address."""


class Problem(ClientError):
    """The service refused: `status`, `code`, `detail`, `issues`, `allowed_actions`."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(str(document.get("detail") or document.get("title") or f"HTTP {status}"))
        self.status = status
        self.code = str(document.get("code", "http_error"))
        self.title = str(document.get("title", ""))
        self.issues: list[Document] = list(document.get("issues", []))
        self.allowed_actions: list[str] = list(document.get("allowed_actions", []))
        self.document = dict(document)


@dataclass(frozen=True)
class Event:
    """One message of a run's event stream; `seq` is None where it is not a stored event."""

    seq: int | None
    kind: str
    data: Document


@dataclass(frozen=True)
class Address:
    """Where the service answers, and the token that opens it (None: it asks for none)."""

    url: str
    token: str | None


def find_address(settings: Settings) -> Address:
    """The address from STOKER_URL and STOKER_TOKEN, else from the files a local API left in HOME.

    Raises ServiceUnreachable when neither is there.
    """
    url = os.environ.get("STOKER_URL") or _local_url(settings)
    token = os.environ.get("STOKER_TOKEN")
    if token is None and settings.auth == "token" and settings.token_path.exists():
        token = _read_token(settings.token_path)
    return Address(url.rstrip("/"), token)


def _local_url(settings: Settings) -> str:
    written = read_api_file(settings)
    if written is None:
        raise ServiceUnreachable(
            f"No API is running for {settings.home}. Start one with `stoker up`, or set "
            "STOKER_HOME (another home on this machine) or STOKER_URL and STOKER_TOKEN."
        )
    return str(written["url"])


def read_api_file(settings: Settings) -> Document | None:
    """`{url, pid}`, which a local API keeps in HOME while it runs; None when it is not there."""
    path = settings.home / "api.json"
    try:
        written: Document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    except ValueError:
        raise _unreadable(path, "it is not JSON; `stoker up` writes it anew") from None
    return written


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise _unreadable(path, error.strerror) from None


def _unreadable(path: Path, why: str | None) -> ServiceUnreachable:
    return ServiceUnreachable(f"{path} cannot be read: {why}.")


class StokerClient:
    """The calls of the HTTP contract. Answers are the JSON documents of the service."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        settings: Settings | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        address = (
            Address(url, token) if url is not None else find_address(settings or load_settings())
        )
        self.url = address.url
        headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
        # A proxy from the environment is for the outside world, not for the box's own service.
        self._http = httpx.Client(
            base_url=address.url, headers=headers, timeout=timeout_seconds, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # -- runs ---------------------------------------------------------------------------------

    def submit(
        self,
        request: Mapping[str, Any],
        *,
        wait_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """Create a run; `wait_seconds` waits for a dataset that is still being inspected."""
        return self._json(
            "POST",
            "/runs",
            body=request,
            params={"wait": wait_seconds},
            headers={"Idempotency-Key": idempotency_key},
        )

    def plan(self, request: Mapping[str, Any]) -> Document:
        """What a submission would become: spec, provenance, issues, estimate; creates nothing."""
        return self._json("POST", "/runs", body=request, params={"dry_run": "true"})

    def runs(self, *, limit: int = 50, after: str | None = None, **filters: Any) -> Document:
        """One page of runs, newest first; filters: state, status, recipe, label, q, parent_id."""
        return self._json("GET", "/runs", params={"limit": limit, "after": after, **filters})

    def run(self, run_id: int) -> Document:
        return self._json("GET", f"/runs/{run_id}")

    def update(
        self, run_id: int, changes: Mapping[str, Any], *, version: int | None = None
    ) -> Document:
        """Change name, notes, labels or priority."""
        return self._json("PATCH", f"/runs/{run_id}", body=changes, headers=_if_match(version))

    def delete(self, run_id: int, *, version: int | None = None) -> None:
        self._send("DELETE", f"/runs/{run_id}", headers=_if_match(version))

    def act(
        self,
        run_id: int,
        action: Literal["stop", "kill", "pause", "resume"],
        *,
        wait_seconds: float | None = None,
        version: int | None = None,
    ) -> Document:
        """Ask for an action; `wait_seconds` answers when it is done, or when they are over."""
        return self._json(
            "POST",
            f"/runs/{run_id}/{action}",
            params={"wait": wait_seconds},
            headers=_if_match(version),
            patience_seconds=wait_seconds,
        )

    def restart(
        self,
        run_id: int,
        *,
        from_: Which | Literal["scratch"] | int | None = None,
        patch: Mapping[str, Any] | None = None,
        patch_ops: Sequence[Mapping[str, Any]] | None = None,
        force: bool = False,
        idempotency_key: str | None = None,
    ) -> Document:
        """A new run that goes on from this one; its `carry` says what starts anew."""
        body = {"from": from_, "patch": patch, "patch_ops": patch_ops, "force": force or None}
        return self._json(
            "POST",
            f"/runs/{run_id}/restart",
            body={name: value for name, value in body.items() if value is not None},
            headers={"Idempotency-Key": idempotency_key},
        )

    def bulk(self, action: str, selection: Mapping[str, Any]) -> Document:
        """One action on many runs: `{"ids": [...]}` or `{"filter": {...}}`; a result per id."""
        return self._json("POST", f"/runs/bulk/{action}", body=selection)

    def spec(self, run_id: int) -> Document:
        """`{request, spec, provenance, applied}` of a run."""
        return self._json("GET", f"/runs/{run_id}/spec")

    def attempts(self, run_id: int) -> list[Document]:
        return self._list(f"/runs/{run_id}/attempts")

    def metrics(
        self, run_id: int, *, names: Sequence[str] = (), max_points: int | None = None
    ) -> dict[str, list[tuple[int, float, float]]]:
        """`{name: [(step, unix seconds, value), …]}`, downsampled to `max_points` a series."""
        params = {"names": ",".join(names) or None, "max_points": max_points}
        series: dict[str, list[tuple[int, float, float]]]
        series = self._json("GET", f"/runs/{run_id}/metrics", params=params)["series"]
        return series

    def metrics_csv(self, run_id: int, *, names: Sequence[str] = ()) -> str:
        params = {"names": ",".join(names) or None, "format": "csv"}
        return self._send("GET", f"/runs/{run_id}/metrics", params=params).text

    def logs(
        self,
        run_id: int,
        *,
        attempt: int | None = None,
        after: int = 0,
        wait_seconds: float | None = None,
    ) -> Document:
        """Log text after an offset; `wait_seconds` waits for more when there is none yet."""
        return self._json(
            "GET",
            f"/runs/{run_id}/logs",
            params={"attempt": attempt, "after": after, "wait": wait_seconds},
            patience_seconds=wait_seconds,
        )

    def events(
        self, run_id: int, *, after: int | None = None, patience_seconds: float = 60.0
    ) -> Iterator[Event]:
        """Stream events until the run is over; a lost connection resumes after the last event.

        Raises ServiceUnreachable when no connection could be made for `patience_seconds`.
        """
        last, failing_since = after, None
        pause = 0.2
        while True:
            try:
                for event in self._stream_events(run_id, last):
                    last = last if event.seq is None else event.seq
                    failing_since, pause = None, 0.2
                    yield event
                    if event.kind == "end":
                        return
            except httpx.TransportError as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > patience_seconds:
                    raise self._unreachable(error) from None
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _stream_events(self, run_id: int, last: int | None) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        timeout = httpx.Timeout(10.0, read=STREAM_SILENCE_SECONDS)
        with self._http.stream(
            "GET", f"/runs/{run_id}/events", headers=headers, timeout=timeout
        ) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise _problem_of(response)
            yield from parse_event_stream(response.iter_lines())

    # -- checkpoints --------------------------------------------------------------------------

    def checkpoints(self, run_id: int) -> list[Document]:
        return self._list(f"/runs/{run_id}/checkpoints")

    def download(self, run_id: int, which: Which | int, target: Path) -> Path:
        """Write a checkpoint's zip to `target`: the run's latest or best, or one by its id."""
        path = (
            f"/checkpoints/{which}/download"
            if isinstance(which, int)
            else f"/runs/{run_id}/checkpoints/{which}/download"
        )
        try:
            with self._http.stream("GET", path) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise _problem_of(response)
                with target.open("wb") as file:
                    for piece in response.iter_bytes(1 << 20):
                        file.write(piece)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        return target

    # -- datasets and the machine -------------------------------------------------------------

    def register_dataset(
        self, name: str, path: str, *, wait_seconds: float | None = None
    ) -> Document:
        """Have a file under DATA_ROOT inspected; `wait_seconds` waits for the outcome."""
        return self._json(
            "POST",
            "/datasets",
            body={"name": name, "path": path},
            params={"wait": wait_seconds},
            patience_seconds=wait_seconds,
        )

    def datasets(self) -> list[Document]:
        return self._list("/datasets")

    def dataset(self, name: str) -> Document:
        return self._json("GET", f"/datasets/{quote(name, safe='')}")

    def presets(self) -> list[Document]:
        return self._list("/presets")

    def workers(self) -> list[Document]:
        return self._list("/workers")

    def queue(self) -> list[Document]:
        return self._list("/queue")

    def version(self) -> Document:
        return self._json("GET", "/version")

    def ready(self) -> bool:
        """Whether database, migrations and workers are all well; False also without an answer."""
        try:
            return self._http.get("/readyz", timeout=5.0).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    # -- how a call is made -------------------------------------------------------------------

    def _list(self, path: str) -> list[Document]:
        data: list[Document] = self._json("GET", path)["data"]
        return data

    def _json(self, method: str, path: str, **options: Any) -> Document:
        document: Document = self._send(method, path, **options).json()
        return document

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        patience_seconds: float | None = None,
    ) -> httpx.Response:
        content = None if body is None else encode(body)
        sent = {name: value for name, value in (headers or {}).items() if value is not None}
        if content is not None:
            sent["Content-Type"] = "application/json"
        try:
            response = self._http.request(
                method,
                path,
                content=content,
                params={k: v for k, v in (params or {}).items() if v is not None},
                headers=sent,
                timeout=None if patience_seconds is None else patience_seconds + 30.0,
            )
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        if not response.is_success:
            raise _problem_of(response)
        return response

    def _unreachable(self, error: httpx.TransportError) -> ServiceUnreachable:
        return ServiceUnreachable(
            f"The service at {self.url} does not answer ({error or type(error).__name__}). "
            "Is it running? `stoker up` starts it, `stoker doctor` says what is wrong."
        )


def encode(document: Mapping[str, Any]) -> bytes:
    """A document as JSON; raises ClientError for what JSON cannot say (NaN, infinity)."""
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError) as error:
        raise ClientError(f"This cannot be sent as JSON: {error}.") from None


def parse_event_stream(lines: Iterable[str]) -> Iterator[Event]:
    """Events of a text/event-stream (HTML standard, §9.2); comments are heartbeats."""
    fields: dict[str, list[str]] = {}
    for line in lines:
        if line == "":
            if "data" in fields:
                yield _event_of(fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))


def _event_of(fields: Mapping[str, list[str]]) -> Event:
    identity = fields.get("id", [""])[-1]
    return Event(
        seq=int(identity) if identity.isdecimal() else None,
        kind=fields.get("event", ["message"])[-1],
        data=json.loads("\n".join(fields["data"])),
    )


def _if_match(version: int | None) -> dict[str, str | None]:
    return {"If-Match": None if version is None else f'"{version}"'}


def _problem_of(response: httpx.Response) -> Problem:
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {
            "detail": f"{response.url} answered {response.status_code} with something that is "
            "not Stoker's; is another program using this port?"
        }
    return Problem(response.status_code, document)
