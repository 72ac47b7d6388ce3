"""What slots offer to queued runs: as agents tell it, and in the statements that match them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, and_, false, not_, or_, select

from app.planning.requirements import Measure, Owner, SlotOffer, SlotUse, uses_of
from app.store.records import Document
from app.store.tables import runs, workers
from app.store.worker_records import WorkerRecord

Condition = ColumnElement[bool]
# What a worker understands that does not say it: those of before there were versions.
FIRST_VERSION = 1
_ALIVE = select(workers.c.name, workers.c.slots, workers.c.devices, workers.c.facts).where(
    workers.c.state == "alive"
)


def all_offers(connection: Connection) -> list[SlotOffer]:
    """The slots of all workers, as of their last beats; as blocked ones, where none is idle and no
    worker has its artifacts: runs do not wait for their turn then.
    """
    rows = connection.execute(_ALIVE.order_by(workers.c.id)).all()
    offers = [
        offer for row in rows for offer in offers_of(row.name, row.slots, row.devices, row.facts)
    ]
    is_any_idle = any(not offer.is_taken for offer in offers)
    if not is_any_idle and all(row.facts.get("artifacts_away") for row in rows):
        return [offer for row in rows for offer in _while_away(*row)]
    return offers


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
    """Of an agent's slots, from what it registers of itself."""
    by_id = {f"cuda:{one.get('index')}": one for one in devices if one.get("kind") == "cuda"}
    return [_offer(worker, slot, by_id.get(slot["device"], {}), facts) for slot in slots]


def offers_in_total(record: WorkerRecord) -> list[SlotOffer]:
    """Of a worker's slots, as they would be with nothing else on its host and devices."""
    slots = [{**slot, "run_id": None} for slot in record.slots]
    devices = [{**one, "free_memory_bytes": None} for one in record.devices]
    return [
        replace(offer, host_free_bytes=offer.host_bytes, disk_free_bytes=None, blocked=None)
        for offer in offers_of(record.name, slots, devices, record.facts)
    ]


def _offer(worker: str, slot: Document, gpu: Document, facts: Document) -> SlotOffer:
    """A GPU whose free memory nobody tells counts with all that it has, as does one that a run has
    taken.
    """
    on_gpu, is_taken, capability = slot["device"] != "cpu", slot.get("run_id") is not None, None
    free = None if is_taken else gpu.get("free_memory_bytes")
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
        host_bytes=facts.get("host_memory_bytes"),
        disk_free_bytes=facts.get("disk_free_bytes"),
        spec_version=facts.get("spec_version", FIRST_VERSION),
        recipes=facts.get("recipes", {}),
        owner=owner_of(facts),
        worker=worker,
        place=f"{what} of worker {worker}",
        is_taken=is_taken,
        blocked=slot.get("waiting"),
    )


def owner_of(facts: Document) -> Owner | None:
    """Whose agent it is; None if it does not say."""
    return Owner(facts["host"], facts["uid"], facts.get("home")) if "uid" in facts else None


def fits(use: SlotUse) -> Condition:
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


def _may_use(use: SlotUse) -> Condition:
    offer, version = use.offer, runs.c.recipe_version
    trains = [and_(runs.c.recipe == k, version == v) for k, v in offer.recipes.items()]
    size = len(use.offers)
    return and_(
        runs.c.device.in_(use.devices),
        runs.c.gpus <= 1 if size == 1 else runs.c.gpus == size,
        runs.c.spec_version <= offer.spec_version,
        or_(version.is_(None), *trains),
        or_(runs.c.owner_host.is_(None), _is_of(offer.owner)),
    )


def _is_of(owner: Owner | None) -> Condition:
    if owner is None:
        return false()
    is_of_home = or_(runs.c.owner_home.is_(None), runs.c.owner_home == owner.home)
    return and_(runs.c.owner_host == owner.host, runs.c.owner_uid == owner.uid, is_of_home)


def _met(use: SlotUse, measures: Iterable[Measure]) -> list[Condition]:
    met = []
    for measure in measures:
        need, there = runs.c[f"needs_{measure.need}"], getattr(use.offer, measure.offer)
        if there is not None:
            met.append(or_(need.is_(None), need <= there))
    return met
