"""The memory plan: what a run will take on its device and on its host, item by item."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.guard.facts import DeviceFacts, HostFacts, known
from app.guard.memory.budget import Budget, Item
from app.guard.memory.items import CUDA_CONTEXT_BYTES, SPREAD_OF_PROBES, SPREAD_OF_RUNS, Held
from app.guard.memory.model_size import ModelSize
from app.guard.memory.profile_key import profile_key
from app.guard.memory.readers import Readers
from app.guard.memory.worker_pools import WorkerPools, worker_pools
from app.guard.memory.workload import Workload
from app.planning.imports import Imports
from app.planning.profile import Estimate, Point, Profile, ProfileKey
from app.planning.residency import (
    MIB,
    DataMemory,
    Need,
    Residency,
    memory_for_data,
    settle_residency,
)
from app.spec.data import ChunkedLoader, Loader

# While it is asked what lies beside the data, which hangs on it only in when a host unpacks.
NOT_SETTLED = Residency("stream", "", 0, 0, 0)
# Of what the exact part leaves, for what nobody has measured yet.
UNKNOWN_SHARE = 2


@dataclass(frozen=True)
class MemoryPlan:
    """On a CPU the device is the host, and `device` None."""

    host: Budget
    device: Budget | None
    data: Residency
    need: Need
    data_memory: DataMemory
    """What data may take on the device."""
    beside: Budget
    """What everything but the data takes there, beside a GPU's context."""
    imports: Imports
    batch: int
    """Samples of a batch of the training."""
    unknown: tuple[str, ...]
    """What takes memory, and nobody has measured how much."""
    assumed: tuple[str, ...]
    profile: Profile | None = None
    """What like runs were measured to take."""
    ran_out: Point | None = None
    """A probe that ran out of memory with this batch, or with a smaller one."""
    pools: WorkerPools | None = None
    """Of the PyTorch loader."""

    @property
    def with_model(self) -> Budget:
        """Of the memory where weights, activations and data lie."""
        return self.device or self.host

    @property
    def beside_bytes(self) -> int:
        """What is kept for everything but the data, of all that is free."""
        return kept_beside(self.beside, self.beside.available_bytes or 0)

    @property
    def fits(self) -> bool:
        """Whether nothing that is sure says that it does not: what is not known to be there is
        enough for all, and what nobody has measured takes nothing.
        """
        budgets = [budget for budget in (self.host, self.device) if budget is not None]
        within = self.ran_out is None and not any(budget.is_over for budget in budgets)
        return within and self.data.needed_bytes <= self.data_memory.limit_bytes

    def as_json(self) -> dict[str, Any]:
        """Bytes above the imports of the trainer."""
        streamed = self.data.kind == "stream"
        return {
            "host": self.host.as_json(),
            "device": self.device.as_json() if self.device else None,
            "residency": self.data.kind,
            "chunk_samples": self.data.chunk_samples if streamed else None,
            "unknown": list(self.unknown),
            "assumed": list(self.assumed),
            "measured": self.profile.as_json() if self.profile else None,
        }


def kept_beside(beside: Budget, free: int) -> int:
    """Of so many bytes that are free, what data has to leave: what is planned, or where that is not
    known, half of what the exact part leaves as well.
    """
    if beside.is_known:
        return beside.peak_bytes
    return beside.peak_bytes + max(0, free - beside.peak_bytes) // UNKNOWN_SHARE


def memory_plan(
    work: Workload,
    device: DeviceFacts,
    profiles: Mapping[ProfileKey, Profile],
    loader: Loader | None = None,
) -> MemoryPlan:
    """What a run takes on a device; UnknownFact while one of its sizes is not known.

    `profiles`: of runs like it and of others. `loader`: in place of the spec's, one that differs in
    its residency.
    """
    loader, free = loader or work.spec.data.loader, free_memory(device)
    profile = profiles.get(profile_key(work, device)) if profiles else None
    held, on_gpu = _held(work, device, profile, loader), device.kind == "cuda"
    items = held.beside_data_on_gpu() if on_gpu else held.beside_data_on_cpu()
    context = CUDA_CONTEXT_BYTES if on_gpu else 0
    there = max(0, free - context)
    beside = Budget(tuple(i for i in items if i.name != "context"), there, not held.unknown)
    data_memory = memory_for_data(there, kept_beside(beside, there), on_gpu=on_gpu)
    if isinstance(loader, ChunkedLoader):
        held = replace(held, data=settle_residency(loader, work.need, data_memory))
    host, on_device = _budgets(held, device, free, items)
    return MemoryPlan(
        host,
        on_device,
        held.data,
        work.need,
        data_memory,
        beside,
        held.imports,
        work.batch,
        (*held.unknown, *(() if host.is_known or not on_gpu else ("host libraries",))),
        _assumed(held, on_gpu=on_gpu),
        profile,
        _probe_that_ran_out(held),
        held.readers.pools,
    )


