"""From the room that the loader's processes fill to the device."""

from typing import Protocol

from torch import Tensor

from worker.trainer.data.batch_room import BatchRoom
from worker.trainer.data.counters import Counters


class BatchTransfer(Protocol):
    """Brings the batches of a room to the loop, one after the other."""

    @property
    def room(self) -> BatchRoom:
        """What is filled by others."""

    @property
    def counters(self) -> Counters:
        """For whoever takes its batches; what holds them up is counted here."""

    @property
    def copy_seconds(self) -> float | None:
        """What the copies waited for so far took; None where nothing has to be copied."""

    def bring(self, slot: int, size: int) -> dict[str, Tensor]:
        """A slot's first `size` samples, on the device."""

    def wait_until_free(self, slot: int) -> None:
        """Until the slot may be filled anew."""

    def close(self) -> None:
        """Wait for copies under way; the room may be given back then."""


class HostBatchTransfer:
    """The device is the host: a batch is a view of its slot."""

    copy_seconds: float | None = None

    def __init__(self, room: BatchRoom) -> None:
        self.room = room
        self.counters = Counters()

    def bring(self, slot: int, size: int) -> dict[str, Tensor]:
        return self.room.arrays(slot, size)

    def wait_until_free(self, slot: int) -> None:
        """The loop is done with a batch before it asks for another."""

    def close(self) -> None:
        """Nothing is under way."""
