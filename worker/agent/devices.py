"""The GPUs of this host as the driver shows them, and the slots that the agent makes of them."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from app.planning.requirements import cores_shared_by
from app.settings import Settings
from worker.agent.slots import AgentSlot, make_slots, why_waiting
from worker.telemetry.gpus import GpuSample, GpuTelemetry, driver_is_loaded
from worker.telemetry.host import torch_has_cuda
from worker.telemetry.visible import VARIABLE, visible

log = structlog.get_logger("stoker.worker")

FIRST_PROBE_SECONDS = 10.0


class Devices:
    """Owns the telemetry and the list of slots; `close` ends the probe."""

    def __init__(self, settings: Settings, agent: int) -> None:
        self._settings = settings
        self._agent = agent
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
                slot.waiting = why_waiting(slot, gpu, share=self._settings.share_gpus)
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
