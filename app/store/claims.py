"""Which run is claimed next, and what its new owner is told."""

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, exists, insert, or_, select, update

from app.guard.carry import STARTS_ANEW, Carry
from app.lifecycle import Intent, RunState
from app.store.claimants import require_alive
from app.store.datasets import other_data, pin_datasets
from app.store.records import Document, Lease, SlotOffer
from app.store.restart_points import hold_first, origin_of, restore_points
from app.store.run_rows import CLAIM_ORDER, awaited, awaited_is_active
from app.store.tables import attempts, run_documents, runs
from app.store.transitions import MOVED, record_move

# Where a run would rather be, by its device; a CPU run may use any slot that is free.
PREFERENCE = {"cuda": ("cuda",), "auto": ("cuda", "cpu"), "cpu": ("cpu", "cuda")}


def choose_run(
    connection: Connection, slots: Sequence[SlotOffer], now: float, *, locked: bool = False
) -> Row[Any] | None:
    """The next claimable run that fits a slot; `locked`: held, and none that is held elsewhere."""
    kinds = {slot.device_kind for slot in slots}
    fitting = [device for device, wanted in PREFERENCE.items() if kinds.intersection(wanted)]
    query = (
        select(runs)
        .where(
            runs.c.state == RunState.queued.value,
            runs.c.intent == Intent.run.value,
            runs.c.device.in_(fitting),
            or_(runs.c.retry_at.is_(None), runs.c.retry_at <= now),
            ~exists().where(awaited.c.id == runs.c.waits_for, awaited_is_active).correlate(runs),
        )
        .order_by(*CLAIM_ORDER)
        .limit(1)
    )
    if locked:
        query = query.with_for_update(skip_locked=True, of=runs)
    return connection.execute(query).one_or_none()


def take(
    connection: Connection,
    run: Row[Any],
    worker_id: int,
    slots: Sequence[SlotOffer],
    now: float,
) -> Lease:
    """Give a locked run to a worker: its next attempt, token and event. Conflict: not alive."""
    slot = _slot_for(run.device, slots)
    worker = require_alive(connection, worker_id)
    token = secrets.token_urlsafe(24)
    restart = _settled_restart(connection, run)
    moved = connection.execute(
        update(runs)
        .where(runs.c.id == run.id, runs.c.state == RunState.queued.value)
        .values(
            state=RunState.running.value,
            reason=None,
            message=None,
            attempt=runs.c.attempt + 1,
            lease_token=token,
            worker_id=worker_id,
            worker=worker,
            devices=[slot.device_id],
            **restart,
            retry_at=None,
            phase=None,
            progress=_starting_again(run.progress),
            result=None,
            started_at=now if run.started_at is None else run.started_at,
            version=runs.c.version + 1,
            last_event_seq=runs.c.last_event_seq + 1,
        )
        .returning(*MOVED)
    ).one()
    record_move(connection, moved, RunState.queued.value, now, worker=worker, slot=slot.name)
    _begin_attempt(connection, moved, worker, slot, now)
    return _lease(connection, run, token, moved.attempt, slot)


def _starting_again(progress: Document | None) -> Document | None:
    """How far the attempts before had come, which people want to see until this one trains."""
    if progress is None:
        return None
    rates = dict.fromkeys(key for key in progress if key.endswith(("_per_second", "eta_seconds")))
    return {**progress, **rates, "phase": "starting"}


def _begin_attempt(
    connection: Connection,
    moved: Row[Any],
    worker: str,
    slot: SlotOffer,
    now: float,
) -> None:
    connection.execute(
        insert(attempts),
        {
            "run_id": moved.id,
            "number": moved.attempt,
            "worker": worker,
            "state": "running",
            "devices": [slot.device_id],
            "started_at": now,
            "saved_checkpoints": 0,
            "log_bytes": 0,
        },
    )


def _slot_for(device: str, slots: Sequence[SlotOffer]) -> SlotOffer:
    wanted = PREFERENCE[device]
    fitting = [slot for slot in slots if slot.device_kind in wanted]
    return min(fitting, key=lambda slot: wanted.index(slot.device_kind))


def _settled_restart(connection: Connection, run: Row[Any]) -> Document:
    """What a restart goes on from, settled when it is first claimed: who it waited for is over."""
    if run.attempt > 0:
        return {}
    origin = origin_of(connection, run.id)
    if origin.carry_kind == "full" and origin.parent_id is not None:
        _lower_carry(connection, run, other_data(connection, origin.parent_id))
    source = hold_first(connection, origin_of(connection, run.id))
    if source is None:
        return {"restart_checkpoint_id": None, "restart_carry": None}
    return {"restart_checkpoint_id": source.checkpoint_id, "restart_carry": source.carry}


def _lower_carry(connection: Connection, run: Row[Any], others: Collection[str]) -> None:
    """To the weights alone, where data has become another since the restart was asked for."""
    if not others:
        return
    changed = "/data/dataset" if run.dataset in others else "/data/split"
    carry = Carry("weights", STARTS_ANEW, (*run.carry["changed"], changed))
    connection.execute(update(runs).where(runs.c.id == run.id).values(carry=carry.as_json()))


def _memory_rung(connection: Connection, run_id: int) -> Document | None:
    """How far attempts that ran out of memory have come down; None: as the spec has it."""
    last = (
        select(attempts.c.next_rung)
        .where(attempts.c.run_id == run_id, attempts.c.next_rung.is_not(None))
        .order_by(attempts.c.number.desc())
        .limit(1)
    )
    return connection.execute(last).scalar()


def _lease(
    connection: Connection,
    run: Row[Any],
    token: str,
    attempt: int,
    slot: SlotOffer,
) -> Lease:
    documents = connection.execute(
        select(run_documents.c.request, run_documents.c.spec).where(
            run_documents.c.run_id == run.id
        )
    ).one()
    known = pin_datasets(connection, run.id)
    return Lease(
        token=token,
        run_id=run.id,
        attempt=attempt,
        spec=documents.spec,
        request=documents.request,
        slot=slot.name,
        restore_points=restore_points(connection, origin_of(connection, run.id)),
        max_retries=run.max_retries,
        beats=run.beat,
        memory_rung=_memory_rung(connection, run.id),
        dataset=known.pop(run.dataset),
        extra_datasets=known,
    )
