"""What a run needs of a place, what a place offers, and which of the needs it does not meet.

One table says which offer answers which need: the claim's statement is built from it, and so is the
sentence that tells why a run waits.
"""

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from app.planning.residency import in_gib
from app.spec.installed import INSTALLED
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


# The path that a home had at first, and random digits.
HOME_ID = r".*#[0-9a-f]{16}"


@dataclass(frozen=True)
class Owner:
    """Whose command a run is: only agents of this user, on this host, of this home may run it."""

    host: str
    uid: int
    home: str | None = None
    """The id of the home that took it, see HOME_ID; None: any home, or not known."""

    def admits(self, agent: "Owner | None") -> bool:
        """True if an agent of that owner may run it."""
        if agent is None or (agent.host, agent.uid) != (self.host, self.uid):
            return False
        return self.home in (None, agent.home)

    @property
    def home_path(self) -> str | None:
        """The path that the home had at first."""
        return None if self.home is None else self.home.rpartition("#")[0]


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
    host_bytes: int | None = None
    """All memory of the host that its agent may use."""
    disk_free_bytes: int | None = None
    spec_version: int = SPEC_VERSION
    """The newest that its agent understands."""
    recipes: Mapping[str, str] = field(default_factory=lambda: INSTALLED.versions)
    """The version of each recipe, by kind."""
    owner: Owner | None = None
    """Whose agent it is: whose commands it may run."""
    worker: str = ""
    """Of several GPUs for one run all are of one worker."""
    place: str = ""
    """For people: which device of which worker."""
    is_taken: bool = False
    """By a run, which will give it back. Then `free_bytes` is all that the GPU has."""
    blocked: str | None = None
    """Why it takes nothing at the moment, as a sentence; None: it is free."""
    kept_for: int | None = None
    """The run that may take it nevertheless."""


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


class SlotUse(NamedTuple):
    """One way to use a slot, or so many GPUs of one worker at once: by which runs, by their
    `device` and `gpus`, and what they need there.
    """

    offers: tuple[SlotOffer, ...]
    devices: tuple[str, ...]
    measures: tuple[Measure, ...]

    @property
    def offer(self) -> SlotOffer:
        """What there is: of several GPUs, what each of them has at least."""
        first, *others = self.offers
        if not others:
            return first
        return replace(
            first,
            free_bytes=_least(offer.free_bytes for offer in self.offers),
            capability=_least(offer.capability for offer in self.offers),
            place=" and ".join(offer.place for offer in self.offers),
            blocked=next((offer.blocked for offer in self.offers if offer.blocked), None),
        )

    def takes(self, device: str, gpus: int) -> bool:
        """Runs without a GPU, or with one, take one slot."""
        return device in self.devices and max(1, gpus) == len(self.offers)


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def uses_of(offers: Sequence[SlotOffer]) -> list[SlotUse]:
    """Of the slots that are not taken, in the order in which a run would take them: GPUs before
    CPUs, and of those that are large enough the smallest, so that the large ones stay free for runs
    that fit nowhere else. Where a worker has slots of both kinds, each is for its own: a run that
    may take either waits for a GPU, and one for the CPU leaves the GPUs alone. Without a slot for
    the CPU it may use the host of a GPU's.
    """
    has = {(offer.worker, offer.device_kind) for offer in offers}
    free = [offer for offer in offers if not offer.is_taken]
    gpus = [offer for offer in free if offer.device_kind == "cuda"]
    gpus.sort(key=lambda offer: (offer.free_bytes or 0, offer.capability or 0))
    cpus = [offer for offer in free if offer.device_kind == "cpu"]
    return [
        *(SlotUse((offer,), ("auto", "cuda"), ON_GPU) for offer in gpus),
        *(SlotUse(group, ("cuda",), ON_GPU) for group in _groups(gpus)),
        *(
            SlotUse(
                (offer,), ("cpu",) if (offer.worker, "cuda") in has else ("auto", "cpu"), ON_CPU
            )
            for offer in cpus
        ),
        *(
            SlotUse((offer,), ("cpu",), ON_CPU)
            for offer in gpus
            if (offer.worker, "cpu") not in has
        ),
    ]


def cores_shared_by(devices: Sequence[str]) -> int:
    """How many runs share out a host's cores, by the devices of its slots: one a GPU where there
    are any, since what trains on the CPU beside them takes what they leave.
    """
    return sum(device != "cpu" for device in devices) or len(devices)


def _groups(gpus: Sequence[SlotOffer]) -> Iterator[tuple[SlotOffer, ...]]:
    """Two or more of one worker that are alike, by their memory: `gpus` are sorted by it. Of groups
    of one size that have the same at least, one.
    """
    for worker in dict.fromkeys(offer.worker for offer in gpus):
        own = [offer for offer in gpus if offer.worker == worker]
        seen = set()
        for size in range(2, len(own) + 1):
            for first in range(len(own) - size + 1):
                group = tuple(own[first : first + size])
                has = (size, group[0].free_bytes, _least(offer.capability for offer in group))
                if has not in seen:
                    seen.add(has)
                    yield group


