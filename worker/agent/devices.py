"""This host's GPUs as the driver shows them, the slots made of them, and those that a run holds."""

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from app.planning.requirements import cores_shared_by
from app.settings import Settings
from app.store.records import NewEvent
from worker.agent.slots import AgentSlot, make_slots, why_waiting
from worker.telemetry.gpus import (
    GpuSample,
    GpuTelemetry,
    driver_is_loaded,
    left_behind,
    newcomers,
    sees_the_host,
)
from worker.telemetry.host import torch_has_cuda
from worker.telemetry.visible import VARIABLE, visible

log = structlog.get_logger("stoker.worker")

FIRST_PROBE_SECONDS = 10.0
# A driver takes back the memory of the largest process within about a second.
RELEASE_SECONDS = 15.0
ASK_GAP_SECONDS = 0.1
SLOT_WAITS = " The slot takes no run while others are seen to hold memory there."


class Devices:
    """Owns the telemetry and the list of slots; `close` ends the probe."""

    def __init__(self, settings: Settings, agent: int) -> None:
        self._settings = settings
        self._agent = agent
        self.share_gpus = settings.share_gpus
        self.telemetry = GpuTelemetry(settings.beat_seconds)
        self.telemetry.wait_for_first(FIRST_PROBE_SECONDS)
        if self._is_driver_silent():
            log.warning("this host has an NVIDIA driver, but NVML does not answer yet: no run is "
                        "taken until it does", why=self.telemetry.why_absent)  # fmt: skip
        self.slots = self._make_slots()

    def close(self) -> None:
        self.telemetry.close()

    @property
    def cores_shared_by(self) -> int:
        """How many runs share out this host's cores."""
        return cores_shared_by([slot.device for slot in self.slots])

    def gpu_of(self, slot: AgentSlot) -> GpuSample | None:
        """The current sample of a slot's GPU."""
        gpus = self.telemetry.gpus or ()
        return next((gpu for gpu in gpus if gpu.uuid == slot.uuid), None)

    def samples(self, indexes: Collection[str]) -> list[GpuSample]:
        """The current samples of these GPUs, as far as the driver tells of them."""
        return [gpu for gpu in self.telemetry.gpus or () if gpu.index in indexes]

    def as_offered(self, slot: AgentSlot) -> GpuSample | None:
        """Of a free slot's GPU. What a sample has of memory that is older than the last run's end
        was about that run, which has given it back: then nobody knows.
        """
        gpu = self.gpu_of(slot) or slot.last_sample
        if gpu is None or gpu.seen_at > slot.free_since:
            return gpu
        return replace(gpu, memory_used_bytes=None)

    def free_slots(self) -> list[AgentSlot]:
        """Slots that can take a run now."""
        return [slot for slot in self.slots if slot.run_id is None and slot.waiting is None]

    def refresh(self) -> None:
        """Write into every free slot why it waits; new slots when GPUs have come up since."""
        has_gpu_slot = any(slot.uuid is not None for slot in self.slots)
        is_idle = all(slot.run_id is None for slot in self.slots)
        if self._visible() and not has_gpu_slot and is_idle and torch_has_cuda():
            self.slots = self._make_slots()
            log.info("GPUs have come up", slots=[slot.name for slot in self.slots])
        for slot in self.slots:
            gpu = self.gpu_of(slot)
            slot.last_sample = gpu or slot.last_sample
            if slot.run_id is None:
                slot.waiting = why_waiting(slot, gpu, share=self.share_gpus)
                if slot.uuid is None and self._is_driver_silent():
                    slot.waiting = (
                        "This host has an NVIDIA driver, but NVML has not answered yet; the slot "
                        "waits for the GPUs. `nvidia-smi` on this host may show why."
                    )

    def _is_driver_silent(self) -> bool:
        return not self.telemetry.has_answered and driver_is_loaded() and torch_has_cuda()

    def _make_slots(self) -> list[AgentSlot]:
        return make_slots(
            self._settings.slots,
            self._gpus_of_torch(),
            agent=self._agent,
            locks_dir=self._settings.locks_dir,
        )

    def _gpus_of_torch(self) -> Sequence[GpuSample]:
        """The GPUs that a trainer can use: none where torch is installed without CUDA, and only
        those that the agent was told to keep to.
        """
        gpus = self.telemetry.gpus or ()
        if gpus and not torch_has_cuda():
            log.warning(
                "runs train on the CPU: the installed torch cannot use this host's GPUs; "
                "install a CUDA build of it",
                gpus=len(gpus),
            )
            return ()
        found = self._visible()
        if gpus and not found:
            log.warning(
                "runs train on the CPU: CUDA_VISIBLE_DEVICES of the worker names none of this "
                "host's GPUs; name some by number or UUID (nvidia-smi -L), or unset it, and "
                "restart the worker",
                given=os.environ.get(VARIABLE),
                gpus=[gpu.uuid for gpu in gpus],
            )
        return found

    def _visible(self) -> list[GpuSample]:
        return visible(self.telemetry.gpus or (), os.environ.get(VARIABLE))