def _budgets(
    held: Held, device: DeviceFacts, free: int, beside: tuple[Item, ...]
) -> tuple[Budget, Budget | None]:
    """Of the host and of the GPU, with the data that is settled now."""
    known_all = not held.unknown
    if device.kind == "cuda":
        available = device.host.available_bytes
        host = held.beside_gpu(None if available is None else _beside_imports(device.host))
        return host, Budget((*beside, *held.of_data()), free, known_all)
    if held.data.kind == "resident":  # then what only readers take is over when all is built
        beside = held.beside_data_on_cpu()
    return Budget((*beside, *held.of_data(touched_only=True)), free, known_all), None


def _held(work: Workload, device: DeviceFacts, profile: Profile | None, loader: Loader) -> Held:
    """With data that is not settled, unless the PyTorch loader brings it."""
    pools, data = None, NOT_SETTLED
    if not isinstance(loader, ChunkedLoader):
        pools = worker_pools(work, loader, device.host)
        data = _loaded(pools)
    return Held(work, data, profile, Readers(work, device.host.cores, pools), device.host.imports)


def held_there(work: Workload, device: DeviceFacts, data: Residency) -> Held:
    """What a run that keeps its data so is known to hold, nothing of it measured; UnknownFact."""
    return replace(_held(work, device, None, work.spec.data.loader), data=data)


def _loaded(pools: WorkerPools) -> Residency:
    """Batches come to the device one by one: none of its memory is kept for data."""
    who = f"up to {pools.processes} processes" if pools.processes else "the trainer itself"
    return Residency("batches", f"read by {who} as the PyTorch loader asks", 0, 0, 0)


def free_memory(device: DeviceFacts) -> int:
    """Bytes that are free where the model and the data will lie, the imports there; UnknownFact."""
    if device.kind == "cpu":
        return _beside_imports(device.host)
    return known(device.free_memory_bytes, f"the free memory of {device.name}")


def _beside_imports(host: HostFacts) -> int:
    available = known(host.available_bytes, "the available memory of the host")
    return max(0, available - host.imports.trainer)


def _probe_that_ran_out(held: Held) -> Point | None:
    for estimate in (held.training, held.evaluating):
        if estimate and estimate.ran_out and estimate.ran_out.run_id is None:
            return estimate.ran_out
    return None


def _assumed(held: Held, *, on_gpu: bool) -> tuple[str, ...]:
    data, profile = held.data, held.profile
    host: tuple[str, ...] = ()
    if on_gpu and profile is not None and profile.host_bytes is not None:
        host = ("Libraries on the host: the most that like runs took.",)
    unmeasured = ("By a figure that was not measured on a GPU yet: the context.",) if on_gpu else ()
    return (
        f"{'data in batches' if held.readers.pools else f'{data.kind} data'}: {data.why}.",
        *_estimates_told(held),
        *host,
        "Bytes above those that the trainer's imports take, "
        f"{held.imports.trainer // MIB} MiB, which the host's budget does not have any more.",
        *unmeasured,
    )


def _estimates_told(held: Held) -> tuple[str, ...]:
    """By whom activations and libraries were measured, or that nobody has."""
    told = {"Activations and libraries": held.training, "An evaluation's": held.evaluating}
    lines = [f"{what}: {one.how}{_spread(one)}." for what, one in told.items() if one is not None]
    if held.training is None:
        share = "half of what the exact part leaves is kept for them"
        lines.append(
            "Activations and libraries are not known: no run like it was measured on such a "
            f"device. A probe measures them (`stoker plan --probe`); until then {share}."
        )
    return tuple(lines)


def _spread(estimate: Estimate) -> str:
    if estimate.planned is None:
        return ""
    percent = SPREAD_OF_PROBES if estimate.by_probe else SPREAD_OF_RUNS
    return f"; {percent} % more is planned, for like runs do not take quite the same"


def probe_order(work: Workload, device: DeviceFacts) -> dict[str, Any]:
    """What a worker is told to measure, and where it belongs: the payload of a job `probe_step`.
    UnknownFact.
    """
    model = ModelSize(work.spec, work.parameters)
    evaluating = model.state_bytes
    return {
        "spec": work.spec.model_dump(mode="json"),
        "fields": {
            name: {
                "shape": list(one.shape),
                "dtype": one.dtype,
                "ragged": one.is_ragged,
                "rows": one.rows,
                "target_feature": one.target_feature,
            }
            for array, facts in work.arrays.items()
            for name, one in facts.arrays(array).items()
        },
        "spreads": {
            name: asdict(one)
            for array, facts in work.arrays.items()
            for name, one in facts.spreads(array).items()
        },
        "device": device.kind,
        "name": device.name,
        "batch_size": work.batch,
        "evaluation_batch_size": work.evaluation_batch,
        "profile": {
            "key": profile_key(work, device)._asdict(),
            "model_bytes": {
                "training": evaluating + model.gradients_bytes,
                "evaluating": evaluating,
            },
            "sample_bytes": work.sample_bytes,
        },
    }
