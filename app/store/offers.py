"""What slots offer to queued runs: as agents tell it, and in the statements that match them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, and_, false, not_, or_, select

from app.planning.requirements import Measure, SlotOffer, Use, uses_of
from app.store.records import Document
from app.store.tables import runs, workers

Condition = ColumnElement[bool]
# What a worker understands that does not say it: those of before there were versions.
FIRST_VERSION = 1
_ALIVE = select(workers.c.name, workers.c.slots, workers.c.devices, workers.c.facts).where(
    workers.c.state == "alive"
)


def idle_offers(connection: Connection) -> list[SlotOffer]:
    """The slots of all workers that train nothing, as of their last beats; all slots, as blocked
    ones, where none is idle and no worker has its artifacts: runs do not wait for their turn then.
    """
    rows = connection.execute(_ALIVE.order_by(workers.c.id)).all()
    idle = [
        offer for row in rows for offer in offers_of(row.name, row.slots, row.devices, row.facts)
    ]
    if not idle and all(row.facts.get("artifacts_away") for row in rows):
        return [offer for row in rows for offer in _while_away(*row)]
    return idle


def _while_away(
    worker: str, slots: Sequence[Document], devices: Sequence[Document], facts: Document
) -> list[SlotOffer]:
    """What it has free beside its runs does not matter: nothing is claimed."""
    slots = [{**slot, "run_id": None} for slot in slots]
    return [
        replace(
            offer,
            free_bytes=None,
            host_free_bytes=None,
            disk_free_bytes=None,
            blocked=facts["artifacts_away"],
        )
        for offer in offers_of(worker, slots, devices, facts)
    ]


def offers_of(
    worker: str, slots: Sequence[Document], devices: Sequence[Document], facts: Document
) -> list[SlotOffer]:
    """Of the slots that train nothing, from what an agent registers of itself."""
    by_id = {f"cuda:{one.get('index')}": one for one in devices if one.get("kind") == "cuda"}
    return [
        _offer(worker, slot, by_id.get(slot["device"], {}), facts)
        for slot in slots
        if slot.get("run_id") is None
    ]


def _offer(worker: str, slot: Document, gpu: Document, facts: Document) -> SlotOffer:
    """A GPU whose free memory nobody tells counts with all that it has."""
    on_gpu, free, capability = slot["device"] != "cpu", gpu.get("free_memory_bytes"), None
    if gpu.get("capability"):
        major, minor = gpu["capability"]
        capability = 10 * major + minor
    what = f"{gpu.get('name') or 'the GPU'} ({slot['device']})" if on_gpu else "the CPU"
    return SlotOffer(
        name=slot["name"],
        device_kind="cuda" if on_gpu else "cpu",
        device_id=slot["device"],
        free_bytes=gpu.get("total_memory_bytes") if free is None else free,
        capability=capability,
        host_free_bytes=facts.get("available_memory_bytes"),
        disk_free_bytes=facts.get("disk_free_bytes"),
        spec_version=facts.get("spec_version", FIRST_VERSION),
        place=f"{what} of worker {worker}",
        blocked=slot.get("waiting"),
    )


def fits(use: Use) -> Condition:
    """Of a row of runs, whether it can be trained so; a need that is not known is met."""
    return and_(_may_use(use), *_met(use, use.measures))


def is_short_of_memory(offers: Sequence[SlotOffer]) -> Condition:
    """Of a row of runs, what `requirements.why_waiting` says of it: no idle slot fits, and where
    one would, but for its memory.
    """
    uses = uses_of(offers)
    other = [
        and_(_may_use(use), *_met(use, [m for m in use.measures if not m.is_memory]))
        for use in uses
    ]
    return and_(or_(false(), *other), not_(or_(false(), *map(fits, uses))))


def _may_use(use: Use) -> Condition:
    understood = runs.c.spec_version <= use.offer.spec_version
    return and_(runs.c.device.in_(use.devices), understood)


def _met(use: Use, measures: Iterable[Measure]) -> list[Condition]:
    met = []
    for measure in measures:
        need, there = runs.c[f"needs_{measure.need}"], getattr(use.offer, measure.offer)
        if there is not None:
            met.append(or_(need.is_(None), need <= there))
    return met
