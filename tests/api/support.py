"""What the tests of the API are written with: a client in front, somebody who plays the worker."""

import hashlib
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from typing import Any, Self

import httpx
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from app.lifecycle import Reason
from app.planning.requirements import SlotOffer
from app.service.services import Services
from app.settings import Settings
from app.store.artifact_root import ArtifactRoot
from app.store.identity import this_process
from app.store.records import (
    Beat,
    Finish,
    Inspection,
    Lease,
    NewCheckpoint,
    NewEvent,
    RunRecord,
)
from app.store.store import Store
from app.store.worker_records import NewWorker
from stoker.manifest import manifest_bytes

SPEC: dict[str, Any] = {
    "recipe": {"kind": "sequence", "hidden_size": 8, "patch": 6},
    "data": {"dataset": "weather"},
    "training": {"epochs": 1},
}
FIELDS = {
    "features": {"shape": [24, 3], "dtype": "float32"},
    "targets": {"shape": [4], "dtype": "float32"},
}
CPU = SlotOffer("cpu-0-0", "cpu", "cpu")


def spec_with(block: str, **changes: Any) -> dict[str, Any]:
    """SPEC with other values in one of its blocks."""
    spec = deepcopy(SPEC)
    spec[block] = {**spec.get(block, {}), **changes}
    return spec


class Answer(httpx.Response):
    """A response that can be checked as a problem."""

    def problem(self, code: str) -> int:
        """The status of the problem document that this must be, with that code."""
        assert self.headers["content-type"] == "application/problem+json", self.text
        document = self.json()
        assert document.keys() >= {"type", "title", "status", "detail", "code"}
        assert document["status"] == self.status_code
        assert document["code"] == code, document
        assert document["detail"]
        assert "Traceback" not in self.text
        return self.status_code


class Api:
    """The application in this process, with its lifespan; calls look like those of httpx."""

    def __init__(self, app: FastAPI, token: str | None) -> None:
        self.app = app
        self.token = token
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        self._portal = self._exit.enter_context(start_blocking_portal())
        self.loop_thread = self._portal.call(threading.current_thread)
        lifespan = self.app.router.lifespan_context(self.app)
        self._exit.enter_context(self._portal.wrap_async_context_manager(lifespan))
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._client.aclose)
        self._exit.close()

    @property
    def services(self) -> Services:
        services: Services = self.app.state.services
        return services

    def start(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, Any] | None = None,
        with_token: bool = True,
        **options: Any,
    ) -> "Future[Answer]":
        """Send a request; the answer comes in its time."""
        sent = dict(headers or {})
        if with_token and self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        return self._portal.start_task_soon(
            partial(self._send, method, path, headers=sent, **options)
        )

    async def _send(self, method: str, path: str, **options: Any) -> Answer:
        response = await self._client.request(method, path, timeout=60, **options)
        response.__class__ = Answer
        assert isinstance(response, Answer)
        return response

    def request(self, method: str, path: str, **options: Any) -> Answer:
        return self.start(method, path, **options).result(60)

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> Answer:
        return self.request("POST", path, **options)

    def patch(self, path: str, **options: Any) -> Answer:
        return self.request("PATCH", path, **options)

    def delete(self, path: str, **options: Any) -> Answer:
        return self.request("DELETE", path, **options)


def whole_checkpoint() -> dict[str, bytes]:
    weights = b"weights" * 1000
    entry = {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    manifest = manifest_bytes({"files": {"model.safetensors": entry}})
    return {"manifest.json": manifest, "model.safetensors": weights}


class Player:
    """Plays the worker: what an agent would write to the store, without an agent."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.artifacts = settings.artifact_root
        ArtifactRoot(store.database, settings.artifact_root).look()
        me = this_process()
        self.worker_id = store.workers.register(
            NewWorker(
                name="player",
                host=me.host,
                boot_id=me.boot_id,
                pid=me.pid,
                start_time=me.start_time,
                version="0",
                slots=[{"name": "cpu-0-0", "device": "cpu", "run_id": None, "waiting": None}],
                devices=[{"kind": "cpu", "name": "cpu"}],
                facts={"cores": 2, "host_memory_bytes": 2**34},
            )
        )
        store.datasets.register("weather", "weather.h5")
        self.inspect("weather")

    def inspect(
        self,
        name: str,
        state: Any = "ready",
        problems: Any = (),
        content: str = "the same",
        fields: Any = FIELDS,
    ) -> None:
        """Say what was found in a dataset."""
        found: dict[str, Any] = {"fields": fields, "samples": 1000, "size_bytes": 300_000}
        found["fingerprint"] = {"size": 300_000, "mtime_ns": time.time_ns(), "sha256": content}
        inspection = Inspection(state, problems=problems, **(found if state == "ready" else {}))
        self.store.datasets.register(name, self.store.datasets.get(name).path)
        while (job := self.store.jobs.claim(self.worker_id)) is not None:
            if job.payload.get("name") == name:
                self.store.jobs.finish(job.id, self.worker_id, inspection=inspection)
                return

    def claim(self) -> Lease:
        lease = self.store.leases.claim(self.worker_id, [CPU])
        assert lease is not None
        return lease

    def progress(self, lease: Lease, **progress: Any) -> None:
        self.store.leases.beat(lease.token, Beat(progress={"phase": "training", **progress}))

    def event(self, lease: Lease, kind: str, **data: Any) -> None:
        event = NewEvent(kind, time.time(), data)
        self.store.leases.beat(lease.token, Beat(events=[event]))

    def log(self, lease: Lease, text: str) -> None:
        self.store.leases.beat(lease.token, Beat(log_text=text))

    def checkpoint(self, lease: Lease, step: int, files: Mapping[str, bytes] | None = None) -> str:
        """Save files as a checkpoint; returns its path."""
        path = f"runs/{lease.run_id}/attempt-{lease.attempt}/checkpoints/step-{step}"
        folder = self.artifacts / path
        folder.mkdir(parents=True)
        files = files or whole_checkpoint()
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        size = sum(len(content) for content in files.values())
        saved = NewCheckpoint(step, 1, path, size, {"val_loss": 1 / step}, time.time())
        self.store.leases.beat(lease.token, Beat(checkpoints=[saved]))
        return path

    def finish(
        self, lease: Lease, reason: Reason = Reason.interrupted, message: str = "It is over."
    ) -> RunRecord:
        return self.store.leases.finish(lease.token, Finish(reason, message, exit_code=0))