def if_given_back(offers: Sequence[SlotOffer]) -> list[SlotOffer]:
    """A worker's slots as they are once all its runs are over; without those that others use. Of
    the host, runs in any of its slots may hold memory.
    """
    slots = [offer for offer in offers if offer.is_taken or not offer.blocked]
    if any(offer.is_taken for offer in offers):
        slots = [replace(offer, host_free_bytes=offer.host_bytes) for offer in slots]
    return [replace(offer, is_taken=False, blocked=None) for offer in slots]


def most_of(
    offers: Sequence[SlotOffer], device: str, gpus: int, needs: Collection[str]
) -> int | None:
    """The most that a place has, of those that such a run could use, of what meets one of these
    needs. None: there is no place, or one that needs nothing of it, or does not tell.
    """
    there = [
        next((getattr(use.offer, m.offer) for m in use.measures if m.need in needs), None)
        for use in uses_of(offers)
        if use.takes(device, gpus)
    ]
    known = [count for count in there if count is not None]
    return max(known) if known and len(known) == len(there) else None


def lacking(needs: Requirements, use: SlotUse) -> list[Measure]:
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
    device: str,
    needs: Requirements,
    spec_version: int,
    recipe: tuple[str, str | None],
    offers: list[SlotOffer],
    owner: Owner | None = None,
    gpus: int = 1,
) -> Waiting | None:
    """`offers`: of all slots. None: an idle one will do, or all that the run could use are taken,
    so that it waits for its turn. `recipe`: its kind and version, None of runs from before there
    were versions. `owner`: of a command of somebody's own.
    """
    own = [offer for offer in offers if owner is None or owner.admits(offer.owner)]
    if not own and owner is not None and (offers or owner.home is not None):
        return Waiting(False, _without_its_worker(owner))
    uses = [use for use in uses_of(own) if use.takes(device, gpus)]
    if not uses:
        return _short_of_gpus(gpus, own) if device == "cuda" and own else None
    known = [use for use in uses if spec_version <= use.offer.spec_version]
    if not known:
        return Waiting(False, _too_new(spec_version, uses[0].offer))
    kind, version = recipe
    able = [use for use in known if version is None or use.offer.recipes.get(kind) == version]
    if not able:
        return Waiting(False, _without_recipe(kind, version, known[0].offer))
    short = [(use, lacking(needs, use)) for use in able]
    meeting = [use.offer for use, measures in short if not measures]
    if meeting:
        blocked = [offer.blocked for offer in meeting]
        return Waiting(False, blocked[0]) if all(blocked) and blocked[0] else None
    # Of those that lack only memory the one that lacks the least, else the first.
    use, measures = min(short, key=lambda one: _distance(needs, one))
    sentence = _shortfall(needs, use.offer, measures)
    return Waiting(all(measure.is_memory for measure in measures), sentence)


def _without_its_worker(owner: Owner) -> str:
    command = f"It is a command of user {owner.uid} of {owner.host}"
    if owner.home_path is None:
        return f"{command}, and waits for a worker of that user there: `stoker up` starts one."
    return (
        f"{command}, which the home {owner.home_path} took. Only a worker of that home has its "
        f"environment, and none is running: `stoker up --home {shlex.quote(owner.home_path)}` "
        "starts one there."
    )


def _short_of_gpus(gpus: int, own: list[SlotOffer]) -> Waiting | None:
    """None where it waits for its turn."""
    there = Counter(offer.worker for offer in own if offer.device_kind == "cuda")
    if max(there.values(), default=0) < gpus:
        wanted = "a GPU" if gpus <= 1 else f"{gpus} GPUs of one worker"
        has = f"none has more than {max(there.values())}" if there else "no worker has any"
        return Waiting(False, f"It needs {wanted}, and {has}. It starts when a worker has.")
    idle = Counter(
        offer.worker for offer in own if offer.device_kind == "cuda" and not offer.is_taken
    )
    if not idle:
        return None
    worker, most = idle.most_common(1)[0]
    are = "1 is" if most == 1 else f"{most} are"
    return Waiting(
        False,
        f"It needs {gpus} GPUs of one worker at once; of the {there[worker]} of worker {worker} "
        f"{are} idle. Once it is first in the queue, idle ones are kept for it until they suffice.",
    )


def _distance(needs: Requirements, short: tuple[SlotUse, list[Measure]]) -> tuple[bool, int]:
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


def _without_recipe(kind: str, version: str | None, offer: SlotOffer) -> str:
    there = offer.recipes.get(kind)
    has = f"has version {there} of it" if there else "does not have it"
    package = INSTALLED.packages.get(kind)
    what = f"{package} {version}" if package else f"version {version} of the package that has it"
    return (
        f"Its recipe {kind} has version {version}, and {offer.place} {has}: install {what} there "
        "and start the worker again, and the run starts."
    )
