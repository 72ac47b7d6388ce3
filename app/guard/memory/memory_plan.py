"""The memory plan: what a run will take on its device and on its host, item by item."""

from dataclasses import dataclass, replace
from typing import Any

from app.guard.facts import DeviceFacts, HostFacts, known
from app.guard.memory.budget import Budget, Item
from app.guard.memory.items import CUDA_CONTEXT_BYTES, Held
from app.guard.memory.measured import Measured
from app.guard.memory.readers import Readers
from app.guard.memory.worker_pools import WorkerPools, worker_pools
from app.guard.memory.workload import Workload
from app.planning.imports import Imports
from app.planning.residency import (
    MIB,
    Memory,
    Need,
    Residency,
    memory_for_data,
    settle_residency,
)
from app.spec.data import ChunkedLoader, Loader

# While it is asked what lies beside the data, which hangs on it only in when a host unpacks.
NOT_SETTLED = Residency("stream", "", 0, 0, 0)


@dataclass(frozen=True)
class MemoryPlan:
    """On a CPU the device is the host, and `device` None."""

    host: Budget
    device: Budget | None
    data: Residency
    need: Need
    data_memory: Memory
    """What data may take on the device."""
    beside_bytes: int
    """What everything but the data takes there at its peak, and beside a GPU's context."""
    imports: Imports
    batch: int
    """Samples of a batch of the training."""
    assumed: tuple[str, ...]
    measured: Measured | None = None
    """What the step's items follow from, where one was measured."""
    pools: WorkerPools | None = None
    """Of the PyTorch loader."""

    @property
    def with_model(self) -> Budget:
        """Of the memory where weights, activations and data lie."""
        return self.device or self.host

    @property
    def fits(self) -> bool:
        """Whether everything has its place; what is not known to be there is enough for all."""
        budgets = [budget for budget in (self.host, self.device) if budget is not None]
        within = not any(budget.is_over for budget in budgets)
        return within and self.data.needed_bytes <= self.data_memory.limit_bytes

    def as_json(self) -> dict[str, Any]:
        """Bytes above the imports of the trainer."""
        streamed = self.data.kind == "stream"
        return {
            "host": self.host.as_json(),
            "device": self.device.as_json() if self.device else None,
            "residency": self.data.kind,
            "chunk_samples": self.data.chunk_samples if streamed else None,
            "assumed": list(self.assumed),
            "measured": self.measured.as_json() if self.measured else None,
        }


def memory_plan(
    work: Workload,
    device: DeviceFacts,
    measured: Measured | None = None,
    loader: Loader | None = None,
) -> MemoryPlan:
    """What a run takes on a device; UnknownFact while one of its sizes is not known.

    `measured`: one step, which counts where it tells of this spec and kind of device. `loader`: in
    place of the spec's, one that differs in its residency.
    """
    loader, free = loader or work.spec.data.loader, free_memory(device)
    held, on_gpu = _held(work, device, measured, loader), device.kind == "cuda"
    if on_gpu:
        precision = device.settled_precision(work.spec.runtime.precision)
        beside = held.beside_data_on_gpu(free, 2 if precision == "fp16-mixed" else 4)
    else:
        beside = held.beside_data_on_cpu(free)
    context = CUDA_CONTEXT_BYTES if on_gpu else 0
    beside_bytes = Budget(beside, None).peak_bytes - context
    data_memory = memory_for_data(max(0, free - context), beside_bytes, on_gpu=on_gpu)
    if isinstance(loader, ChunkedLoader):
        held = replace(held, data=settle_residency(loader, work.need, data_memory))
    host, on_device = _budgets(held, device, free, beside)
    return MemoryPlan(
        host,
        on_device,
        held.data,
        work.need,
        data_memory,
        beside_bytes,
        held.imports,
        work.batch,
        _assumed(held, on_gpu=on_gpu),
        held.measured,
        held.readers.pools,
    )


def _budgets(
    held: Held, device: DeviceFacts, free: int, beside: tuple[Item, ...]
) -> tuple[Budget, Budget | None]:
    """Of the host and of the GPU, with the data that is settled now."""
    if device.kind == "cuda":
        available = device.host.available_bytes
        host = held.beside_gpu(None if available is None else _beside_imports(device.host))
        return host, Budget((*beside, *held.of_data()), free)
    if held.data.kind == "resident":  # then what only readers take is over when all is built
        beside = held.beside_data_on_cpu(free)
    return Budget((*beside, *held.of_data(touched_only=True)), free), None


def _held(work: Workload, device: DeviceFacts, measured: Measured | None, loader: Loader) -> Held:
    """With data that is not settled, unless the PyTorch loader brings it."""
    pools, data = None, NOT_SETTLED
    if not isinstance(loader, ChunkedLoader):
        pools = worker_pools(work, loader, device.host)
        data = _loaded(pools)
    if measured is not None and not (
        measured.device == device.kind and measured.holds_for(work.spec)
    ):
        measured = None
    readers = Readers(work, device.host.cores, pools)
    return Held(work, work.model, data, measured, readers, device.host.imports)


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


def _assumed(held: Held, *, on_gpu: bool) -> tuple[str, ...]:
    data, unmeasured = held.data, []
    if on_gpu:
        formulas = "the context, and the host's staging" if held.measured else "the GPU's figures"
        unmeasured = [f"By formulas that were not measured on a GPU yet: {formulas}."]
    return (
        f"{'data in batches' if held.readers.pools else f'{data.kind} data'}: {data.why}.",
        _activations_by(held.measured),
        "Bytes above those that the trainer's imports take, "
        f"{held.imports.trainer // MIB} MiB, which the host's budget does not have any more.",
        *unmeasured,
    )


def _activations_by(measured: Measured | None) -> str:
    if measured is None:
        return "Activations by coefficients that were measured over shapes of this recipe."
    who = f"{measured.worker} at {measured.when}"
    if measured.training is None:
        return (
            f"Activations at least so large that the step which ran out of memory on {who} "
            "takes more than is free: they may be larger still."
        )
    (small, _), (large, _) = measured.training
    return (
        f"Activations and libraries as measured on {who}, in real steps with {small} and "
        f"{large} samples; for another batch by the straight line through both."
    )


def probe_order(work: Workload, device: DeviceFacts) -> dict[str, Any]:
    """What a worker is told to measure: the payload of a job `probe_step`."""
    return {
        "spec": work.spec.model_dump(mode="json"),
        "fields": {
            name: {"shape": list(a.shape), "dtype": a.dtype, "ragged": a.lengths is not None}
            for name, a in work.arrays.items()
        },
        "device": device.kind,
        "name": device.name,
        "batch_size": work.batch,
        "evaluation_batch_size": work.evaluation_batch,
    }
