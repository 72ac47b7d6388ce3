"""What the agent writes into the workers table about itself, its slots and its devices."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from worker.agent.errand import Errand
from worker.agent.slots import AgentSlot
from worker.telemetry.gpus import GpuSample
from worker.telemetry.host import host_now

Document = dict[str, Any]

# Free memory and disk are told with each beat, but read anew only after so long: to read them costs
# as much as the rest of the beat. The guard at claim reads them itself.
HOST_SECONDS = 10.0
FIRST_SECONDS = 5.0


class FreeNow:
    """What the host has free, as it was when its disks answered last."""

    def __init__(self, artifact_root: Path) -> None:
        self._root = artifact_root
        self._known: Document = {}
        self._due = 0.0
        self._look: Errand[Document] | None = None

    def now(self) -> Document:
        now = time.monotonic()
        if self._look is None and now >= self._due:
            self._due = now + HOST_SECONDS
            self._look = Errand(partial(host_now, self._root))
            self._look.is_done(None if self._known else FIRST_SECONDS)
        if self._look is not None and self._look.is_done():
            self._known, self._look = self._look.result(), None
        return self._known


def describe_slots(
    slots: Sequence[AgentSlot], host_bytes: Mapping[int, int | None], away: str | None
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
