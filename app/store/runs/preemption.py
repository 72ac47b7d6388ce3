"""Which runs give their slots back to one of higher priority that finds no free slot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    case,
    exists,
    false,
    func,
    not_,
    or_,
    select,
    update,
)

from app.lifecycle import Intent, Reason, RunState
from app.planning.requirements import SlotOffer, uses_of
from app.store.offers import fits
from app.store.runs.claimable import CLAIM_ORDER, is_claimable, told_offers
from app.store.runs.claims import ways_to_start
from app.store.runs.transitions import move
from app.store.tables import attempts, checkpoints, runs, workers

# A slot that was given back may be idle for so long before it is offered: its driver has to tell of
# it anew. Until then no other run is asked to make way for the same one.
SETTLE_SECONDS = 60.0

Condition = ColumnElement[bool]


@dataclass(frozen=True)
class Preemptible:
    """A run of the worker that allows it: its slots as they are without it, and the bytes of the
    host's memory that it has or will have.
    """

    run_id: int
    slots: tuple[SlotOffer, ...]
    host_bytes: int


@dataclass(frozen=True)
class Preemption:
    """A run that is to save and go back to the queue, and for which."""

    run_id: int
    needed_by: int


giving = runs.alias("giving_way")


def _has_been_given_way(now: float) -> Condition:
    """Of a row of runs, whether slots are being given back for it, or were a moment ago."""
    current = and_(attempts.c.run_id == giving.c.id, attempts.c.number == giving.c.attempt)
    ended = attempts.c.finished_at
    return (
        select(giving.c.id)
        .join(attempts, current)
        .where(giving.c.preempted_for == runs.c.id)
        .where(or_(ended.is_(None), ended > now - SETTLE_SECONDS))
        .correlate(runs)
        .exists()
    )


def _newest_attempt(which: Condition) -> ColumnElement[int]:
    """Of a row of runs, the number of its newest attempt of which this is true."""
    query = select(func.max(attempts.c.number)).where(attempts.c.run_id == runs.c.id, which)
    return query.correlate(runs).scalar_subquery()


_PREEMPTED = _newest_attempt(attempts.c.reason == Reason.preempted.value)
_SAVED = _newest_attempt(attempts.c.saved_checkpoints > 0)
# Of a row of runs, whether it may be stopped now: it goes on from where it was, and has come on
# since it was stopped so before. Of a script it takes a whole checkpoint; others save when asked.
_MAY_GIVE_WAY = and_(
    runs.c.state == RunState.running.value,
    runs.c.intent == Intent.run.value,
    runs.c.preempted_for.is_(None),
    or_(_PREEMPTED.is_(None), _SAVED > _PREEMPTED),
    or_(
        runs.c.dataset.is_not(None),
        exists().where(checkpoints.c.run_id == runs.c.id, checkpoints.c.state == "saved"),
    ),
)


_started = attempts.alias("started")


def _went_in_vain(group: Sequence[Row[Any]]) -> Condition:
    """Of a row of runs, whether one of the group has gone for it already, and it has not started
    since: what it lacks was not what that one had.
    """
    has_started = exists().where(
        _started.c.run_id == runs.c.id, _started.c.started_at >= attempts.c.finished_at
    )
    return (
        select(attempts.c.run_id)
        .where(attempts.c.run_id.in_([victim.id for victim in group]))
        .where(attempts.c.preempted_for == runs.c.id, ~has_started.correlate(runs, attempts))
        .correlate(runs)
        .exists()
    )


def asked_before(connection: Connection, held: Sequence[Preemptible]) -> list[Preemption]:
    """Those of these runs that are asked already, though their agent may not have heard of it."""
    query = select(runs.c.id, runs.c.preempted_for).where(
        runs.c.id.in_([one.run_id for one in held]),
        runs.c.state == RunState.running.value,
        runs.c.preempted_for.is_not(None),
    )
    return [Preemption(*row) for row in connection.execute(query)]


def find_preemption(
    connection: Connection,
    worker_id: int,
    slots: Sequence[SlotOffer],
    held: Sequence[Preemptible],
    now: float,
    *,
    locked: bool = False,
) -> tuple[Row[Any], list[Row[Any]]] | None:
    """The first waiting run for which runs of lower priority would have to go, and these: as few
    as will do. `slots`: all that the worker has in hand; `locked`: the waiting run is held.

    Of several the one of the lowest priority goes, and of these the one that began last: all save
    before, so it costs the least to begin again what has only just begun.
    """
    victims = _victims(connection, held)
    if not victims:
        return None
    may_start = is_claimable(now)
    waits = and_(may_start, runs.c.priority > victims[0].priority, ~_has_been_given_way(now))
    if connection.execute(select(runs.c.id).where(waits).limit(1)).one_or_none() is None:
        return None  # without a look at slots, since an agent asks often
    groups = list(_groups(victims))
    suits = [_suits(connection, slots, held, group, may_start) for group in groups]
    idle = _starts_by_itself(connection, worker_id, slots, may_start, now)
    number = case(*((suit, index) for index, suit in enumerate(suits))).label("group")
    query = select(runs, number).where(waits, not_(idle), or_(*suits)).order_by(*CLAIM_ORDER)
    if locked:
        query = query.with_for_update(skip_locked=True, of=runs)
    run = connection.execute(query.limit(1)).one_or_none()
    if run is None:
        return None
    return run, _fewest(connection, run, slots, held, groups[run.group], may_start)


def order_preemption(
    connection: Connection, run: Row[Any], victims: Sequence[Row[Any]], now: float
) -> list[Preemption]:
    """Mark the runs that are to make way for a run that is held. None of them where one has
    moved meanwhile, or where another worker gives its slots for it.
    """
    given = select(runs.c.id).where(runs.c.id == run.id, _has_been_given_way(now))
    if connection.execute(given).one_or_none() is not None:
        return []
    ids = [victim.id for victim in victims]
    query = select(runs).where(runs.c.id.in_(ids), _MAY_GIVE_WAY).order_by(runs.c.id)
    rows = connection.execute(query.with_for_update(of=runs)).all()
    if len(rows) < len(ids):
        return []
    for row in rows:
        told = (
            f"Run {run.id} of priority {run.priority} needs its slot, and this one has priority "
            f"{row.priority}: it saves, and goes back to the queue."
        )
        move(connection, row, now, preempted_for=run.id, message=told)
        asked = and_(attempts.c.run_id == row.id, attempts.c.number == row.attempt)
        connection.execute(update(attempts).where(asked).values(preempted_for=run.id))
    return [Preemption(row.id, run.id) for row in rows]


def _victims(connection: Connection, held: Sequence[Preemptible]) -> Sequence[Row[Any]]:
    """Those that may be stopped, in the order in which they are."""
    current = and_(attempts.c.run_id == runs.c.id, attempts.c.number == runs.c.attempt)
    query = (
        select(runs)
        .join(attempts, current)
        .where(runs.c.id.in_([one.run_id for one in held]), _MAY_GIVE_WAY)
        .order_by(runs.c.priority, attempts.c.started_at.desc(), runs.c.id.desc())
    )
    return connection.execute(query).all()


def _groups(victims: Sequence[Row[Any]]) -> Iterator[list[Row[Any]]]:
    """Each alone, and then more and more of them together, for a run of several GPUs."""
    yield from ([victim] for victim in victims)
    yield from (list(victims[:size]) for size in range(2, len(victims) + 1))


def _suits(
    connection: Connection,
    slots: Sequence[SlotOffer],
    held: Sequence[Preemptible],
    group: Sequence[Row[Any]],
    may_start: Condition,
) -> Condition:
    """Of a row of runs, whether it would start if this group made way, and comes before all."""
    gone = [one for one in held if one.run_id in {victim.id for victim in group}]
    ways = ways_to_start(connection, _without(slots, gone), may_start)
    highest = max(victim.priority for victim in group)
    fit = or_(false(), *(way for way, _ in ways))
    return and_(runs.c.priority > highest, ~_went_in_vain(group), fit)


def _without(slots: Sequence[SlotOffer], gone: Sequence[Preemptible]) -> list[SlotOffer]:
    """The worker's slots as they are once these runs have left."""
    given_back = {slot.name: slot for one in gone for slot in one.slots}
    host_bytes = sum(one.host_bytes for one in gone)
    left = [given_back.get(slot.name, slot) for slot in slots]
    return [
        slot
        if slot.host_free_bytes is None
        else replace(slot, host_free_bytes=slot.host_free_bytes + host_bytes)
        for slot in left
    ]


def _starts_by_itself(
    connection: Connection,
    worker_id: int,
    slots: Sequence[SlotOffer],
    may_start: Condition,
    now: float,
) -> Condition:
    """Of a row of runs, whether an idle slot fits it, here or at another worker."""
    name = connection.execute(select(workers.c.name).where(workers.c.id == worker_id)).scalar()
    others = [
        offer if offer.blocked is None else replace(offer, is_taken=True)
        for offer in told_offers(connection, now)
        if offer.worker != name
    ]
    here = [way for way, _ in ways_to_start(connection, slots, may_start)]
    return or_(false(), *here, *map(fits, uses_of(others)))


def _fewest(
    connection: Connection,
    run: Row[Any],
    slots: Sequence[SlotOffer],
    held: Sequence[Preemptible],
    group: list[Row[Any]],
    may_start: Condition,
) -> list[Row[Any]]:
    """Of a group that suits the run, without those that can stay: whoever should go last first."""
    for victim in reversed(group):
        rest = [one for one in group if one is not victim]
        if not rest:
            break
        suits = _suits(connection, slots, held, rest, may_start)
        query = select(runs.c.id).where(runs.c.id == run.id, suits)
        if connection.execute(query).one_or_none() is not None:
            group = rest
    return group
