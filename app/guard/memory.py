"""The memory plan: what a run will take on its device and on its host, item by item."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from app.guard.derived import as_read, device_of, precision_of, sizes_of
from app.guard.facts import (
    DatasetFacts,
    DeviceFacts,
    Facts,
    FieldFacts,
    HostFacts,
    UnknownFact,
    known,
)
from app.guard.measured import Measured
from app.guard.memory_model import SequenceSize
from app.guard.memory_reading import Reading
from app.guard.memory_room import PHASES, STEPS, Item, Room
from app.guard.memory_step import Reckon, as_measured, compiler_bytes, on_cpu, on_cuda
from app.guard.worker_pools import WorkerPools, worker_pools_of
from app.planning.arithmetic import PartSizes, evaluation_batch, resolved_shuffle
from app.planning.imports import Imports
from app.planning.residency import (
    MIB,
    PIECE_BYTES,
    PLACE_BYTES,
    Memory,
    Need,
    Residency,
    memory_for_data,
    settle_residency,
)
from app.spec.data import ChunkedLoader, Loader
from app.spec.run import RunSpec

# Not measured on a GPU yet: the context that every process has on the device, and what PyTorch and
# CUDA's libraries take on the host.
CUDA_CONTEXT_BYTES, CUDA_HOST_BYTES = 512 * MIB, 1024 * MIB
# While it is asked what lies beside the data, which hangs on it only in when a host unpacks.
NOT_SETTLED = Residency("stream", "", 0, 0, 0)


@dataclass(frozen=True)
class MemoryPlan:
    """On a CPU the device is the host, and `device` None."""

    host: Room
    device: Room | None
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
    def model_room(self) -> Room:
        """Where weights, activations and data lie."""
        return self.device or self.host

    @property
    def fits(self) -> bool:
        """Whether everything has its place; a budget that was not said has room for all."""
        rooms = [room for room in (self.host, self.device) if room is not None]
        within = all(r.budget_bytes is None or r.peak_bytes <= r.budget_bytes for r in rooms)
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


# Several rules ask for the plan of one spec in turn; a tuple is replaced as a whole, so threads
# that judge different specs at worst make a plan twice.
_latest: tuple[RunSpec, Facts, MemoryPlan] | None = None


def memory_plan(spec: RunSpec, facts: Facts) -> MemoryPlan:
    """Of the device that the run would get; UnknownFact while one of its sizes is not known."""
    global _latest
    latest = _latest
    if latest is not None and latest[0] is spec and latest[1] is facts:
        return latest[2]
    plan = _plan(spec, facts)
    _latest = spec, facts, plan
    return plan


def _plan(spec: RunSpec, facts: Facts) -> MemoryPlan:
    device, dataset, sizes = device_of(spec, facts), as_read(spec, facts), sizes_of(spec, facts)
    loader, arrays = spec.data.loader, fields_of(spec, dataset)
    need, free = need_of(spec, dataset, sizes, loader), free_memory(device)
    sample_bytes = sum(array.sample_bytes for array in arrays)
    pools: WorkerPools | None = None
    data = NOT_SETTLED
    if not isinstance(loader, ChunkedLoader):
        pools = worker_pools_of(spec, loader, sizes, device, arrays)
        data = loaded(pools)
    model, measured = model_of(spec, dataset), facts.measured
    if measured is not None and not (measured.device == device.kind and measured.holds_for(spec)):
        measured = None
    samples, wanted = sizes.training + sum(need.held_out), spec.data.standardize
    standardizes = wanted.inputs or wanted.targets
    reading = Reading(arrays, samples, device.host.cores, pools, standardizes)
    imports, batches = device.host.imports, _batches(spec, sizes)
    run = _Run(spec, *batches, sample_bytes, need, data, model, measured, pools, reading, imports)
    on_gpu = device.kind == "cuda"
    element_bytes = 2 if on_gpu and precision_of(spec, facts) == "fp16-mixed" else 4
    beside = _beside_on_gpu(run, free, element_bytes) if on_gpu else _beside_on_cpu(run, free)
    context = CUDA_CONTEXT_BYTES if on_gpu else 0
    beside_bytes = Room(beside, None).peak_bytes - context
    data_memory = memory_for_data(max(0, free - context), beside_bytes, on_gpu=on_gpu)
    if isinstance(loader, ChunkedLoader):
        data = settle_residency(loader, need, data_memory)
        run = replace(run, data=data)
    settled = data, need, data_memory, beside_bytes, imports, batches[0]
    if not on_gpu:
        room = Room((*_beside_on_cpu(run, free), *run.data_items(touched_only=True)), free)
        return MemoryPlan(room, None, *settled, run.assumed(), measured, pools)
    on_device = Room((*beside, *run.data_items()), free)
    is_unknown = device.host.available_bytes is None
    host = _cuda_host(run, None if is_unknown else _beside_imports(device.host))
    formulas = "the context, and the host's staging" if measured else "the GPU's figures"
    assumed = (*run.assumed(), f"By formulas that were not measured on a GPU yet: {formulas}.")
    return MemoryPlan(host, on_device, *settled, assumed, measured, pools)


def loaded(pools: WorkerPools) -> Residency:
    """Batches come to the device one by one: none of its memory is kept for data."""
    who = f"up to {pools.processes} processes" if pools.processes else "the trainer itself"
    return Residency("batches", f"read by {who} as the PyTorch loader asks", 0, 0, 0)


def planned_memory(spec: RunSpec, facts: Facts) -> dict[str, Any] | None:
    """The plan as JSON; None while a fact for it is missing, which the rules of memory name."""
    try:
        return memory_plan(spec, facts).as_json()
    except UnknownFact:
        return None


def free_memory(device: DeviceFacts) -> int:
    """Bytes that are free where the model and the data will lie, the imports there; UnknownFact."""
    if device.kind == "cpu":
        return _beside_imports(device.host)
    return known(device.free_memory_bytes, f"the free memory of {device.name}")


def _beside_imports(host: HostFacts) -> int:
    available = known(host.available_bytes, "the available memory of the host")
    return max(0, available - host.imports.trainer)


def need_of(spec: RunSpec, dataset: DatasetFacts, sizes: PartSizes, loader: Loader) -> Need:
    """What the trainer will find that the data comes to; UnknownFact."""
    arrays = fields_of(spec, dataset)
    sample_bytes = sum(array.kept_bytes for array in arrays)
    kind, group = order_of(spec, dataset, loader)
    together = group if kind == "block" and group != "auto" else 1
    held_out = tuple(count for count in (sizes.validation, sizes.test) if count)
    samples, parts = sizes.training + sum(held_out), 1 + len(held_out)
    saved = sum(array.saved_bytes(samples, parts) for array in arrays)
    longest = sum(array.longest_bytes for array in arrays)
    return Need(sample_bytes, together, sizes.training, held_out, saved, longest)


def order_of(
    spec: RunSpec, dataset: DatasetFacts, loader: Loader
) -> tuple[str, int | Literal["auto"]]:
    """(shuffle, shuffle_group) as the trainer settles them; UnknownFact.

    By what its samples hold: the file is smaller where it is compressed, and larger where it has
    other arrays beside.
    """
    samples = known(dataset.samples, f"the samples of the dataset {dataset.name}")
    sample_bytes = sum(array.kept_bytes for array in fields_of(spec, dataset))
    return resolved_shuffle(loader, samples * sample_bytes)


def fields_of(spec: RunSpec, dataset: DatasetFacts) -> list[FieldFacts]:
    """The arrays that the run reads; UnknownFact for one that the dataset does not have."""
    names = dict.fromkeys((*spec.data.inputs, *spec.data.targets))
    return [_field(dataset, name) for name in names]


def _field(dataset: DatasetFacts, name: str) -> FieldFacts:
    return known(dataset.fields.get(name), f"the array {name!r} of {dataset.name}")


def model_of(spec: RunSpec, dataset: DatasetFacts) -> SequenceSize:
    """The sizes of the model; UnknownFact where the arrays are not such as the recipe takes."""
    shape = _field(dataset, spec.data.inputs[0]).shape
    window, features = known(
        shape if len(shape) == 2 else None, "a window and features in the inputs"
    )
    window += -window % spec.recipe.patch  # what a ragged sample leaves of its last is filled up
    return SequenceSize(spec, window, features, _field(dataset, spec.data.targets[0]).shape)


def probe_order(spec: RunSpec, facts: Facts) -> dict[str, Any]:
    """What a worker is told to measure: the payload of a job `probe_step`; UnknownFact."""
    device, dataset = device_of(spec, facts), as_read(spec, facts)
    names = dict.fromkeys((*spec.data.inputs, *spec.data.targets))
    arrays = zip(names, fields_of(spec, dataset), strict=True)
    batch, looked_at = _batches(spec, sizes_of(spec, facts))
    return {
        "spec": spec.model_dump(mode="json"),
        "fields": {
            name: {"shape": list(a.shape), "dtype": a.dtype, "ragged": a.lengths is not None}
            for name, a in arrays
        },
        "device": device.kind,
        "name": device.name,
        "batch_size": batch,
        "evaluation_batch_size": looked_at,
    }


def _batches(spec: RunSpec, sizes: PartSizes) -> tuple[int, int]:
    """Samples of the largest batch of the training, and of an evaluation."""
    looked_at = evaluation_batch(spec.evaluation, spec.training)
    held_out = max(sizes.validation, sizes.test)
    return min(spec.training.batch_size, sizes.training), min(looked_at, held_out)


@dataclass(frozen=True)
class _Run:
    """What the items are made of."""

    spec: RunSpec
    batch: int
    looked_at: int
    """Samples of the largest batch of an evaluation."""
    sample_bytes: int
    """Of a sample in a batch."""
    need: Need
    data: Residency
    model: SequenceSize
    measured: Measured | None
    pools: WorkerPools | None
    reading: Reading
    imports: Imports

    def reckon_on_cpu(self) -> Reckon:
        return on_cpu(self.model, self.imports, self.sample_bytes)

    def model_items(self) -> Iterable[Item]:
        model = self.model
        yield Item("weights", model.weights_bytes)
        yield Item("gradients", model.gradients_bytes, ("training",))
        yield Item("optimizer", model.optimizer_bytes, STEPS)

    def step_items(self, planned: Reckon, free: int) -> Iterable[Item]:
        """Of the batches and of what is made of them: `planned`, unless it was measured."""
        sample_bytes, reckon = self.sample_bytes, planned
        if self.measured is not None:
            reckon = as_measured(self.measured, self.model, sample_bytes, free, planned)
        step = reckon(self.batch, self.looked_at)
        yield from step.fixed
        yield Item("batch", self.batch * sample_bytes, ("training",))
        yield Item("activations", step.activations, ("training",))
        yield Item("accumulation", step.accumulating, ("training",))
        batch = self.looked_at * sample_bytes
        yield Item("evaluation_batch", batch + step.evaluation, ("evaluating",))
        if self.spec.runtime.cuda_graphs == "always":  # auto looks whether there is room for it
            places = self.spec.training.gradient_accumulation_steps * self.batch * sample_bytes
            graph = places + step.activations + self.model.gradients_bytes
            yield Item("recorded_step", graph, STEPS)

    def data_items(self, *, touched_only: bool = False) -> Iterable[Item]:
        """Resident, or in slots, which are there from the beginning.

        `touched_only`: room of a slot that no sample ever fills costs nothing, as on a host.
        """
        need, data = self.need, self.data
        if data.kind == "resident":
            yield Item("resident_data", need.resident_bytes)
        if data.kind != "stream":
            return
        for name, chunk, parts in (
            ("chunk_slots", data.chunk_samples, (need.train_samples,)),
            ("evaluation_slots", data.evaluation_chunk_samples, need.held_out),
        ):
            whole = sum(parts) * need.slot_sample_bytes if touched_only else None
            slots = need.slots_bytes(chunk, parts)
            yield Item(name, slots if whole is None else min(slots, whole))

    def host_items(self, *, on_gpu: bool) -> Iterable[Item]:
        """On the host, whatever the device: of reading, and copies of the state."""
        yield from self.reading.items(self.need, self.data)
        if self.pools is not None:
            yield from self.pools.items(used_there=not on_gpu)
        state = self.model.weights_bytes + self.model.optimizer_bytes
        yield Item("checkpoint_snapshot", state, STEPS)
        # At a stop a GPU's state is copied besides; on a CPU it is written from where it lies.
        if on_gpu and self.need.held_out and self.spec.checkpoint.keep_best:
            yield Item("waiting_best", state, ("checkpointing",))

    def assumed(self) -> tuple[str, ...]:
        return (
            f"{'data in batches' if self.pools else f'{self.data.kind} data'}: {self.data.why}.",
            self._activations_by(),
            "Bytes above those that the trainer's imports take, "
            f"{self.imports.trainer // MIB} MiB, which the host's budget does not have any more.",
        )

    def _activations_by(self) -> str:
        measured = self.measured
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


def _beside_on_cpu(run: _Run, free: int) -> tuple[Item, ...]:
    return (
        *run.model_items(),
        *run.step_items(run.reckon_on_cpu(), free),
        *run.host_items(on_gpu=False),
    )


def _beside_on_gpu(run: _Run, free: int, element_bytes: int) -> tuple[Item, ...]:
    return (
        Item("context", CUDA_CONTEXT_BYTES),
        *run.model_items(),
        *run.step_items(on_cuda(run.model, element_bytes), free - CUDA_CONTEXT_BYTES),
        # The batch before is let go when the next one is there.
        Item("next_batch", run.pools.batch_bytes if run.pools else 0, ("training",)),
    )


def _cuda_host(run: _Run, free: int | None) -> Room:
    libraries, compiler = CUDA_HOST_BYTES, compiler_bytes(run.spec, run.imports)
    if run.measured is not None and run.measured.training is not None:
        libraries, compiler = run.measured.host_bytes, 0
    items = (
        Item("libraries", libraries),
        Item("compiler", compiler, STEPS),
        *_staged(run),
        *run.host_items(on_gpu=True),
    )
    return Room(items, free)


def _staged(run: _Run) -> Iterable[Item]:
    """Of the host, what chunks and resident data go through on their way to a GPU."""
    if run.pools is not None:
        return
    resident = run.data.kind == "resident"
    streams = 1 if resident else 1 + len(run.need.held_out)
    # PyTorch rounds page-locked memory up to a power of two.
    phases = ("building",) if resident else PHASES
    yield Item("staging", streams * 2 * 2 * PIECE_BYTES, phases)
    yield Item("page_locked_order", PLACE_BYTES * run.need.train_samples)
