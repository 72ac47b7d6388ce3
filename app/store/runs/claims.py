"""Which run is claimed next, and what its new owner is told."""

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    case,
    insert,
    or_,
    select,
    update,
)

from app.lifecycle import RunState
from app.planning.carry import Difference, only_weights
from app.planning.requirements import ON_GPU, SlotOffer, SlotUse, uses_of
from app.store.datasets import other_data, pin_datasets
from app.store.live_workers import require_alive
from app.store.offers import fits
from app.store.records import Document, Lease
from app.store.runs.claimable import CLAIM_ORDER, Kept, is_claimable, kept_for_several
from app.store.runs.first_weights import first_weights_point, settled_checkpoint, told_of_source
from app.store.runs.restart_points import hold_first, origin_of, restore_points
from app.store.runs.transitions import MOVED, record_move
from app.store.tables import attempts, run_documents, runs


def choose_run(
    connection: Connection, slots: Sequence[SlotOffer], now: float, *, locked: bool = False
) -> tuple[Row[Any], SlotUse] | None:
    """The next claimable run that idle slots can train, and how; `locked`: held, and none that is
    held elsewhere. What it needs is matched with what the slots offer in the statement. `slots`:
    all that the worker has in hand, those included that its runs have taken.
    """
    may_start = is_claimable(now)
    ways = ways_to_start(connection, slots, may_start)
    query = (
        select(runs, case(*((way, number) for number, (way, _) in enumerate(ways))).label("way"))
        .where(may_start, or_(*(way for way, _ in ways)))
        .order_by(*CLAIM_ORDER)
        .limit(1)
    )
    if locked:
        query = query.with_for_update(skip_locked=True, of=runs)
    run = connection.execute(query).one_or_none()
    return None if run is None else (run, ways[run.way][1])


def ways_to_start(
    connection: Connection, slots: Sequence[SlotOffer], may_start: ColumnElement[bool]
) -> list[tuple[ColumnElement[bool], SlotUse]]:
    """Which runs, of those that may start, could be trained by each use of these idle slots."""
    kept = kept_for_several(connection, slots, may_start)
    return [(_unless_kept(way, use, kept), use) for way, use in _ways(slots)]


def _unless_kept(way: ColumnElement[bool], use: SlotUse, kept: Kept | None) -> ColumnElement[bool]:
    """Without runs that come after one for which these slots are kept."""
    if kept is None or kept.slots.isdisjoint(offer.name for offer in use.offers):
        return way
    return and_(way, kept.is_ahead)


def _ways(slots: Sequence[SlotOffer]) -> list[tuple[ColumnElement[bool], SlotUse]]:
    """A run goes by the first that is true of it: one of which it is not known what it takes of a
    GPU to the largest, all others to the smallest that is large enough.
    """
    uses = uses_of(slots)
    largest = [use for use in uses if use.measures is ON_GPU]
    largest.sort(key=lambda use: use.offer.free_bytes or 0, reverse=True)
    unknown = [(and_(runs.c.needs_device_bytes.is_(None), fits(use)), use) for use in largest]
    return [*unknown, *((fits(use), use) for use in uses)]


def take(connection: Connection, run: Row[Any], worker_id: int, use: SlotUse, now: float) -> Lease:
    """Give a locked run to a worker: its next attempt, token and event. Conflict: not alive."""
    slots = ", ".join(offer.name for offer in use.offers)
    devices = [offer.device_id for offer in use.offers]
    worker = require_alive(connection, worker_id)
    token = secrets.token_urlsafe(24)
    settled = _settled(connection, run)
    moved = connection.execute(
        update(runs)
        .where(runs.c.id == run.id, runs.c.state == RunState.queued.value)
        .values(
            state=RunState.running.value,
            reason=None,
            message=told_of_source(connection, run),
            attempt=runs.c.attempt + 1,
            lease_token=token,
            worker_id=worker_id,
            worker=worker,
            devices=devices,
            **settled,
            retry_at=None,
            preempted_for=None,
            phase=None,
            progress=_starting_again(run.progress),
            result=None,
            started_at=now if run.started_at is None else run.started_at,
            version=runs.c.version + 1,
            last_event_seq=runs.c.last_event_seq + 1,
        )
        .returning(*MOVED)
    ).one()
    record_move(connection, moved, RunState.queued.value, now, worker=worker, slot=slots)
    _begin_attempt(connection, moved, worker, devices, now)
    return _lease(connection, run, token, moved.attempt, use)


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
    devices: list[str],
    now: float,
) -> None:
    connection.execute(
        insert(attempts),
        {
            "run_id": moved.id,
            "number": moved.attempt,
            "worker": worker,
            "state": "running",
            "devices": devices,
            "started_at": now,
            "saved_checkpoints": 0,
            "log_bytes": 0,
            "log_read": 0,
            "events_read": 0,
        },
    )


def _settled(connection: Connection, run: Row[Any]) -> Document:
    """What a run goes on from, or begins with, settled when it is first claimed: who it waited for
    is over.
    """
    if run.attempt > 0:
        return {}
    first = {"init_from_checkpoint": settled_checkpoint(connection, run)}
    origin = origin_of(connection, run.id)
    if origin.carry_kind == "full" and origin.parent_id is not None:
        _lower_carry(connection, run, other_data(connection, origin.parent_id))
    source = hold_first(connection, origin_of(connection, run.id))
    if source is None:
        return {**first, "restart_checkpoint_id": None, "restart_carry": None}
    chosen = {"restart_checkpoint_id": source.checkpoint_id, "restart_carry": source.carry}
    return first | chosen


def _lower_carry(connection: Connection, run: Row[Any], others: Collection[str]) -> None:
    """To the weights alone, where data has become another since the restart was asked for."""
    if not others:
        return
    changed = "/data/dataset" if run.dataset in others else "/data/split"
    known = [Difference(**one) for one in run.carry.get("differences", ())]
    if not known:  # asked for by a version that noted no values
        known = [Difference(pointer, None, None) for pointer in run.carry["changed"]]
    differences = (*known, Difference(changed, run.dataset, run.dataset))
    carry = only_weights((changed,), differences)
    connection.execute(update(runs).where(runs.c.id == run.id).values(carry=carry.as_json()))


def _last_of(
    connection: Connection, run_id: int, column: ColumnElement[Document]
) -> Document | None:
    """What the attempts before have come to; None: none of them had any."""
    last = (
        select(column)
        .where(attempts.c.run_id == run_id, column.is_not(None))
        .order_by(attempts.c.number.desc())
        .limit(1)
    )
    return connection.execute(last).scalar()


def _lease(
    connection: Connection,
    run: Row[Any],
    token: str,
    attempt: int,
    use: SlotUse,
) -> Lease:
    documents = connection.execute(
        select(run_documents.c.request, run_documents.c.spec).where(
            run_documents.c.run_id == run.id
        )
    ).one()
    return Lease(
        token=token,
        run_id=run.id,
        attempt=attempt,
        spec=documents.spec,
        request=documents.request,
        slots=tuple(offer.name for offer in use.offers),
        restore_points=(
            *restore_points(connection, origin_of(connection, run.id)),
            *first_weights_point(connection, run.id),
        ),
        max_retries=run.max_retries,
        beats=run.beat,
        memory_rung=_last_of(connection, run.id, attempts.c.next_rung),
        rollback=_last_of(connection, run.id, attempts.c.rollback),
        host_bytes=run.needs_host_bytes if use.measures is ON_GPU else run.needs_cpu_bytes,
        datasets=pin_datasets(connection, run.id),
    )
