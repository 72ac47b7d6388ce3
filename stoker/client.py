"""The calls of the HTTP contract, one method each."""

import time
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx

from stoker.address import Address, find_address
from stoker.download import Told, download
from stoker.errors import ClientError, Document, Problem
from stoker.events import Event, lines_of, parse_event_stream
from stoker.manifest import MANIFEST
from stoker.transport import Transport

Which = Literal["latest", "best"]

# The service sends a heartbeat every 15 s; a longer silence means a lost connection.
STREAM_SILENCE_SECONDS = 35.0
PATIENCE_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
LARGEST_PAGE = 500


class Client:
    """The calls of the HTTP contract. Answers are the JSON documents of the service."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Path | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        address = Address(url, token) if url is not None else find_address(home)
        self.url = address.url
        self._transport = Transport(address, timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    # -- runs ---------------------------------------------------------------------------------

    def submit(
        self,
        request: Mapping[str, Any],
        *,
        wait_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        """Create a run; `wait_seconds` waits for a dataset that is still being inspected."""
        return self._transport.json(
            "POST",
            "/runs",
            body=request,
            wait_seconds=wait_seconds,
            headers={"Idempotency-Key": idempotency_key},
        )

    def plan(self, request: Mapping[str, Any], *, probe_seconds: float | None = None) -> Document:
        """What a submission would become: spec, provenance, issues, estimate; creates nothing.

        `probe_seconds` has a worker measure one real step, and waits for it at most so long.
        """
        params = {"dry_run": "true", "probe": None if probe_seconds is None else "true"}
        return self._transport.json(
            "POST", "/runs", body=request, params=params, wait_seconds=probe_seconds
        )

    def runs(self, *, limit: int = 50, after: str | None = None, **filters: Any) -> Document:
        """So many runs, newest first, as one page, also where the service gives them in several;
        filters: state, status, recipe, label, q, parent_id.
        """
        rows: list[Document] = []
        while True:
            page = self._transport.json(
                "GET", "/runs", params={"limit": limit - len(rows), "after": after, **filters}
            )
            rows += page["data"]
            after = page["next_cursor"]
            if after is None or len(rows) >= limit:
                return {"data": rows, "next_cursor": after}

    def run(self, run_id: int) -> Document:
        return self._transport.json("GET", f"/runs/{run_id}")

    def update(
        self, run_id: int, changes: Mapping[str, Any], *, version: int | None = None
    ) -> Document:
        """Change name, notes, labels or priority."""
        return self._transport.json(
            "PATCH", f"/runs/{run_id}", body=changes, headers=_if_match(version)
        )

    def delete(self, run_id: int, *, version: int | None = None) -> None:
        self._transport.send("DELETE", f"/runs/{run_id}", headers=_if_match(version))

    def act(
        self,
        run_id: int,
        action: Literal["stop", "kill", "pause", "resume"],
        *,
        wait_seconds: float | None = None,
        version: int | None = None,
    ) -> Document:
        """Ask for an action; `wait_seconds` answers when it is done, or when they are over."""
        return self._transport.json(
            "POST",
            f"/runs/{run_id}/{action}",
            wait_seconds=wait_seconds,
            headers=_if_match(version),
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
        return self._transport.json(
            "POST",
            f"/runs/{run_id}/restart",
            body=_restart_body(from_, patch, patch_ops, force=force),
            headers={"Idempotency-Key": idempotency_key},
        )

    def plan_restart(
        self,
        run_id: int,
        *,
        from_: Which | Literal["scratch"] | int | None = None,
        patch: Mapping[str, Any] | None = None,
        patch_ops: Sequence[Mapping[str, Any]] | None = None,
    ) -> Document:
        """What a restart would become, as `plan`, with its `carry`; the run trains on."""
        return self._transport.json(
            "POST",
            f"/runs/{run_id}/restart",
            body=_restart_body(from_, patch, patch_ops),
            params={"dry_run": "true"},
        )

    def bulk(self, action: str, selection: Mapping[str, Any]) -> Document:
        """One action on many runs: `{"ids": [...]}`, `{"filter": {...}}` or `{"all": True}`.

        A result per id; `has_more` when more matched than were handled at once.
        """
        return self._transport.json("POST", f"/runs/bulk/{action}", body=selection)

    def spec(self, run_id: int) -> Document:
        """`{request, spec, provenance, applied}` of a run."""
        return self._transport.json("GET", f"/runs/{run_id}/spec")

    def issues(self, run_id: int) -> list[Document]:
        """What the guard found in a run that it let pass: warnings and accepted risks."""
        events = self._all(f"/runs/{run_id}/events")
        return [event["data"] for event in events if event["kind"] == "issue"]

    def attempts(self, run_id: int) -> list[Document]:
        return self._all(f"/runs/{run_id}/attempts")

    def metrics(
        self, run_id: int, *, names: Sequence[str] = (), max_points: int | None = None
    ) -> dict[str, list[tuple[int, float, float]]]:
        """`{name: [(step, unix seconds, value), …]}`, downsampled to `max_points` a series."""
        params = {"names": ",".join(names) or None, "max_points": max_points}
        series: dict[str, list[tuple[int, float, float]]]
        series = self._transport.json("GET", f"/runs/{run_id}/metrics", params=params)["series"]
        return series

    def metrics_csv(self, run_id: int, *, names: Sequence[str] = ()) -> str:
        params = {"names": ",".join(names) or None, "format": "csv"}
        return self._transport.send("GET", f"/runs/{run_id}/metrics", params=params).text

    def logs(
        self,
        run_id: int,
        *,
        attempt: int | None = None,
        after: int = 0,
        wait_seconds: float | None = None,
    ) -> Document:
        """Log text after an offset; `wait_seconds` waits for more when there is none yet."""
        return self._transport.json(
            "GET",
            f"/runs/{run_id}/logs",
            params={"attempt": attempt, "after": after},
            wait_seconds=wait_seconds,
        )

    def events(
        self, run_id: int, *, after: int | None = None, patience_seconds: float | None = None
    ) -> Iterator[Event]:
        """Stream events until the run is over; a lost connection resumes after the last event.

        An event of the kind `connection_lost`, which no service sends, tells of that as it begins.
        Raises ServiceUnreachable when no connection could be made for `patience_seconds`, 60 unless
        told.
        """
        last, pause = after, FIRST_PAUSE_SECONDS
        patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
        failing_since: float | None = None
        why: ClientError | None = None
        while True:
            try:
                for event in self._stream_events(run_id, last):
                    failing_since, why, pause = None, None, FIRST_PAUSE_SECONDS
                    if event is None:
                        continue
                    last = last if event.seq is None else event.seq
                    yield event
                    if event.kind == "end":
                        return
            except httpx.TransportError as error:
                why = self._transport.unreachable(error)
            except Problem as problem:
                if problem.status != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                why = problem  # it starts or ends
            now = time.monotonic()
            if failing_since is None:
                failing_since = now
                yield Event(None, "connection_lost", {"message": why.detail if why else None})
            elif why is not None and now - failing_since > patience:
                raise why
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _stream_events(self, run_id: int, last: int | None) -> Iterator[Event | None]:
        """The events of one connection, after a None for that it was made."""
        headers = {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = str(last)
        path = f"/runs/{run_id}/events"
        with self._transport.stream(path, headers, STREAM_SILENCE_SECONDS) as response:
            yield None
            yield from parse_event_stream(lines_of(response.iter_text()))

    # -- checkpoints --------------------------------------------------------------------------

    def checkpoints(self, run_id: int) -> list[Document]:
        return self._all(f"/runs/{run_id}/checkpoints")

    def download(
        self, run_id: int, which: Which | int, folder: Path, told: Told = lambda _here, _whole: None
    ) -> Path:
        """Bring a checkpoint's files to `folder`: the run's latest or best, or one by its id.

        The folder must not be there, or be empty. The files are checked against the checkpoint's
        manifest. A download that broke off goes on where it was when the same checkpoint is asked
        for again: by its id, as the latest of a run that trains is soon another. `told` is given
        the bytes that are here, and all of them.
        """
        chosen = which if isinstance(which, int) else self._chosen(run_id, which)
        download(self._transport, run_id, chosen, folder, told)
        return folder

    def _chosen(self, run_id: int, which: Which) -> int:
        path = f"/runs/{run_id}/checkpoints/{which}/download"
        while True:
            for row in self.checkpoints(run_id):
                if row[f"is_{which}"]:
                    return int(row["id"])
            # The service says why there is none, or one was saved meanwhile.
            self._transport.send("GET", path, params={"file": MANIFEST})

    # -- datasets and the machine -------------------------------------------------------------

    def register_dataset(
        self, name: str, path: str, *, wait_seconds: float | None = None
    ) -> Document:
        """Have a file under DATA_ROOT inspected; `wait_seconds` waits for the outcome."""
        return self._transport.json(
            "POST",
            "/datasets",
            body={"name": name, "path": path},
            wait_seconds=wait_seconds,
        )

    def datasets(self) -> list[Document]:
        return self._all("/datasets")

    def dataset(self, name: str) -> Document:
        return self._transport.json("GET", f"/datasets/{quote(name, safe='')}")

    def forget_dataset(self, name: str) -> None:
        """Delete the entry, never the file; Problem (409) while a run's record names it."""
        self._transport.send("DELETE", f"/datasets/{quote(name, safe='')}")

    def presets(self) -> list[Document]:
        data: list[Document] = self.preset_page()["data"]
        return data

    def preset_page(self) -> Document:
        """`{data, broken}`: presets, and the files of presets that cannot be used."""
        return self._transport.json("GET", "/presets")

    def rules(self) -> Document:
        """`{data, before_rules, by_construction, to_come}`: what the guard looks for."""
        return self._transport.json("GET", "/rules")

    def workers(self, *, include_ended: bool = False) -> list[Document]:
        """Those that live, newest first; `include_ended`: also those that ended or were lost."""
        return self._all("/workers", all="true" if include_ended else None)

    def queue(self) -> list[Document]:
        """All runs that wait, in the order in which they will be claimed."""
        return self._all("/queue")

    def version(self) -> Document:
        return self._transport.json("GET", "/version")

    def ready(self) -> bool:
        """Whether database, migrations, workers and artifacts are all well; False also without an
        answer.
        """
        return self._answers("/readyz")

    def lacks_only_artifacts(self) -> bool:
        """Whether all is well but for the artifact root, which no worker finds at the moment."""
        try:
            self._transport.send("GET", "/readyz")
        except Problem as problem:
            checks = problem.document.get("checks") or {}
            return [name for name, said in checks.items() if said != "ok"] == ["artifacts"]
        except ClientError:
            return False
        return False

    def alive(self) -> bool:
        """Whether an API answers at all, however it is."""
        return self._answers("/healthz")

    def _answers(self, path: str) -> bool:
        try:
            self._transport.send("GET", path)
        except ClientError:
            return False
        return True

    def _all(self, path: str, **params: str | None) -> list[Document]:
        """The whole list, page by page."""
        rows: list[Document] = []
        cursor: str | None = None
        while True:
            page = self._transport.json(
                "GET", path, params={"limit": LARGEST_PAGE, "after": cursor, **params}
            )
            rows += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                return rows


def _restart_body(
    from_: Which | Literal["scratch"] | int | None,
    patch: Mapping[str, Any] | None,
    patch_ops: Sequence[Mapping[str, Any]] | None,
    *,
    force: bool = False,
) -> Document:
    body = {"from": from_, "patch": patch, "patch_ops": patch_ops, "force": force or None}
    return {name: value for name, value in body.items() if value is not None}


def _if_match(version: int | None) -> dict[str, str | None]:
    return {"If-Match": None if version is None else f'"{version}"'}
