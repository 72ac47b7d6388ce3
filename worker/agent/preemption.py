"""Runs that allow it make way for one of higher priority; which and for whom, the store says."""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from app.planning.requirements import SlotOffer
from app.store.runs.preemption import Preemptible
from app.store.store import Store
from worker.agent.devices import Devices
from worker.agent.supervisor import Stage, Supervision
from worker.telemetry.gpus import memory_of

log = structlog.get_logger("stoker.worker")


def may_give_way(supervisions: Sequence[Supervision]) -> list[Supervision]:
    """Those whose runs allow it, and that neither have ended nor are to end."""
    return [
        one
        for one in supervisions
        if one.stage in (Stage.waiting, Stage.training) and one.may_give_way
    ]


def preempt(
    store: Store,
    worker_id: int,
    able: Sequence[Supervision],
    offers: Sequence[SlotOffer],
    devices: Devices,
) -> None:
    """Ask the store, and stop those of `able` that it names; `offers`: all slots of this agent."""
    held = [_held(one, offers, devices) for one in able]
    needed_by = {
        told.run_id: told.needed_by for told in store.leases.preempt(worker_id, offers, held)
    }
    for supervision in able:
        run_id = supervision.lease.run_id
        if run_id in needed_by:
            log.info("run makes way", run=run_id, needed_by=needed_by[run_id])
            supervision.ask("stop", needed_by=needed_by[run_id])


def _held(one: Supervision, offers: Sequence[SlotOffer], devices: Devices) -> Preemptible:
    by_name = {offer.name: offer for offer in offers}
    slots = []
    for slot in one.slots.all:
        offer, gpu = by_name[slot.name], devices.gpu_of(slot)
        own = None if gpu is None or one.launched is None else memory_of(gpu, one.launched.pid)
        used, total = (
            (None, None) if gpu is None else (gpu.memory_used_bytes, gpu.memory_total_bytes)
        )
        if own is not None and used is not None and total is not None:
            offer = replace(offer, free_bytes=min(total, total - used + own))
        slots.append(replace(offer, is_taken=False))
    view = one.view()
    taken = (view.progress.get("host_memory_bytes") if view else None) or 0
    return Preemptible(one.lease.run_id, tuple(slots), taken + one.memory_to_come)
