"""Slots: how many runs this agent takes at once, on which device, and why one waits."""

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from worker.launch.locks import lock_holders, lock_is_free, take_lock
from worker.telemetry.gpus import GpuSample, foreign_work


@dataclass
class AgentSlot:
    """A place for one run. `gpu` is the index that NVML gives; `uuid` is what a trainer may see."""

    name: str
    device_kind: Literal["cpu", "cuda"]
    lock_path: Path
    gpu: str | None = None
    uuid: str | None = None
    run_id: int | None = None
    waiting: str | None = None
    last_sample: GpuSample | None = None
    free_since: float = 0.0  # monotonic

    def release(self, since: float | None = None) -> None:
        """The run is over; what the driver said of the device until now, or until it was seen to
        be free, was about that run.
        """
        self.run_id = self.waiting = None
        self.free_since = time.monotonic() if since is None else since

    @property
    def device(self) -> str:
        return "cpu" if self.gpu is None else f"cuda:{self.gpu}"


class HeldSlots:
    """The slots of one attempt, all of which it has from the claim to its end: several GPUs, or
    one slot.
    """

    def __init__(self, slots: Sequence[AgentSlot], run_id: int) -> None:
        self.all = tuple(slots)
        self.first = self.all[0]
        for slot in self.all:
            slot.run_id, slot.waiting = run_id, None

    def wait(self, why: str | None) -> None:
        """Show why the attempt does not go on at the moment; None: it does."""
        for slot in self.all:
            slot.waiting = why

    def wait_for_deaths(self, run_id: int, pids: Collection[int]) -> None:
        """Show that processes which were killed are still there."""
        listed = ", ".join(map(str, sorted(pids)))
        self.wait(
            f"Run {run_id} is over, but its processes ({listed}) do not die: they hang in the "
            "kernel, in a driver or a file system; the slot waits until they are gone."
        )

    def release(self, since: float | None = None) -> None:
        for slot in self.all:
            slot.release(since)

    @property
    def lock_paths(self) -> tuple[Path, ...]:
        """In an order that is the same for all who take them, so that none waits for each other."""
        return tuple(sorted(slot.lock_path for slot in self.all))

    @property
    def gpus(self) -> tuple[str, ...]:
        """As NVML numbers them."""
        return tuple(slot.gpu for slot in self.all if slot.gpu is not None)

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(slot.uuid for slot in self.all if slot.uuid is not None)


class AgentIndex:
    """The smallest number that no other agent of this host has; kept until `close`."""

    def __init__(self, locks_dir: Path) -> None:
        locks_dir.mkdir(parents=True, exist_ok=True)
        self.number = 0
        while (fd := take_lock(locks_dir / f"agent-{self.number}.lock")) is None:
            self.number += 1
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)


def make_slots(
    wanted: int | None, gpus: Sequence[GpuSample], agent: int, locks_dir: Path
) -> list[AgentSlot]:
    """One slot a GPU, and one for runs that need none; `wanted` sets the number, CPU slots after
    the GPUs.
    """
    count = wanted or len(gpus) + 1
    slots = [
        AgentSlot(
            name=f"gpu-{gpu.uuid}",
            device_kind="cuda",
            lock_path=locks_dir / f"gpu-{gpu.uuid}.lock",
            gpu=gpu.index,
            uuid=gpu.uuid,
        )
        for gpu in gpus[:count]
    ]
    for k in range(count - len(slots)):
        name = f"cpu-{agent}-{k}"
        slots.append(AgentSlot(name=name, device_kind="cpu", lock_path=locks_dir / f"{name}.lock"))
    return slots


def why_waiting(slot: AgentSlot, gpu: GpuSample | None, *, share: bool = False) -> str | None:
    """A sentence for a free slot that cannot take a run now; None when it can. With `share` others
    may compute on its GPU.
    """
    try:
        is_free = lock_is_free(slot.lock_path)
    except OSError as error:
        return (
            f"Whether this slot's device is free cannot be told: {error}. It will be asked again."
        )
    if not is_free:
        pids = ", ".join(map(str, lock_holders(slot.lock_path)))
        who = f" (launcher {pids})" if pids else ""
        return f"Processes of another attempt, or a measurement, still use this slot's device{who}."
    if slot.uuid is None:
        return None
    if gpu is None:
        return (
            f"The driver says nothing about GPU {slot.gpu} at the moment; the slot waits until it "
            "does. `nvidia-smi` on this host may show why."
        )
    if gpu.is_divided:
        return (
            f"GPU {gpu.index} is divided by MIG, and Stoker gives a run whole GPUs, not slices. "
            f"Turn MIG off (`sudo nvidia-smi -i {gpu.index} -mig 0`), or leave this GPU to others: "
            "start the worker with a CUDA_VISIBLE_DEVICES that does not name it."
        )
    if share:
        return None
    return foreign_work(gpu, is_fresh=gpu.seen_at > slot.free_since)
