"""What the agent writes into the workers table about itself, its slots and its devices."""

from collections.abc import Mapping, Sequence
from typing import Any

from worker.slots import Slot
from worker.telemetry import GpuSample

Document = dict[str, Any]


def describe_slots(
    slots: Sequence[Slot], host_bytes: Mapping[int, int | None], away: str | None
) -> list[Document]:
    """`host_bytes`: by run, what its trainer has of the host's memory, once it has said so; `away`:
    why the artifact root is, for which free slots wait.
    """
    return [
        {
            "name": slot.name,
            "device": slot.device,
            "run_id": slot.run_id,
            "waiting": slot.waiting if slot.run_id is not None else slot.waiting or away,
            "host_memory_bytes": None if slot.run_id is None else host_bytes.get(slot.run_id),
        }
        for slot in slots
    ]


def describe_devices(gpus: Sequence[GpuSample] | None) -> list[Document]:
    """The GPUs, or the CPU where there is none; null is what the driver does not tell."""
    if not gpus:
        return [{"kind": "cpu", "name": "cpu"}]
    return [_describe_gpu(gpu) for gpu in gpus]


def _describe_gpu(gpu: GpuSample) -> Document:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    return {
        "kind": "cuda",
        "index": gpu.index,
        "name": gpu.model,
        "uuid": gpu.uuid,
        "driver": gpu.driver,
        "capability": None if gpu.capability is None else list(gpu.capability),
        "used_memory_bytes": used,
        "total_memory_bytes": total,
        "free_memory_bytes": None if used is None or total is None else total - used,
        "utilization": gpu.utilization,
        "processes": [{"pid": pid, "memory_bytes": memory} for pid, memory in gpu.processes],
    }
