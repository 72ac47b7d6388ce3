"""What a run needs of a place at the least, by the memory plan of a place that has no bounds."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Literal

from app.guard.case import Case
from app.guard.facts import DeviceFacts, Facts, HostFacts, UnknownFact
from app.guard.memory.items import CUDA_CONTEXT_BYTES
from app.guard.memory.memory_plan import MemoryPlan, memory_plan
from app.planning.requirements import Requirements, SlotOffer, lacking, uses_of
from app.planning.residency import MIB, memory_for_data, settle_residency
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
        host_bytes=plan.host.peak_bytes + plan.imports.trainer,
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
    for host in _hosts(case.facts, kind):
        device = DeviceFacts(kind, kind, NO_BOUND, NO_BOUND, AMPERE, host)
        for loader in _ways(case.spec.data.loader):
            try:
                yield memory_plan(case.workload, device, case.facts.measured, loader)
            except UnknownFact:
                return


def _hosts(facts: Facts, kind: Kind) -> list[HostFacts]:
    """What of a host changes what a run takes there, each once."""
    setups = [
        (device.host.cores, device.host.torch_build)
        for device in facts.devices
        if kind in ("cpu", device.kind)
    ]
    return [
        HostFacts(NO_BOUND, NO_BOUND, cores, torch_build=build or kind)
        for cores, build in dict.fromkeys(setups) or [(None, None)]
    ]


def _ways(loader: Loader) -> Iterator[Loader]:
    """The loader, which where nothing bounds it keeps its data on the device, and in chunks."""
    yield loader
    if isinstance(loader, ChunkedLoader) and loader.residency == "auto":
        yield loader.model_copy(update={"residency": "stream"})


def _least_free_bytes(spec: RunSpec, plan: MemoryPlan, whole_batch: bool) -> int:
    """What has to be free where the model lies, the imports of a host there already: the least with
    which the data finds its place beside all that `plan` has, to a MiB.
    """
    chunk = plan.batch if whole_batch else 1
    low, high = 0, (2 * (plan.beside_bytes + plan.data.needed_bytes) + CUDA_CONTEXT_BYTES) // MIB
    if not _has_place(spec, plan, high * MIB, chunk):
        low, high = high + 1, NO_BOUND // MIB
    while low < high:
        middle = (low + high) // 2
        if _has_place(spec, plan, middle * MIB, chunk):
            high = middle
        else:
            low = middle + 1
    return low * MIB


def _has_place(spec: RunSpec, plan: MemoryPlan, free: int, chunk: int) -> bool:
    """As the guard judges it with so much free (`MemoryPlan.fits`), a chunk having so many samples
    at least.
    """
    on_gpu, loader = plan.device is not None, spec.data.loader
    context = CUDA_CONTEXT_BYTES if on_gpu else 0
    if not isinstance(loader, ChunkedLoader):
        return context + plan.beside_bytes <= free
    memory = memory_for_data(max(0, free - context), plan.beside_bytes, on_gpu=on_gpu)
    data = settle_residency(loader, plan.need, memory)
    taken = data.needed_bytes
    if not on_gpu and data.kind == "stream":  # what no sample fills of a slot costs a host nothing
        samples = plan.need.train_samples + sum(plan.need.held_out)
        taken = min(taken, samples * plan.need.slot_sample_bytes)
    fits = context + plan.beside_bytes + taken <= free and data.needed_bytes <= memory.limit_bytes
    return fits and data.holds(chunk)


def checkpoints_bytes(spec: RunSpec, plan: MemoryPlan) -> int:
    """What the checkpoints that are kept take of the disk, and the one that is being written."""
    state = sum(i.bytes for i in plan.with_model.items if i.name in ("weights", "optimizer"))
    return (spec.checkpoint.keep_last + spec.checkpoint.keep_best + 1) * state
