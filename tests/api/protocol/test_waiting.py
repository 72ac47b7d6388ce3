"""A wait ends with its connection: real sockets to a real server, closed while it waits."""

import json
import re
import select as waiting
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import select

from app.lifecycle import Intent
from app.settings import load_settings
from app.store.store import Store, open_store
from app.store.tables import jobs
from tests.api.process import ApiProcess
from tests.api.support import SPEC, Player, spec_with
from tests.worker.eventually import eventually
from worker.telemetry.host import host_now, host_setup

MANY = 40
PATIENCE_SECONDS = 30.0
LATER = spec_with("data", dataset="later")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiProcess]:
    with ApiProcess(tmp_path) as running:
        yield running


@pytest.fixture
def store(server: ApiProcess) -> Iterator[Store]:
    opened = open_store(load_settings(home=server.home))
    yield opened
    opened.close()


@pytest.fixture
def player(server: ApiProcess, store: Store) -> Player:
    player = Player(store, load_settings(home=server.home))
    store.datasets.register("later", "later.h5")
    return player


def has_abandoned(server: ApiProcess, count: int) -> bool:
    """Whether so many requests have ended because their clients had left."""
    text = server.client.get("/metrics").text
    return sum(map(float, re.findall(r'_seconds_count{.*status="499"} (\S+)', text))) == count


def send(server: ApiProcess, method: str, path: str, document: object = None) -> socket.socket:
    """A connection with a request on it that is not answered yet."""
    body = b"" if document is None else json.dumps(document).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {server.token}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return connection


def test_runs_that_nobody_waits_for_any_more_are_not_made(
    server: ApiProcess, store: Store, player: Player
) -> None:
    with ExitStack() as connections:
        for _ in range(MANY):
            connections.enter_context(send(server, "POST", "/runs?wait=300", LATER))
    eventually(partial(has_abandoned, server, MANY), f"{MANY} requests end")
    with send(server, "POST", "/runs?wait=300", LATER) as patient:
        player.inspect("later")
        assert patient.recv(1 << 16).startswith(b"HTTP/1.1 201 ")
    assert sum(store.runs.counts_by_state().values()) == 1
    assert "Traceback" not in server.log


def test_every_wait_ends_with_its_connection(
    server: ApiProcess, store: Store, player: Player
) -> None:
    """What was ordered before the wait stays ordered; what would be made after it is not made."""
    run_id = server.client.post("/runs", json=SPEC).json()["id"]
    player.checkpoint(player.claim(), 1)
    (server.home / "data").mkdir()
    for name in ("new.h5", "weights.pt"):
        (server.home / "data" / name).touch()
    later, weights = {"data": {"dataset": "later"}}, {"path": "weights.pt", "name": "w"}
    waits = {
        "act": ("POST", f"/runs/{run_id}/pause?wait=300", None),
        "restart_run": ("POST", f"/runs/{run_id}/restart?wait=300", {"patch": later}),
        "list_events": ("GET", f"/runs/{run_id}/events?wait=300&after=1000", None),
        "read_logs": ("GET", f"/runs/{run_id}/logs?wait=300", None),
        "get_dataset": ("GET", "/datasets/later?wait=300", None),
        "register_dataset": ("POST", "/datasets?wait=300", {"name": "new", "path": "new.h5"}),
        "get_job": ("GET", "/jobs/2?wait=300", None),
        "export_checkpoint": ("POST", "/checkpoints/1/export?wait=300", {"format": "safetensors"}),
        "import_checkpoint": ("POST", "/checkpoints/import?wait=300", weights),
    }
    assert {*waits, "create_run"} == operations_with(server, "wait"), "of each route that waits"
    for count, (method, path, document) in enumerate(waits.values(), 1):
        with send(server, method, path, document) as connection:
            answered, _, _ = waiting.select([connection], [], [], 0.5)
            assert answered == [], f"{path} waits: {connection.recv(2000)!r}"
        eventually(partial(has_abandoned, server, count), f"{count} requests end")
    player.inspect("later")
    assert sum(store.runs.counts_by_state().values()) == 1, "no child of the restart"
    assert store.runs.get(run_id).intent is Intent.pause
    with store.database.read() as connection:
        ordered = set(connection.scalars(select(jobs.c.kind).where(jobs.c.state != "done")))
    assert ordered == {"inspect_dataset", "export_checkpoint", "import_checkpoint"}
    assert "Traceback" not in server.log


def operations_with(server: ApiProcess, name: str) -> set[str]:
    """Ids of the operations that take the parameter."""
    return {
        operation["operationId"]
        for path in server.client.get("/openapi.json").json()["paths"].values()
        for operation in path.values()
        if name in [parameter["name"] for parameter in operation.get("parameters", ())]
    }


def test_a_probe_that_nobody_waits_for_any_more_is_withdrawn(
    server: ApiProcess, store: Store, player: Player
) -> None:
    (server.home / "artifacts").mkdir(exist_ok=True)
    known = {**host_setup(), **host_now(server.home / "artifacts")}
    known["versions"] = {**known["versions"], "torch": "2.13.0+cpu"}  # as a worker has it
    store.workers.beat(
        player.worker_id,
        "alive",
        slots=[{"name": "cpu-0-0", "device": "cpu", "run_id": None, "waiting": None}],
        devices=[{"kind": "cpu", "name": "cpu"}],
        facts=known,
    )
    with send(server, "POST", "/runs?dry_run=true&probe=true&wait=300", SPEC):
        eventually(lambda: probes_of(store) == [("queued", None)], "a probe is ordered")
    eventually(lambda: probes_of(store)[0][0] != "queued", "it ends")
    assert probes_of(store)[0][1] == "Nobody waits for it any more."


def probes_of(store: Store) -> list[tuple[str, str | None]]:
    """State and error of each probe that was ordered."""
    with store.database.read() as connection:
        wanted = select(jobs.c.state, jobs.c.error).where(jobs.c.kind == "probe_step")
        return [(row.state, row.error) for row in connection.execute(wanted)]
