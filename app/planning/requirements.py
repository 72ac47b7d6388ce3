"""What a run needs of a place, what a place offers, and which of the needs it does not meet.

One table says which offer answers which need: the claim's statement is built from it, and so is the
sentence that tells why a run waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from app.planning.residency import in_gib
from app.spec.run import SPEC_VERSION


@dataclass(frozen=True)
class Requirements:
    """None: not known, so that any place will do. Sizes in bytes."""

    device_bytes: int | None = None
    """Of a GPU's memory, where it trains on one."""
    capability: int | None = None
    """CUDA compute capability where it trains on a GPU, 80 for 8.0."""
    host_bytes: int | None = None
    """Of the host's memory, beside a GPU."""
    cpu_bytes: int | None = None
    """Of the host's memory, where it trains on the CPU."""
    disk_bytes: int | None = None
    """Below the artifact root."""


NOTHING_KNOWN = Requirements()


@dataclass(frozen=True)
class SlotOffer:
    """A slot of an agent; `device_id` is the name that the run's `devices` will show. What is not
    known is None, and is no reason against it. Sizes in bytes, and free now.
    """

    name: str
    device_kind: Literal["cpu", "cuda"]
    device_id: str
    free_bytes: int | None = None
    """Of the GPU's memory."""
    capability: int | None = None
    host_free_bytes: int | None = None
    disk_free_bytes: int | None = None
    spec_version: int = SPEC_VERSION
    """The newest that its agent understands."""
    place: str = ""
    """For people: which device of which worker."""
    blocked: str | None = None
    """Why it takes nothing at the moment, as a sentence; None: it is free."""


class Measure(NamedTuple):
    """A need and the offer that has to be as large; `is_memory`: it is given back by others."""

    need: str
    offer: str
    is_memory: bool
    what: str


_DISK = Measure("disk_bytes", "disk_free_bytes", False, "of disk for its checkpoints")
ON_GPU = (
    Measure("device_bytes", "free_bytes", True, "of GPU memory"),
    Measure("capability", "capability", False, "compute capability"),
    Measure("host_bytes", "host_free_bytes", True, "of host memory beside the GPU"),
    _DISK,
)
ON_CPU = (Measure("cpu_bytes", "host_free_bytes", True, "of host memory"), _DISK)


class Use(NamedTuple):
    """One way to use a slot: by which runs, by their `device`, and what they need there."""

    offer: SlotOffer
    devices: tuple[str, ...]
    measures: tuple[Measure, ...]


def uses_of(offers: Sequence[SlotOffer]) -> list[Use]:
    """In the order in which a run would take them: GPUs before CPUs, and of those that are large
    enough the smallest, so that the large ones stay free for runs that fit nowhere else. A run for
    the CPU may use the host of a GPU's slot.
    """
    gpus = [offer for offer in offers if offer.device_kind == "cuda"]
    gpus.sort(key=lambda offer: (offer.free_bytes or 0, offer.capability or 0))
    cpus = [offer for offer in offers if offer.device_kind == "cpu"]
    return [
        *(Use(offer, ("auto", "cuda"), ON_GPU) for offer in gpus),
        *(Use(offer, ("auto", "cpu"), ON_CPU) for offer in cpus),
        *(Use(offer, ("cpu",), ON_CPU) for offer in gpus),
    ]


def lacking(needs: Requirements, use: Use) -> list[Measure]:
    """What a place does not have."""
    return [measure for measure in use.measures if _is_short(needs, use.offer, measure)]


def _is_short(needs: Requirements, offer: SlotOffer, measure: Measure) -> bool:
    need, there = getattr(needs, measure.need), getattr(offer, measure.offer)
    return need is not None and there is not None and need > there


@dataclass(frozen=True)
class Waiting:
    """Why a queued run is not taken although a slot is idle; `for_memory`: till some is free."""

    for_memory: bool
    why: str


def why_waiting(
    device: str, needs: Requirements, spec_version: int, offers: list[SlotOffer]
) -> Waiting | None:
    """`offers`: of all slots that train nothing. None: one of them will do, or none is of a kind
    that the run could use, so that it waits for its turn.
    """
    uses = [use for use in uses_of(offers) if device in use.devices]
    if not uses:
        return None
    known = [use for use in uses if spec_version <= use.offer.spec_version]
    if not known:
        return Waiting(False, _too_new(spec_version, uses[0].offer))
    short = [(use, lacking(needs, use)) for use in known]
    meeting = [use.offer for use, measures in short if not measures]
    if meeting:
        blocked = [offer.blocked for offer in meeting]
        return Waiting(False, blocked[0]) if all(blocked) and blocked[0] else None
    # Of those that lack only memory the one that lacks the least, else the first.
    use, measures = min(short, key=lambda one: _distance(needs, one))
    sentence = _shortfall(needs, use.offer, measures)
    return Waiting(all(measure.is_memory for measure in measures), sentence)


def _distance(needs: Requirements, short: tuple[Use, list[Measure]]) -> tuple[bool, int]:
    use, measures = short
    by = sum(getattr(needs, m.need) - getattr(use.offer, m.offer) for m in measures)
    return any(not measure.is_memory for measure in measures), by


def _shortfall(needs: Requirements, offer: SlotOffer, measures: list[Measure]) -> str:
    needed, there = [], []
    for measure in measures:
        needed.append(f"{_amount(measure, getattr(needs, measure.need))} {measure.what}")
        there.append(f"{_amount(measure, getattr(offer, measure.offer))}")
    has = " and ".join(there)
    free = " free" if any(measure.is_memory for measure in measures) else ""
    told = (
        f"It needs {' and '.join(needed)}; the nearest idle place, {offer.place}, has {has}{free}."
    )
    blocked = f" {offer.blocked}" if offer.blocked else ""
    return f"{told}{blocked} {_when_it_starts(measures)}"


def _when_it_starts(lacking: list[Measure]) -> str:
    """Memory is given back by itself, space on a disk by people, and a device stays what it is."""
    needs = [measure.need for measure in lacking]
    if "capability" in needs:
        return "It starts when a slot with such a GPU is idle."
    if "disk_bytes" in needs:
        return "It starts when that disk has space again, or another slot with enough is idle."
    return "It starts as soon as a slot has enough."


def _amount(measure: Measure, value: int) -> str:
    return f"{value / 10:.1f}" if measure.need == "capability" else in_gib(value)


def _too_new(spec_version: int, offer: SlotOffer) -> str:
    return (
        f"Its spec has version {spec_version}, and {offer.place} understands "
        f"{offer.spec_version} at most: upgrade Stoker there, and the run starts."
    )
