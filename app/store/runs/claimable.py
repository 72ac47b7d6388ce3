"""Which queued runs may be claimed now, in what order, and which idle GPUs are kept for one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, false, not_, or_, select

from app.lifecycle import Intent, RunState
from app.planning.requirements import (
    ON_GPU,
    Requirements,
    SlotOffer,
    SlotUse,
    if_given_back,
    lacking,
    uses_of,
)
from app.store.offers import all_offers, fits
from app.store.tables import TERMINAL_VALUES, runs

awaited, source = runs.alias("awaited"), runs.alias("source")
awaited_is_active = awaited.c.state.not_in(TERMINAL_VALUES)
source_is_active = source.c.state.not_in(TERMINAL_VALUES)
is_awaited = awaited.c.id == runs.c.waits_for
# One checkpoint that was named is there already, whatever its run does.
is_source = and_(source.c.id == runs.c.init_from_run, runs.c.init_from_checkpoint.is_(None))
CLAIM_ORDER = (runs.c.priority.desc(), runs.c.place, runs.c.id)
# What says whether a queued run fits into an idle slot.
NEEDS = {name: runs.c[f"needs_{name}"] for name in Requirements.__dataclass_fields__}
IS_WAITING = and_(runs.c.state == RunState.queued.value, runs.c.intent == Intent.run.value)
_ANY_OF_SEVERAL = select(runs.c.id).where(IS_WAITING, runs.c.gpus > 1).limit(1)


def is_claimable(now: float) -> ColumnElement[bool]:
    """Of a row of runs, whether it waits for nothing but a slot."""
    return and_(
        IS_WAITING,
        or_(runs.c.retry_at.is_(None), runs.c.retry_at <= now),
        ~exists().where(is_awaited, awaited_is_active).correlate(runs),
        ~exists().where(is_source, source_is_active).correlate(runs),
    )


def is_placed_before(other: Row[Any]) -> ColumnElement[bool]:
    """Of runs of one priority, those that are claimed before this one."""
    same = and_(runs.c.place == other.place, runs.c.id < other.id)
    return or_(runs.c.place < other.place, same)


class Kept(NamedTuple):
    """Idle slots of a worker, by name, that wait for a run of several GPUs."""

    run: Row[Any]
    slots: frozenset[str]

    @property
    def is_ahead(self) -> ColumnElement[bool]:
        """Of a row of runs, whether it comes before that run, so that it may take such a slot."""
        same = runs.c.priority == self.run.priority
        return or_(runs.c.priority > self.run.priority, and_(same, is_placed_before(self.run)))

    @property
    def why(self) -> str:
        return (
            f"An idle GPU is kept for run {self.run.id}, which is ahead in the queue and needs "
            f"{self.run.gpus} at once."
        )


def kept_for_several(
    connection: Connection, offers: Sequence[SlotOffer], may_start: ColumnElement[bool]
) -> Kept | None:
    """What is kept, of one worker's slots, for the first run of several GPUs that this worker could
    give them to if its runs were over, and cannot now. Without that, runs of one GPU would take
    each that gets free, and it would never start. None: nothing.
    """
    gpus = [offer for offer in offers if offer.device_kind == "cuda"]
    given_back = if_given_back(offers)
    later = [use for use in uses_of(given_back) if len(use.offers) > 1]
    idle = frozenset(offer.name for offer in gpus if not offer.is_taken)
    if not idle or not later:
        return None
    now = [use for use in uses_of(gpus) if len(use.offers) > 1]
    is_waiting = and_(or_(*map(fits, later)), not_(or_(false(), *map(fits, now))))
    columns = (runs.c.id, runs.c.priority, runs.c.place, runs.c.gpus, *NEEDS.values())
    query = select(*columns).where(may_start, runs.c.gpus > 1, is_waiting)
    run = connection.execute(query.order_by(*CLAIM_ORDER).limit(1)).one_or_none()
    if run is None:
        return None
    needs = Requirements(**{name: getattr(run, column.name) for name, column in NEEDS.items()})
    useful = [one for one in given_back if not lacking(needs, SlotUse((one,), (), ON_GPU))]
    return Kept(run, idle.intersection(offer.name for offer in useful))


def told_offers(connection: Connection, now: float) -> list[SlotOffer]:
    """All slots as they are told to people: idle ones that are kept for a run say so."""
    offers = all_offers(connection)
    if connection.execute(_ANY_OF_SEVERAL).scalar() is None:
        return offers
    told = []
    for worker in dict.fromkeys(offer.worker for offer in offers):
        own = [offer for offer in offers if offer.worker == worker]
        kept = kept_for_several(connection, own, is_claimable(now))
        told += [
            replace(offer, blocked=kept.why, kept_for=kept.run.id)
            if kept is not None and offer.name in kept.slots
            else offer
            for offer in own
        ]
    return told
