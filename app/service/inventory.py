"""What the guard is told of the world, from the store's records: datasets, devices, hosts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from app.guard.facts import (
    ClassFacts,
    DatasetFacts,
    DeviceFacts,
    EdgeFacts,
    FieldFacts,
    HostFacts,
    LengthFacts,
    PartFacts,
)
from app.planning.arithmetic import PartSizes
from app.planning.imports import build_of
from app.planning.requirements import cores_shared_by
from app.planning.shuffle import Neighbours
from app.spec.recipe import Roles
from app.spec.suffixes import ARROW
from app.store.records import DatasetRecord
from app.store.worker_records import WorkerRecord

Document = dict[str, Any]
# An inspection says this of every array that is not ragged; those of earlier versions did not.
LATER_FACTS = ("neighbours", "classes")


def dataset_facts(record: DatasetRecord) -> DatasetFacts:
    """A dataset as the rules see it."""
    layout, fields = record.layout or {}, record.fields or {}
    return DatasetFacts(
        name=record.name,
        state=record.state,
        samples=record.samples,
        fields={name: field_facts(field) for name, field in fields.items()},
        size_bytes=record.size_bytes,
        window_steps=layout.get("window_steps"),
        breaks=layout.get("breaks") or {},
        groups=layout.get("groups") or {},
        group_changes=layout.get("group_changes") or {},
        network=layout.get("network"),
        roles=_roles(layout.get("roles")),
        read_bytes_per_second=(record.read_probe or {}).get("bytes_per_second"),
        problems=tuple(_sentence(problem) for problem in record.problems),
        path=record.path,
    )


def _roles(told: Document | None) -> Roles | None:
    return None if told is None else Roles(tuple(told["inputs"]), tuple(told["targets"]))


def changed_since(record: DatasetRecord, data_root: Path) -> tuple[str, ...]:
    """What of a dataset's file is other than its inspection saw it; the empty tuple also where this
    host has no such file, or it lies on a network, whose server may be away.
    """
    seen, path = record.fingerprint or {}, data_root / record.path
    if (record.layout or {}).get("network") is not False or "mtime_ns" not in seen:
        return ()
    try:
        files = _files_of(path)
        stats = [each.stat() for each in files]
    except OSError:
        return ()
    if not stats:
        return ()
    now = {"size": sum(one.st_size for one in stats)}
    now |= {"mtime_ns": max(one.st_mtime_ns for one in stats), "files": len(stats)}
    words = {"size": "size", "mtime_ns": "modification time", "files": "number of files"}
    return tuple(word for key, word in words.items() if seen.get(key, now[key]) != now[key])


def _files_of(path: Path) -> list[Path]:
    """The file, or the Arrow files of a folder, as the trainer lists them."""
    if not path.is_dir():
        return [path]
    arrow = (each for each in path.iterdir() if each.suffix.lower() in ARROW)
    return [each for each in arrow if not each.name.startswith(".")]


def _sentence(problem: Any) -> str:
    return str(problem.get("message", problem)) if isinstance(problem, dict) else str(problem)


def field_facts(field: Document) -> FieldFacts:
    """Of an array, as an inspection described it."""
    chunks, series_steps = field.get("chunks"), field.get("series_steps")
    facts = FieldFacts(
        shape=tuple(field["shape"]),
        dtype=field["dtype"],
        storage=field.get("storage"),
        chunk_rows=chunks[0] if chunks and series_steps is None else None,
        series_steps=series_steps,
        horizons=tuple(field["horizons"]) if field.get("horizons") else None,
        target_feature=field.get("target_feature"),
        compression=field.get("compression"),
        nonfinite=field.get("nonfinite_count"),
        mean=field.get("mean"),
        std=field.get("std"),
        sorted=field.get("sorted"),
        parts=_field_parts(field.get("parts")),
        not_a_part=_stray(field.get("not_a_part")),
        named_classes=len(field.get("class_names") or ()) or None,
        neighbours=_neighbours(field.get("neighbours")),
        classes=_classes(field.get("classes")),
    )
    lengths, edges = field.get("lengths"), field.get("edges")
    if lengths is None:
        return replace(facts, not_inspected=tuple(one for one in LATER_FACTS if one not in field))
    return _in_samples(facts, lengths) if edges is None else _graphs(facts, lengths, edges)


def _field_parts(told: Document | None) -> PartFacts | None:
    if told is None:
        return None
    sizes = PartSizes(told["training"], told["validation"], told["test"])
    return PartFacts(sizes, told["changes"])


def _neighbours(told: Document | None) -> Neighbours | None:
    return None if told is None else Neighbours(tuple(told["distances"]), tuple(told["shares"]))


def _classes(told: list[Document] | None) -> tuple[ClassFacts, ...] | None:
    if told is None:
        return None
    return tuple(
        ClassFacts(one["label"], one["samples"], tuple(map(tuple, one["absent"]))) for one in told
    )


def _stray(told: Document | None) -> tuple[int, int] | None:
    return None if told is None else (told["sample"], told["value"])


def _in_samples(facts: FieldFacts, lengths: Document) -> FieldFacts:
    """A ragged array, whose inspection told of its values, by its samples."""
    longest = max(1, lengths["max"])
    rows = facts.chunk_rows and max(1, round(facts.chunk_rows / max(1.0, lengths["mean"])))
    return replace(
        facts,
        shape=(longest, *facts.shape),
        lengths=LengthFacts(lengths["min"], lengths["mean"], longest, lengths.get("std")),
        chunk_rows=rows,
    )


def _graphs(facts: FieldFacts, nodes: Document, edges: Document) -> FieldFacts:
    """Packed graphs, whose inspection told of their nodes and edges."""
    shape, longest = edges["shape"], max(1, edges["max"])
    values = None if shape is None else tuple(shape)
    return replace(
        facts,
        lengths=LengthFacts(nodes["min"], nodes["mean"], max(1, nodes["max"]), nodes.get("std")),
        edges=EdgeFacts(
            edges["mean"], longest, edges["dtype"], values, edges["values_dtype"], edges.get("std")
        ),
        chunk_rows=None,
    )


def worker_devices(worker: WorkerRecord) -> list[DeviceFacts]:
    """The GPUs of a worker, or its CPU where it has none, with all that they have in total.

    A run is refused for what no device can do; what does not fit at this moment waits until it
    does. At claim the guard looks at what is free then.
    """
    shared = cores_shared_by([slot["device"] for slot in worker.slots])
    host = host_facts(worker.facts, shared)
    host = replace(
        host,
        available_bytes=host.memory_bytes,
        disk_free_bytes=worker.facts.get("disk_bytes"),
    )
    found = [device_facts(device, host) for device in worker.devices]
    return [replace(device, free_memory_bytes=device.total_memory_bytes) for device in found]


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
