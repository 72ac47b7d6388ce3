"""The memory plan: what a run will take on its device and on its host, item by item."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.guard.derived import dataset_of, device_of, precision_of, sizes_of
from app.guard.facts import DatasetFacts, DeviceFacts, Facts, FieldFacts, UnknownFact, known
from app.guard.memory_model import (
    EVALUATION_ON_CPU,
    EVALUATION_ON_CUDA,
    TRAINING_ON_CPU,
    TRAINING_ON_CUDA,
    SequenceSize,
)
from app.spec.arithmetic import PartSizes, resolved_shuffle
from app.spec.data import ChunkedLoader
from app.spec.residency import (
    MIB,
    PIECE_BYTES,
    PLACE_BYTES,
    Memory,
    Need,
    Residency,
    memory_for_data,
    settle_residency,
)
from app.spec.run import RunSpec

PHASES = ("building", "training", "evaluating", "checkpointing")
STEPS = ("training", "evaluating", "checkpointing")

# Measured above the imports with a model of 40,000 weights on 13 MB: what PyTorch loads with its
# first optimizer (72 MiB), and what its kernels and threads hold afterwards.
LIBRARIES_BUILDING, LIBRARIES_TRAINING = 80 * MIB, 105 * MIB
# What the heap keeps of the copies that oneDNN makes of the weights in its own order, measured with
# 19 to 66 million weights: 0.3 to 0.9 of their bytes.
WEIGHTS_REARRANGED = 0.6
# Blocks of float64 of the statistics, of which three are there at once.
STATISTICS_BYTES = 3 * 4 * MIB
# Not measured on a GPU yet: the context that every process has on the device, the workspaces of
# cuBLAS and cuDNN, and what the CUDA libraries take on the host.
CUDA_CONTEXT_BYTES, CUDA_WORKSPACE_BYTES, CUDA_HOST_BYTES = 512 * MIB, 96 * MIB, 1024 * MIB
# The epoch's permutation, and the raw numbers and the sorted rows while it is made.
ORDER_COPIES = 4


@dataclass(frozen=True)
class Item:
    """Something that is held during some phases."""

    name: str
    bytes: int
    phases: tuple[str, ...] = PHASES


@dataclass(frozen=True)
class Room:
    """One memory: what is in it, and how much may be; a budget of None was not said."""

    items: tuple[Item, ...]
    budget_bytes: int | None

    @property
    def peaks(self) -> dict[str, int]:
        """The sum of what is held in each phase."""
        return {
            phase: sum(item.bytes for item in self.items if phase in item.phases)
            for phase in PHASES
        }

    @property
    def peak_bytes(self) -> int:
        """The most of any phase: what one phase gives back, the next takes again."""
        return max(self.peaks.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "planned_bytes": self.peak_bytes,
            "budget_bytes": self.budget_bytes,
            "phases": self.peaks,
            "items": {item.name: item.bytes for item in self.items if item.bytes},
        }


@dataclass(frozen=True)
class MemoryPlan:
    """On a CPU the device is the host, and `device` None."""

    host: Room
    device: Room | None
    data: Residency
    need: Need
    data_memory: Memory
    """What data may take on the device."""
    assumed: tuple[str, ...]

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
    device, dataset, sizes = device_of(spec, facts), dataset_of(spec, facts), sizes_of(spec, facts)
    loader = spec.data.loader
    if not isinstance(loader, ChunkedLoader):
        raise UnknownFact("what the PyTorch loader takes")
    need = need_of(spec, dataset, sizes, loader)
    free = free_memory(device)
    data_memory = memory_for_data(free)
    data = settle_residency(loader, need, data_memory)
    model = model_of(spec, dataset)
    run = _Run(spec, dataset, sizes, need, data, model)
    if device.kind == "cpu":
        return MemoryPlan(_host_as_device(run, free), None, data, need, data_memory, run.assumed())
    half = precision_of(spec, facts) == "fp16-mixed"
    on_device = _cuda_device(run, free, 2 if half else 4)
    host = _cuda_host(run, device.host.available_bytes)
    assumed = (*run.assumed(), "The GPU's figures follow formulas; not measured on a GPU yet.")
    return MemoryPlan(host, on_device, data, need, data_memory, assumed)


def planned_memory(spec: RunSpec, facts: Facts) -> dict[str, Any] | None:
    """The plan as JSON; None while a fact for it is missing, which the rules of memory name."""
    try:
        return memory_plan(spec, facts).as_json()
    except UnknownFact:
        return None


def free_memory(device: DeviceFacts) -> int:
    """Bytes that are free where the model and the data will lie; UnknownFact."""
    if device.kind == "cpu":
        return known(device.host.available_bytes, "the available memory of the host")
    return known(device.free_memory_bytes, f"the free memory of {device.name}")


def need_of(spec: RunSpec, dataset: DatasetFacts, sizes: PartSizes, loader: ChunkedLoader) -> Need:
    """What the trainer will find that the data comes to; UnknownFact."""
    sample_bytes = sum(array.sample_bytes for array in fields_of(spec, dataset))
    size = known(dataset.size_bytes, f"the size of {dataset.name}")
    kind, group = resolved_shuffle(loader, size)
    together = group if kind == "block" and group != "auto" else 1
    held_out = tuple(count for count in (sizes.validation, sizes.test) if count)
    return Need(sample_bytes, together, sizes.training, held_out)


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
    return SequenceSize(spec, window, features, _field(dataset, spec.data.targets[0]).shape)


def evaluation_batch(spec: RunSpec) -> int:
    """Samples of a batch of evaluation."""
    size = spec.evaluation.batch_size
    return spec.training.batch_size if size == "auto" else size


@dataclass(frozen=True)
class _Run:
    """What the items are made of."""

    spec: RunSpec
    dataset: DatasetFacts
    sizes: PartSizes
    need: Need
    data: Residency
    model: SequenceSize

    @property
    def batch(self) -> int:
        return min(self.spec.training.batch_size, self.sizes.training)

    @property
    def looked_at(self) -> int:
        """Samples of the largest batch of an evaluation."""
        held_out = max(self.sizes.validation, self.sizes.test)
        return min(evaluation_batch(self.spec), held_out)

    def model_items(self) -> Iterable[Item]:
        model = self.model
        yield Item("weights", model.weights_bytes)
        yield Item("gradients", model.gradients_bytes, ("training",))
        yield Item("optimizer", model.optimizer_bytes, STEPS)

    def batch_items(self, activations: int, evaluation: int) -> Iterable[Item]:
        sample_bytes = self.need.sample_bytes
        yield Item("batch", self.batch * sample_bytes, ("training",))
        yield Item("activations", activations, ("training",))
        batch = self.looked_at * sample_bytes
        yield Item("evaluation_batch", batch + evaluation, ("evaluating",))

    def data_items(self, *, touched_only: bool = False) -> Iterable[Item]:
        """Resident, or in slots, which are there from the beginning.

        `touched_only`: room of a slot that no sample ever fills costs nothing, as on a host.
        """
        need, data = self.need, self.data
        if data.kind == "resident":
            yield Item("resident_data", need.resident_bytes)
            return
        for name, chunk, parts in (
            ("chunk_slots", data.chunk_samples, (need.train_samples,)),
            ("evaluation_slots", data.evaluation_chunk_samples, need.held_out),
        ):
            whole = sum(parts) * need.slot_sample_bytes if touched_only else None
            slots = need.slots_bytes(chunk, parts)
            yield Item(name, slots if whole is None else min(slots, whole))

    def reading_items(self) -> Iterable[Item]:
        """On the host, whatever the device."""
        data, train = self.need.data_bytes, self.need.train_samples
        wanted = self.spec.data.standardize
        if wanted.inputs or wanted.targets:
            piece = min(PIECE_BYTES, data)
            yield Item("statistics", piece + STATISTICS_BYTES, ("building",))
        yield Item("order", ORDER_COPIES * PLACE_BYTES * train, ("training",))

    def snapshot_item(self) -> Item:
        """A copy of the state, and the file that is made of its largest part, twice over."""
        model, optimizer = self.model.weights_bytes, self.model.optimizer_bytes
        copies = model + optimizer + 2 * max(model, optimizer)
        return Item("checkpoint_snapshot", copies, ("checkpointing",))

    def assumed(self) -> tuple[str, ...]:
        return (
            f"{self.data.kind} data: {self.data.why}.",
            "Activations by coefficients that were measured over shapes of this recipe.",
            "Bytes above those that the trainer's imports take.",
        )


def _host_as_device(run: _Run, free: int) -> Room:
    model = run.model
    evaluation = model.activations_bytes(run.looked_at, EVALUATION_ON_CPU)
    items = (
        Item("libraries", LIBRARIES_BUILDING),
        Item("kernels", LIBRARIES_TRAINING - LIBRARIES_BUILDING, STEPS),
        *run.model_items(),
        *run.batch_items(model.activations_bytes(run.batch, TRAINING_ON_CPU), evaluation),
        Item("rearranged_weights", int(WEIGHTS_REARRANGED * model.weights_bytes), STEPS),
        *run.data_items(touched_only=True),
        *run.reading_items(),
        run.snapshot_item(),
    )
    return Room(items, free)


def _cuda_device(run: _Run, free: int, element_bytes: int) -> Room:
    model = run.model
    evaluation = model.activations_bytes(run.looked_at, EVALUATION_ON_CUDA, element_bytes)
    training = model.activations_bytes(run.batch, TRAINING_ON_CUDA, element_bytes)
    flat = model.encoder_parameters * 2 if element_bytes == 2 else 0
    items = (
        Item("context", CUDA_CONTEXT_BYTES),
        Item("workspace", CUDA_WORKSPACE_BYTES, STEPS),
        *run.model_items(),
        Item("fp16_weights", flat, STEPS),
        *run.batch_items(training, evaluation),
        *run.data_items(),
    )
    return Room(items, free)


def _cuda_host(run: _Run, available: int | None) -> Room:
    staging, places = run.data.kind, run.need.train_samples
    streams = 1 if staging == "resident" else 1 + len(run.need.held_out)
    phases: tuple[Literal["building"], ...] | tuple[str, ...] = (
        ("building",) if staging == "resident" else PHASES
    )
    items = (
        Item("libraries", LIBRARIES_TRAINING + CUDA_HOST_BYTES),
        # PyTorch rounds page-locked memory up to a power of two.
        Item("staging", streams * 2 * 2 * PIECE_BYTES, phases),
        Item("page_locked_order", PLACE_BYTES * places),
        *run.reading_items(),
        run.snapshot_item(),
    )
    return Room(items, available)


def compared(plan: Mapping[str, Any] | None, peak: Mapping[str, Any] | None) -> dict[str, Any]:
    """The plan's peak beside the one that was measured, where the model and the data were.

    `plan` is a plan's JSON, `peak` the trainer's `peak_memory`; what is not known is null.
    """
    on_device = peak is not None and peak.get("device_bytes") is not None
    room = (plan or {}).get("device" if on_device else "host")
    measured = (peak or {}).get("device_bytes" if on_device else "host_bytes")
    planned = room["planned_bytes"] if room else None
    if on_device and room:
        planned -= room["items"]["context"]  # which is not PyTorch's
    ratio = planned / measured if planned is not None and measured else None
    return {"planned_bytes": planned, "measured_bytes": measured, "ratio": ratio, "plan": plan}
