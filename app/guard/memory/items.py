"""The items of a memory plan: what is held of the host and of a GPU, phase by phase."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from app.guard.memory.budget import PHASES, STEPS, Budget, Item
from app.guard.memory.model_size import ModelSize
from app.guard.memory.readers import Readers
from app.guard.memory.workload import Workload
from app.planning.imports import Imports
from app.planning.profile import Estimate, Profile
from app.planning.residency import MIB, PIECE_BYTES, PLACE_BYTES, Residency

# Not measured on a GPU yet: the context that every process has on the device.
CUDA_CONTEXT_BYTES = 512 * MIB
# Like runs take not quite the same: where the heap's blocks lie differs (docs/memory.md). A probe
# makes few steps, after which the heap has not its holes yet.
SPREAD_OF_RUNS, SPREAD_OF_PROBES, LEAST_SPREAD_BYTES = 10, 25, 16 * MIB


@dataclass(frozen=True)
class Held:
    """What a run holds on a device and its host, by what it is settled to."""

    work: Workload
    data: Residency
    profile: Profile | None
    readers: Readers
    imports: Imports

    @cached_property
    def model(self) -> ModelSize:
        """As the recipe says, or as it was built."""
        parameters = self.work.parameters
        if parameters is None and self.profile is not None:
            parameters = self.profile.parameters
        return ModelSize(self.work.spec, parameters)

    @cached_property
    def training(self) -> Estimate | None:
        """Of a training step; None where nobody has measured one."""
        if self.profile is None:
            return None
        several = self.work.spec.training.gradient_accumulation_steps > 1
        gradients = self.model.gradients_bytes
        return self.profile.training(self.work.batch, gradients, accumulated=several)

    @cached_property
    def evaluating(self) -> Estimate | None:
        """Of an evaluation. Where none was measured, no more than a training step of its batch."""
        batch = self.work.evaluation_batch
        if self.profile is None or not batch:
            return None
        if (found := self.profile.evaluating(batch)) is not None and found.planned is not None:
            return found
        step = self.profile.training(batch, 0, accumulated=False)
        if step is None or step.planned is None:
            return found
        how = f"no more than a training step of its batch, {step.how}"
        return Estimate(found.least if found else 0, step.planned, how, step.by_probe)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What nobody has measured."""
        estimates = {"activations": self.training}
        if self.work.evaluation_batch:
            estimates["evaluation"] = self.evaluating
        none = [n for n, one in estimates.items() if one is None or one.planned is None]
        return (*(["weights"] if self.model.parameters is None and none else []), *none)

    def beside_data_on_cpu(self) -> tuple[Item, ...]:
        return (
            *self._of_model(),
            *self._of_step(on_gpu=False),
            *self.of_host(on_gpu=False),
            Item("tables", self.work.table_bytes),
        )

    def beside_data_on_gpu(self) -> tuple[Item, ...]:
        batch_bytes = self.readers.pools.batch_bytes if self.readers.pools else 0
        return (
            Item("context", CUDA_CONTEXT_BYTES),
            *self._of_model(),
            *self._of_step(on_gpu=True),
            Item("tables", self.work.table_bytes),
            # The batch before is let go when the next one is there.
            Item("next_batch", batch_bytes, ("training",)),
        )

    def beside_gpu(self, available: int | None) -> Budget:
        """On the host of the GPU that it trains on."""
        measured = None if self.profile is None else self.profile.host_bytes
        if measured is None:
            own = [Item("compiler", self._compiler_bytes, STEPS)]
        else:
            spread = measured * SPREAD_OF_RUNS // 100
            own = [Item("libraries", measured), Item("host_spread", spread, least=0)]
        # They go to the GPU when all of them are there.
        tables = Item("tables", self.work.table_bytes, ("building",))
        items = (*own, *self._staged(), *self.of_host(on_gpu=True), tables)
        return Budget(items, available, is_known=measured is not None)

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

    def of_host(self, *, on_gpu: bool) -> Iterable[Item]:
        """On the host, whatever the device: of reading, and copies of the state."""
        yield from self.readers.items(self.data)
        # While they are made or read, and kept for the next run, there are two of them.
        yield Item("copy_of_tables", self.work.table_bytes, ("building",))
        if self.readers.pools is not None:
            yield from self.readers.pools.items(used_there=not on_gpu)
        state = self.model.state_bytes
        yield Item("checkpoint_snapshot", state, STEPS)
        # At a stop a GPU's state is copied besides; on a CPU it is written from where it lies.
        if on_gpu and self.work.need.held_out and self.work.spec.checkpoint.keep_best:
            yield Item("waiting_best", state, ("checkpointing",))

    def _of_model(self) -> Iterable[Item]:
        model = self.model
        yield Item("weights", model.weights_bytes)
        yield Item("average", model.average_bytes)
        yield Item("gradients", model.gradients_bytes, ("training",))
        yield Item("optimizer", model.optimizer_bytes, STEPS)

    def _of_step(self, *, on_gpu: bool) -> Iterable[Item]:
        """Of the batches and of what is made of them, libraries included."""
        work, model = self.work, self.model
        yield Item("batch", work.batch * work.sample_bytes, ("training",))
        batch_bytes = work.evaluation_batch * work.sample_bytes
        yield Item("evaluation_batch", batch_bytes, ("evaluating",))
        if (step := self.training) is not None:
            exact = model.state_bytes + model.gradients_bytes
            yield from _estimated("activations", step, exact, "training")
        elif not on_gpu:
            yield Item("compiler", self._compiler_bytes, STEPS)
        if (evaluation := self.evaluating) is not None:
            yield from _estimated("evaluation", evaluation, model.state_bytes, "evaluating")

    @property
    def _compiler_bytes(self) -> int:
        """On the host, whatever the device, where no step was measured with it."""
        return 0 if self.work.spec.runtime.compile.mode == "none" else self.imports.compiler

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


def _estimated(name: str, found: Estimate, exact: int, phase: str) -> Iterable[Item]:
    """What was measured, and by how much more another run may take."""
    planned = found.least if found.planned is None else found.planned
    yield Item(name, planned, (phase,), least=found.least)
    percent = SPREAD_OF_PROBES if found.by_probe else SPREAD_OF_RUNS
    spread = max((planned + exact) * percent // 100, LEAST_SPREAD_BYTES)
    yield Item(f"{name}_spread", spread, (phase,), least=0)
