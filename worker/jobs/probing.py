"""A probe's child: one real step of a spec, on the device that the run would get."""

import json
import os
import resource
import signal
import sys

from app.container import available_memory, oom_kills
from app.settings import Settings
from app.store.worker_records import JobRecord
from worker.agent.devices import Devices
from worker.agent.slots import AgentSlot
from worker.jobs.job_work import JobEnd, JobOutcome, Work
from worker.launch.local import trainer_environment
from worker.launch.locks import take_lock
from worker.start.preparation import threads_of

# A step of the largest model that a CPU trains at all, on a busy host.
PROBE_SECONDS = 240.0


def probe(job: JobRecord, settings: Settings, devices: Devices) -> Work:
    """Measure a step. ValueError where it would be beside a run on its GPU.

    On a GPU it holds the slot, so that no run begins there meanwhile; what a CPU has free is its
    bound, so that it takes nothing from the runs there.
    """
    payload = job.payload
    on_gpu = payload["device"] == "cuda"
    slot = _free_gpu(devices, payload["name"]) if on_gpu else None
    threads = threads_of(payload["spec"]["runtime"]["threads"], devices.cores_shared_by)
    order = {**payload, "device": "cuda:0" if on_gpu else "cpu", "threads": threads}
    limits, free = {resource.RLIMIT_CORE: 0}, available_memory()
    if not on_gpu:
        limits[resource.RLIMIT_DATA] = free
    lock = _hold(slot) if slot is not None else None
    kills = oom_kills()

    def close() -> None:
        if slot is not None and lock is not None:
            os.close(lock)
            slot.release()

    return Work(
        [sys.executable, "-P", "-m", "worker.trainer.tools.probe"],
        PROBE_SECONDS,
        lambda end: _outcome(job, end, free, killed=oom_kills() > kills),
        trainer_environment(settings.home, gpu=slot.uuid if slot else None, threads=threads),
        given=json.dumps(order).encode(),
        limits=limits,
        close=close,
    )


def _free_gpu(devices: Devices, name: str) -> AgentSlot:
    devices.refresh()
    free = devices.free_slots()
    waiting = []
    for slot in devices.slots:
        gpu = devices.gpu_of(slot)
        if gpu is None or gpu.model != name:
            continue
        if slot in free:
            return slot
        waiting.append(
            f"GPU {slot.gpu} trains run {slot.run_id}" if slot.run_id else str(slot.waiting)
        )
    told = "; ".join(waiting) or f"this worker no longer has {name}"
    raise ValueError(
        f"{told.rstrip('.')}. A measurement beside others could take the memory that they need, "
        "and would not be right: ask again when a GPU is free, or pause a run"
    )


def _hold(slot: AgentSlot) -> int:
    lock = take_lock(slot.lock_path)
    if lock is None:
        raise ValueError(f"GPU {slot.gpu} has just been taken by a run; ask again when it is free")
    return lock


def _outcome(job: JobRecord, end: JobEnd, free: int, *, killed: bool) -> JobOutcome:
    """`free`: what the host had before."""
    device = job.payload["device"]
    try:
        answer = json.loads(end.text)
    except ValueError:
        if end.returncode == -signal.SIGKILL and killed and not end.too_slow:
            told = "The host ran out of memory, and the kernel ended the step."
            ran_out = ["training", job.payload["batch_size"]]
            result = {
                "device": device,
                "error": told,
                "out_of_memory": ran_out,
                "least_bytes": free,
            }
            return JobOutcome(job, result=result)
        limit = f"did not end within {PROBE_SECONDS:g} seconds; a smaller batch may"
        how = limit if end.too_slow else f"died (exit code {end.returncode}); the log may say why"
        return JobOutcome(job, error=f"The step {how}.")
    if "error" in answer and not answer.get("out_of_memory"):
        return JobOutcome(job, error=answer["error"])
    return JobOutcome(job, result={**answer, "device": device})
