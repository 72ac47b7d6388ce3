"""The machine and the service: gpus, workers."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.connect import connect
from app.cli.output import JsonOption, ago, print_json, print_lines, print_table, size
from stoker import ClientError

if TYPE_CHECKING:
    from stoker import Client

Document = dict[str, Any]

PRESENT = ("alive", "draining")


def gpus(as_json: JsonOption = False) -> None:
    """List the GPUs that workers see, and who uses them."""
    with connect() as client:
        workers = list(client.every(client.workers))
    devices = [
        {"worker": worker["name"], **device}
        for worker in workers
        if worker["state"] in PRESENT
        for device in worker["devices"]
        if device.get("kind") != "cpu"
    ]
    if as_json:
        print_json({"data": devices})
        return
    print_table(
        ["worker", "gpu", "name", "busy", "memory used", "memory", "programs"],
        [_device_row(device) for device in devices],
        "No worker sees a GPU; runs train on the CPU. `stoker doctor` says what it found.",
    )


def _device_row(device: Document) -> tuple[object, ...]:
    return (
        device["worker"],
        device.get("index"),
        device.get("name"),
        _percent(device.get("utilization")),
        size(device.get("used_memory_bytes")),
        size(device.get("total_memory_bytes")),
        len(device.get("processes") or ()) or None,
    )


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:.0%}"


def workers(
    include_ended: Annotated[
        bool, typer.Option("--all", help="Also those that have ended or were lost.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List workers and what their slots do."""
    with connect() as client:
        rows = list(client.every(client.workers, include_ended=include_ended))
    if as_json:
        print_json({"data": rows})
        return
    print_table(
        ["worker", "host", "state", "slot", "does", "seen"],
        [
            (
                worker["name"],
                worker["host"],
                _worker_is(worker),
                slot["name"],
                _slot_does(slot),
                ago(worker["seen_at"]),
            )
            for worker in rows
            for slot in worker["slots"] or [{"name": "–"}]
        ],
        "No worker is alive. `stoker up` or `stoker worker` starts one.",
    )
    print_lines(without_metrics(rows), err=True)


def ask_without_metrics(client: "Client") -> list[str]:
    """As `without_metrics`; a service that does not answer is told of elsewhere."""
    with suppress(ClientError):
        return without_metrics(list(client.every(client.workers)))
    return []


def without_metrics(workers: list[Document]) -> list[str]:
    """Of those that live and export no metrics: why, and what to do."""
    return [
        f"Worker {worker['name']} exports no metrics: {why}"
        for worker in workers
        if worker["state"] in PRESENT and (why := worker["facts"].get("why_no_metrics"))
    ]


def _worker_is(worker: Document) -> str:
    """Its state; why its artifacts are away stands with its free slots, and in --json."""
    is_away = worker["state"] in PRESENT and worker["facts"].get("artifacts_away")
    return f"{worker['state']}, artifacts away" if is_away else str(worker["state"])


def _slot_does(slot: Document) -> str:
    if slot.get("run_id"):
        return f"run {slot['run_id']}"
    return f"waits: {slot['waiting']}" if slot.get("waiting") else "free"
