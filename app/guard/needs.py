"""What a run needs of a place at the least, by the memory plan of a place that has no bounds."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Literal

from app.guard.case import Case
from app.guard.facts import DeviceFacts, Facts, HostFacts, UnknownFact
from app.guard.memory.items import CUDA_CONTEXT_BYTES
from app.guard.memory.memory_plan import MemoryPlan, kept_beside, memory_plan
from app.planning.requirements import Requirements, SlotOffer, lacking, uses_of
from app.planning.residency import MIB, free_for_data, memory_for_data, settle_residency
from app.spec.data import ChunkedLoader, Loader
from app.spec.run import RunSpec

Kind = Literal["cpu", "cuda"]
# Precisions that the trainer refuses on a CPU, and on a GPU of before Ampere.
FOR_GPUS = ("tf32", "fp16-mixed")
FOR_AMPERE, AMPERE = ("tf32", "bf16-mixed"), (8, 0)
NO_BOUND = 2**50


def device_wanted(spec: RunSpec) -> Literal["auto", "cpu", "cuda"]:
    """`runtime.device`, where auto can be either."""
    wanted, precision = spec.runtime.device, spec.runtime.precision
    return "cuda" if wanted == "auto" and precision in FOR_GPUS else wanted


def requirements_of(case: Case, *, whole_batch: bool = False) -> Requirements:
    """The least that it can train with. Of several hosts that of the one where it takes least, for
    the guard looks again at the claim. A need is None while a fact for it is missing.

    `whole_batch`: with chunks that hold a batch. Smaller ones are slow, and that may be accepted.
    """
    spec, wanted = case.spec, device_wanted(case.spec)
    found = []
    if wanted != "cpu":
        found += [_on_gpu(spec, plan, whole_batch) for plan in _plans(case, "cuda")]
    if wanted != "cuda":
        found += [_on_cpu(spec, plan, whole_batch) for plan in _plans(case, "cpu")]
    least = _least(found)
    if wanted != "cpu" and spec.runtime.precision in FOR_AMPERE:
        major, minor = AMPERE
        least = replace(least, capability=10 * major + minor)
    return least


def where_it_fits(case: Case, needs: Requirements) -> Case:
    """The case with those devices alone that are large enough for the run; where none is, with all
    of them, and the rules say what is lacking.
    """
    devices = case.facts.devices
    if len(devices) < 2:
        return case
    uses = [(use, device) for device in devices for use in uses_of([_offer(device)])]
    wanted = device_wanted(case.spec)
    fitting = tuple(d for use, d in uses if wanted in use.devices and not lacking(needs, use))
    if not fitting or fitting == devices:
        return case
    return Case(case.spec, replace(case.facts, devices=fitting))


def _offer(device: DeviceFacts) -> SlotOffer:
    capability = device.capability
    return SlotOffer(
        name=device.name,
        device_kind=device.kind,
        device_id=device.name,
        free_bytes=device.free_memory_bytes,
        capability=None if capability is None else 10 * capability[0] + capability[1],
        host_free_bytes=device.host.available_bytes,
        disk_free_bytes=device.host.disk_free_bytes,
    )


def _on_gpu(spec: RunSpec, plan: MemoryPlan, whole_batch: bool) -> Requirements:
    return Requirements(
        device_bytes=_least_free_bytes(spec, plan, whole_batch),
        host_bytes=plan.host.least_bytes + plan.imports.trainer,
        disk_bytes=checkpoints_bytes(spec, plan),
    )


def _on_cpu(spec: RunSpec, plan: MemoryPlan, whole_batch: bool) -> Requirements:
    return Requirements(
        cpu_bytes=_least_free_bytes(spec, plan, whole_batch) + plan.imports.trainer,
        disk_bytes=checkpoints_bytes(spec, plan),
    )


def _least(found: list[Requirements]) -> Requirements:
    names = [field.name for field in fields(Requirements)]
    known = {n: [v for one in found if (v := getattr(one, n)) is not None] for n in names}
    return Requirements(**{name: min(values) for name, values in known.items() if values})


def _plans(case: Case, kind: Kind) -> Iterator[MemoryPlan]:
    for device in _places(case.facts, kind):
        for loader in _ways(case.spec.data.loader, kind):
            try:
                yield memory_plan(case.workload, device, case.facts.profiles, loader)
            except UnknownFact:
                return


def _places(facts: Facts, kind: Kind) -> list[DeviceFacts]:
    """The devices without their bounds: what of them changes what a run takes there, each once."""
    there = [device for device in facts.devices if kind in ("cpu", device.kind)]
    return list(dict.fromkeys(map(partial(_unbounded, kind), there))) or [
        _unbounded(kind, DeviceFacts(kind, kind, capability=AMPERE))
    ]


def _unbounded(kind: Kind, device: DeviceFacts) -> DeviceFacts:
    """Of a GPU's slot, for a run on the CPU, the host."""
    build = device.host.torch_build or kind
    host = HostFacts(NO_BOUND, NO_BOUND, device.host.cores, torch_build=build)
    name = device.name if kind == "cuda" else "cpu"
    return DeviceFacts(kind, name, NO_BOUND, NO_BOUND, device.capability or AMPERE, host)


