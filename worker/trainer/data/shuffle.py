"""What `auto` shuffling means for a dataset."""

from dataclasses import dataclass

from app.planning.arithmetic import block_samples, resolved_shuffle
from app.spec.data import Loader
from worker.trainer.data.order import Order, ShuffleKind


@dataclass(frozen=True)
class Shuffle:
    """How the training part is shuffled. It follows from the spec and the dataset alone, never
    from the device, so that a run visits the same samples on every machine.
    """

    kind: ShuffleKind
    group: int = 1
    block: int = 1

    def order(self, num_samples: int, seed: int, batch_size: int) -> Order:
        return Order(num_samples, seed, self.kind, self.group, self.block, lanes=batch_size)


def resolve_shuffle(loader: Loader, num_samples: int, sample_bytes: int) -> Shuffle:
    """For a dataset of so many samples, of which one has `sample_bytes` in the run's arrays."""
    kind, group = resolved_shuffle(loader, num_samples * sample_bytes)
    if kind != "block" or group == "auto":
        return Shuffle(kind)
    return Shuffle(kind, group, block_samples(group, sample_bytes))
