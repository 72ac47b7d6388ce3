"""The guard at claim: the spec before the rules again, with the facts of the host that has it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.guard.case import Case
from app.guard.facts import DeviceFacts, Facts, UnknownFact
from app.guard.judge import Judgement, judge
from app.guard.needs import requirements_of
from app.guard.presets.catalog import load_catalog
from app.lifecycle import Reason
from app.planning.requirements import NOTHING_KNOWN, Requirements
from app.service.inventory import dataset_facts, device_facts, host_facts
from app.service.profiles import with_profiles
from app.settings import Settings
from app.spec.data import ChunkedLoader
from app.spec.issue import Issue
from app.spec.run import RunSpec
from app.store.records import Document, Lease, NewEvent
from app.store.store import Store
from worker.agent.registration import describe_devices
from worker.start.preparation import NotFit, NotHere
from worker.telemetry.gpus import GpuSample
from worker.telemetry.host import host_now, host_setup

# Devices of which nothing is known: rules that would need to know more say so, and find nothing.
ANY_GPU, ANY_CPU = DeviceFacts("cuda", "GPU"), DeviceFacts("cpu", "cpu")
# Of what a run on a GPU takes of its host.
HOST_CODES = ("memory.host_over_budget", "memory.loader_over_budget")
SMALL_CHUNK = "speed.chunk_below_batch"
# The order is fixed at submission, and how the data is kept is not: reading is slower here then.
OF_READING = ("speed.random_reads_of_chunks", "speed.network_full_shuffle")
# What a run could get elsewhere, by the device that it asks for.
ELSEWHERE = {"auto": (ANY_GPU, ANY_CPU), "cuda": (ANY_GPU,), "cpu": (ANY_CPU,)}


@dataclass(frozen=True)
class ClaimPlace:
    """Where the run would train: the GPU of a slot, or the CPU, of this host."""

    gpu: GpuSample | None
    slots: int


def guard_claim(
    settings: Settings,
    lease: Lease,
    spec: RunSpec,
    facts: Facts,
    known: Sequence[Document],
) -> list[Issue]:
    """Warnings of the rules here. NotFit on an error; NotHere where a device elsewhere has none.

    `facts`: of the place. `known`: what was found at submission; an error that was waived there for
    the run's parent is none here.
    """
    inspected = [record.name for record in lease.datasets.values() if record.state == "inspecting"]
    if inspected:
        raise NotHere(
            Reason.slot_busy,
            f"Requeued: the dataset {inspected[0]!r} is being inspected again.",
        )
    preset = load_catalog(settings.presets_dir).get(spec.preset)
    case = Case(spec, replace(facts, preset=preset.match if preset is not None else None))
    here = _with_reading_warned_of(spec, judge(case, lease.spec, settings.guard))
    errors = _not_waived(here, known)
    if not errors:
        return here.issues
    elsewhere = (
        (device.kind, judge(_only(device, case), lease.spec, settings.guard))
        for device in ELSEWHERE[spec.runtime.device]
    )
    needs = _needs_found(case, errors)
    could = [kind for kind, there in elsewhere if not _not_waived(there, known)]
    if not could:
        raise NotFit(Reason.spec_error, _sentences(errors))
    whose = "a worker with a GPU" if could == ["cuda"] else "a worker"
    raise NotHere(
        Reason.slot_busy,
        f"Requeued for {whose} that can train it: {_sentences(errors)}",
        needs,
    )


def _with_reading_warned_of(spec: RunSpec, here: Judgement) -> Judgement:
    """Returns the judgement with slow reads as warnings where the place decides about streaming.

    The data is then read in the order that was settled, which is slow, and still right.
    """
    loader = spec.data.loader
    if not isinstance(loader, ChunkedLoader) or loader.residency != "auto":
        return here
    issues = [
        one.model_copy(update={"severity": "warning"}) if one.code in OF_READING else one
        for one in here.issues
    ]
    return replace(here, issues=issues)


def _only(device: DeviceFacts, case: Case) -> Case:
    return Case(case.spec, replace(case.facts, devices=(device,)))


def _needs_found(case: Case, errors: Sequence[Issue]) -> Requirements:
    """What it needs by the plan of this place, and where that was refused for its memory, or for
    chunks that are small for want of it, more than there is free of it: so that it is not given to
    such a place again.
    """
    codes = {e.code for e in errors if e.code.startswith("memory.") or e.code == SMALL_CHUNK}
    device = case.best_device
    if device is None or not codes:
        return NOTHING_KNOWN
    on_gpu, host = device.kind == "cuda", device.host
    there = {
        "device_bytes": device.free_memory_bytes if on_gpu else None,
        "host_bytes": host.available_bytes if on_gpu else None,
        "cpu_bytes": None if on_gpu else host.available_bytes,
        "disk_bytes": host.disk_free_bytes,
    }
    short = {
        "disk_bytes" if code == "memory.checkpoints_fill_disk"
        else "cpu_bytes" if not on_gpu
        else "host_bytes" if code in HOST_CODES
        else "device_bytes"
        for code in codes
    }  # fmt: skip
    planned = requirements_of(case, whole_batch=SMALL_CHUNK in codes)
    found = {
        name: max(have + 1, getattr(planned, name) or 0)
        for name, have in there.items()
        if name in short and have is not None
    }
    return Requirements(**found)


def memory_beside(spec: RunSpec, facts: Facts) -> int | None:
    """What the memory plan keeps here for all but the data; None where nobody can plan it."""
    try:
        return Case(spec, facts).memory.beside_bytes
    except UnknownFact:
        return None


def facts_at_claim(
    store: Store, settings: Settings, lease: Lease, spec: RunSpec, place: ClaimPlace
) -> Facts:
    """What the rules may know of a slot of this host, of the run's datasets, and of like runs.

    Of those that ran out of memory nothing: a claim waits for no batch that the memory ladder would
    cut. A run that came down the ladder takes less than its spec, so no measurement holds for it.
    """
    facts = facts_of(settings, lease, place)
    if lease.memory_rung is not None:
        return facts
    learned = with_profiles(store.profiles, spec, facts)
    succeeded = {key: profile.of_successes for key, profile in learned.profiles.items()}
    return replace(facts, profiles={k: p for k, p in succeeded.items() if p.points})


def facts_of(settings: Settings, lease: Lease, place: ClaimPlace) -> Facts:
    """The same without what like runs took."""
    host = host_facts(host_setup() | host_now(settings.artifact_root), place.slots)
    documents = describe_devices(None)
    if place.gpu is not None:
        documents = describe_devices([place.gpu]) + documents
    return Facts(
        datasets={record.name: dataset_facts(record) for record in lease.datasets.values()},
        devices=tuple(device_facts(document, host) for document in documents),
    )


def new_findings(found: Sequence[Issue], known: Sequence[Document]) -> list[NewEvent]:
    """Events for what was not found at submission, where the facts were others."""
    told = {_place_of(issue) for issue in known}
    return [
        NewEvent("issue", time.time(), issue.model_dump(mode="json"))
        for issue in found
        if (issue.code, tuple(issue.loc)) not in told
    ]


def _not_waived(judgement: Judgement, known: Sequence[Document]) -> list[Issue]:
    waived = {_place_of(issue) for issue in known if issue.get("waived_by") == "parent"}
    return [error for error in judgement.errors if (error.code, tuple(error.loc)) not in waived]


def _place_of(issue: Document) -> tuple[str, tuple[str | int, ...]]:
    return issue["code"], tuple(issue["loc"])


def _sentences(errors: Sequence[Issue]) -> str:
    return " ".join(f"{error.message} {error.why}".strip() for error in errors[:3])
