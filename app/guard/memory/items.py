"""The items of a memory plan: what is held of the host and of a GPU, phase by phase."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.guard.memory.budget import PHASES, STEPS, Budget, Item
from app.guard.memory.measured import Measured
from app.guard.memory.model_size import SequenceSize
from app.guard.memory.readers import Readers
from app.guard.memory.step import Reckon, as_measured, compiler_bytes, on_cpu, on_cuda
from app.guard.memory.workload import Workload
from app.planning.imports import Imports
from app.planning.residency import MIB, PIECE_BYTES, PLACE_BYTES, Residency

# Not measured on a GPU yet: the context that every process has on the device, and what PyTorch and
# CUDA's libraries take on the host.
CUDA_CONTEXT_BYTES, CUDA_HOST_BYTES = 512 * MIB, 1024 * MIB


@dataclass(frozen=True)
class Held:
    """What a run holds on a device and its host, by what it is settled to."""

    work: Workload
    model: SequenceSize
    data: Residency
    measured: Measured | None
    readers: Readers
    imports: Imports

    def beside_data_on_cpu(self, free: int) -> tuple[Item, ...]:
        return (
            *self._of_model(),
            *self._of_step(on_cpu(self.model, self.imports, self.work.sample_bytes), free),
            *self._of_host(on_gpu=False),
        )

    def beside_data_on_gpu(self, free: int, element_bytes: int) -> tuple[Item, ...]:
        planned = on_cuda(self.model, element_bytes)
        batch_bytes = self.readers.pools.batch_bytes if self.readers.pools else 0
        return (
            Item("context", CUDA_CONTEXT_BYTES),
            *self._of_model(),
            *self._of_step(planned, free - CUDA_CONTEXT_BYTES),
            # The batch before is let go when the next one is there.
            Item("next_batch", batch_bytes, ("training",)),
        )

    def beside_gpu(self, available: int | None) -> Budget:
        """On the host of the GPU that it trains on."""
        libraries, compiler = CUDA_HOST_BYTES, compiler_bytes(self.work.spec, self.imports)
        if self.measured is not None and self.measured.training is not None:
            libraries, compiler = self.measured.host_bytes, 0
        items = (
            Item("libraries", libraries),
            Item("compiler", compiler, STEPS),
            *self._staged(),
            *self._of_host(on_gpu=True),
        )
        return Budget(items, available)

    def of_data(self, *, touched_only: bool = False) -> Iterable[Item]:
        """Resident, or in slots, which are there from the beginning.

        `touched_only`: what no sample ever fills of a slot costs nothing, as on a host.
        """
        need, data = self.work.need, self.data
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

    def _of_model(self) -> Iterable[Item]:
        model = self.model
        yield Item("weights", model.weights_bytes)
        yield Item("gradients", model.gradients_bytes, ("training",))
        yield Item("optimizer", model.optimizer_bytes, STEPS)

    def _of_step(self, planned: Reckon, free: int) -> Iterable[Item]:
        """Of the batches and of what is made of them: `planned`, unless it was measured."""
        work, sample_bytes, reckon = self.work, self.work.sample_bytes, planned
        if self.measured is not None:
            reckon = as_measured(self.measured, self.model, sample_bytes, free, planned)
        step = reckon(work.batch, work.evaluation_batch)
        yield from step.fixed
        yield Item("batch", work.batch * sample_bytes, ("training",))
        yield Item("activations", step.activations, ("training",))
        yield Item("accumulation", step.accumulating, ("training",))
        batch = work.evaluation_batch * sample_bytes
        yield Item("evaluation_batch", batch + step.evaluation, ("evaluating",))
        if work.spec.runtime.cuda_graphs == "always":  # auto looks whether there is memory for it
            places = work.spec.training.gradient_accumulation_steps * work.batch * sample_bytes
            graph = places + step.activations + self.model.gradients_bytes
            yield Item("recorded_step", graph, STEPS)

    def _of_host(self, *, on_gpu: bool) -> Iterable[Item]:
        """On the host, whatever the device: of reading, and copies of the state."""
        yield from self.readers.items(self.data)
        if self.readers.pools is not None:
            yield from self.readers.pools.items(used_there=not on_gpu)
        state = self.model.weights_bytes + self.model.optimizer_bytes
        yield Item("checkpoint_snapshot", state, STEPS)
        # At a stop a GPU's state is copied besides; on a CPU it is written from where it lies.
        if on_gpu and self.work.need.held_out and self.work.spec.checkpoint.keep_best:
            yield Item("waiting_best", state, ("checkpointing",))

    def _staged(self) -> Iterable[Item]:
        """Of the host, what chunks and resident data go through on their way to a GPU."""
        if self.readers.pools is not None:
            return
        resident, need = self.data.kind == "resident", self.work.need
        streams = 1 if resident else 1 + len(need.held_out)
        # PyTorch rounds page-locked memory up to a power of two.
        phases = ("building",) if resident else PHASES
        yield Item("staging", streams * 2 * 2 * PIECE_BYTES, phases)
        yield Item("page_locked_order", PLACE_BYTES * need.train_samples)
