"""What the guard is told of the world, from the store's records: datasets, devices, hosts."""

from dataclasses import replace
from typing import Any

from app.guard.facts import DatasetFacts, DeviceFacts, FieldFacts, HostFacts, Lengths
from app.spec.imports import build_of
from app.store.records import DatasetRecord
from app.store.worker_records import WorkerRecord

Document = dict[str, Any]


def dataset_facts(record: DatasetRecord) -> DatasetFacts:
    """A dataset as the rules see it."""
    layout, fields = record.layout or {}, record.fields or {}
    return DatasetFacts(
        name=record.name,
        state=record.state,
        samples=record.samples,
        fields={name: _field_facts(field) for name, field in fields.items()},
        size_bytes=record.size_bytes,
        window_steps=layout.get("window_steps"),
        network=layout.get("network"),
        read_bytes_per_second=(record.read_probe or {}).get("bytes_per_second"),
        problems=tuple(_sentence(problem) for problem in record.problems),
    )


def _sentence(problem: Any) -> str:
    return str(problem.get("message", problem)) if isinstance(problem, dict) else str(problem)


def _field_facts(field: Document) -> FieldFacts:
    chunks, series_steps = field.get("chunks"), field.get("series_steps")
    facts = FieldFacts(
        shape=tuple(field["shape"]),
        dtype=field["dtype"],
        storage=field.get("storage"),
        chunk_rows=chunks[0] if chunks and series_steps is None else None,
        series_steps=series_steps,
        compression=field.get("compression"),
        nonfinite=field.get("nonfinite_count"),
        mean=field.get("mean"),
        std=field.get("std"),
        sorted=field.get("sorted"),
    )
    lengths = field.get("lengths")
    return facts if lengths is None else _in_samples(facts, lengths)


def _in_samples(facts: FieldFacts, lengths: Document) -> FieldFacts:
    """A ragged array, whose inspection told of its values, by its samples."""
    longest = max(1, lengths["max"])
    rows = facts.chunk_rows and max(1, round(facts.chunk_rows / max(1.0, lengths["mean"])))
    return replace(
        facts,
        shape=(longest, *facts.shape),
        lengths=Lengths(lengths["min"], lengths["mean"], longest),
        chunk_rows=rows,
    )


def worker_devices(worker: WorkerRecord) -> list[DeviceFacts]:
    """The GPUs of a worker, or its CPU where it has none, as a queued run will find them.

    A slot takes one run after the other: while every slot of a device has one, the next begins with
    what that run gives back. At claim the guard looks at what is free then.
    """
    return [_once_free(device, worker) for device in worker.devices]


def _once_free(device: Document, worker: WorkerRecord) -> DeviceFacts:
    name = f"cuda:{device.get('index')}" if device.get("kind") == "cuda" else "cpu"
    slots = [slot for slot in worker.slots if slot["device"] == name]
    host = host_facts(worker.facts, len(worker.slots))
    if not slots or any(slot["run_id"] is None for slot in slots):
        return device_facts(device, host)
    # Of several runs any may end first; what an earlier version's slots hold is not known.
    held = min(slot.get("host_memory_bytes") or 0 for slot in slots)
    available = _with_more(host.available_bytes, held, host.memory_bytes)
    found = device_facts(device, replace(host, available_bytes=available))
    free = _with_more(found.free_memory_bytes, _held_on_gpu(device), found.total_memory_bytes)
    return replace(found, free_memory_bytes=free)


def _held_on_gpu(device: Document) -> int:
    """By those who compute there: no run is claimed before they are gone, whoever they are.

    Where the driver does not tell what each of them holds, all that is in use.
    """
    held = [process["memory_bytes"] for process in device.get("processes", ())]
    if not held or None in held:
        return device.get("used_memory_bytes") or 0
    return sum(held)


def _with_more(free: int | None, given_back: int, total: int | None) -> int | None:
    if free is None:
        return None
    return free + given_back if total is None else min(total, free + given_back)


def host_facts(facts: Document, slots: int) -> HostFacts:
    """The host from what its agent registered."""
    torch = facts.get("versions", {}).get("torch")
    return HostFacts(
        memory_bytes=facts.get("host_memory_bytes"),
        available_bytes=facts.get("available_memory_bytes"),
        cores=facts.get("cores"),
        slots=slots,
        disk_free_bytes=facts.get("disk_free_bytes"),
        missing_tools=facts.get("missing_tools"),
        torch_build=build_of(torch) if torch else None,
    )


def device_facts(device: Document, host: HostFacts) -> DeviceFacts:
    """A device from what its agent registered."""
    capability = device.get("capability")
    return DeviceFacts(
        kind=device.get("kind", "cpu"),
        name=str(device.get("name", "")),
        total_memory_bytes=device.get("total_memory_bytes"),
        free_memory_bytes=device.get("free_memory_bytes"),
        capability=None if capability is None else (capability[0], capability[1]),
        host=host,
    )
