"""What a run has to hold and to compute with, whatever the device."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from app.guard.facts import FieldFacts
from app.planning.arithmetic import PartSizes, evaluation_batch
from app.planning.residency import Need
from app.spec.run import RunSpec


@dataclass(frozen=True)
class Workload:
    """Of a complete spec and its dataset as it is read."""

    spec: RunSpec
    arrays: Mapping[str, FieldFacts]
    """Inputs and targets, in the order in which they are named."""
    sizes: PartSizes
    need: Need
    """What the trainer will find that the data comes to."""
    parameters: int | None
    """Of the model, as its recipe says; None where only building it tells."""
    table_bytes: int = 0
    """Of the tables that the recipe prepares of the data."""

    @cached_property
    def sample_bytes(self) -> int:
        """Of a sample in a batch."""
        return sum(array.sample_bytes for array in self.arrays.values())

    @property
    def batch(self) -> int:
        """Samples of the largest batch of the training."""
        return min(self.spec.training.batch_size, self.sizes.training)

    @property
    def evaluation_batch(self) -> int:
        """Samples of the largest batch of an evaluation; 0 without one."""
        batch = evaluation_batch(self.spec.evaluation, self.spec.training)
        return min(batch, max(self.sizes.validation, self.sizes.test))


def need_of(arrays: Collection[FieldFacts], sizes: PartSizes, group: int) -> Need:
    """Returns the sizes that the trainer will read; `group`: samples shuffled together."""
    held_out = tuple(count for count in (sizes.validation, sizes.test) if count)
    samples, parts = sizes.training + sum(held_out), 1 + len(held_out)
    saved = sum(array.saved_bytes(samples, parts) for array in arrays)
    longest = sum(array.longest_bytes for array in arrays)
    sample_bytes = sum(array.kept_bytes for array in arrays)
    return Need(sample_bytes, group, sizes.training, held_out, saved, longest)