class HeldGpus:
    """The GPUs that one attempt trains on, by NVML's numbers: none where it trains on the CPU."""

    def __init__(self, devices: Devices, indexes: Sequence[str] = ()) -> None:
        self._devices = devices
        self.indexes = tuple(indexes)
        begins = devices.samples(self.indexes)
        self._before = {pid for gpu in begins for pid, _ in gpu.processes}
        # Else whoever came since the run began may be somebody else, who goes on.
        self._can_tell = sees_the_host() or not devices.share_gpus
        self._was_listed: set[str] = set()  # where the driver has told of the attempt
        self._ended_at: float | None = None
        self._asked_at = 0.0
        self._why: str | None = None
        self.is_awaited = self._is_told = False

    @property
    def names(self) -> list[str]:
        return [f"cuda:{index}" for index in self.indexes] or ["cpu"]

    def samples(self) -> list[GpuSample]:
        """As the driver told of them last; noted is where it lists the attempt."""
        samples = self._devices.samples(self.indexes)
        self._was_listed.update(gpu.index for gpu in samples if newcomers(gpu, self._before))
        return samples

    @property
    def free_since(self) -> float | None:
        """From when on the driver tells of them without the attempt; None: that is not known, as
        where the driver never listed it, like one that lists no processes at all.
        """
        is_told = self._can_tell and self._was_listed.issuperset(self.indexes)
        return self._ended_at if is_told and self._why is None else None

    def why_held(self, now: float) -> str | None:
        """Once the last process of the attempt is gone: a clause while the driver does not show
        that their memory is free, as it does when a GPU lists none of them any more. After a while
        that is not waited for: see `take_warnings`. Nor is it in a container that shares its GPUs.
        """
        if not self._can_tell:
            return None
        if self._ended_at is None:
            self._ended_at = now
        self._why = self._why_not_free(self._ended_at)
        self.is_awaited = self._why is not None and now < self._ended_at + RELEASE_SECONDS
        if not self.is_awaited:
            return None
        if now >= self._asked_at + ASK_GAP_SECONDS:
            self._asked_at = now
            self._devices.telemetry.ask()
        return self._why

    def _why_not_free(self, ended_at: float) -> str | None:
        fresh = [gpu for gpu in self.samples() if gpu.seen_at > ended_at]
        listed = sorted(pid for gpu in fresh for pid in left_behind(gpu, self._before))
        where = ", ".join(self.names)
        if listed:
            pids = ", ".join(map(str, listed))
            return f"the driver lists processes on {where} that came since the run began ({pids})"
        if len(fresh) < len(self.indexes):
            return f"the driver does not say yet whether {where} is free"
        return None

    def take_warnings(self) -> list[NewEvent]:
        """Once, if their memory was not seen to be free when it was not waited for any longer."""
        if self._why is None or self._is_told:
            return []
        self._is_told = True
        message = (
            f"{RELEASE_SECONDS:g} seconds after its last process has ended, {self._why}: whether "
            f"its memory is free is not known.{'' if self._devices.share_gpus else SLOT_WAITS} "
            "`nvidia-smi` on this host may show more; the kernel's log (`dmesg`) tells of errors "
            "of the driver, and a restart of the host frees what it lost."
        )
        return [NewEvent("warning", time.time(), {"code": "gpu_not_free", "message": message})]