def _ways(loader: Loader, kind: Kind) -> Iterator[Loader]:
    """The loader, which where nothing bounds it keeps its data on the device, and in chunks, which
    take other memory of a GPU's host.
    """
    yield loader
    if kind == "cuda" and isinstance(loader, ChunkedLoader) and loader.residency == "auto":
        yield loader.model_copy(update={"residency": "stream"})


def _least_free_bytes(spec: RunSpec, plan: MemoryPlan, whole_batch: bool) -> int:
    """What has to be free where the model lies, the imports of a host there already: the least with
    which the data finds its place beside all that `plan` has, to a MiB.

    From what surely lies beside the data upwards: what is asked for with so much free is tried
    next, and as a rule the second is enough. More can be free and yet not suffice, for chunks grow
    with it.
    """
    chunk = plan.batch if whole_batch else 1
    too_little, free = 0, plan.beside.least_bytes // MIB
    while free < NO_BOUND // MIB and (asked := _asked(spec, plan, free, chunk)) > free:
        too_little, free = free, asked
    if free - 1 > too_little and _asked(spec, plan, free - 1, chunk) < free:
        between = range(too_little + 1, free)
        free = between[0] + bisect_left(
            between, True, key=lambda less: _asked(spec, plan, less, chunk) <= less
        )
    return min(free * MIB, NO_BOUND)


def _asked(spec: RunSpec, plan: MemoryPlan, free: int, chunk: int) -> int:
    """What the data comes to where so much is free, as the guard judges it (`MemoryPlan.fits`), and
    all beside it; twice as much as there is while a chunk has fewer than `chunk` samples. In MiB.
    """
    on_gpu, loader = plan.device is not None, spec.data.loader
    context = CUDA_CONTEXT_BYTES if on_gpu else 0
    if not isinstance(loader, ChunkedLoader):
        return _mib(context + plan.beside.least_bytes)
    there = max(0, free * MIB - context)
    memory = memory_for_data(there, kept_beside(plan.beside, there), on_gpu=on_gpu)
    data = settle_residency(loader, plan.need, memory)
    if not data.holds(chunk):
        return 2 * free + 1
    taken = data.needed_bytes
    if not on_gpu and data.kind == "stream":  # what no sample fills of a slot costs a host nothing
        samples = plan.need.train_samples + sum(plan.need.held_out)
        taken = min(taken, samples * plan.need.slot_sample_bytes)
    return _mib(context + max(plan.beside.least_bytes + taken, free_for_data(data.needed_bytes)))


def _mib(count: int) -> int:
    return -(-count // MIB)


def checkpoints_bytes(spec: RunSpec, plan: MemoryPlan) -> int:
    """What the checkpoints that are kept take of the disk, and the one that is being written."""
    state = sum(i.bytes for i in plan.with_model.items if i.name in ("weights", "optimizer"))
    return (spec.checkpoint.keep_last + spec.checkpoint.keep_best + 1) * state
