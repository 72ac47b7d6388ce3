"""What the PyTorch loader asks for batches, in the trainer or in processes of their own."""

import pickle
import traceback

import torch
from torch import Tensor
from torch.utils.data import Dataset

from app.planning.residency import LEAST_PLACED_BYTES
from worker.trainer.data.batch_room import BatchRoom
from worker.trainer.data.rows import in_file_order, inverse, read_rows
from worker.trainer.data.source import OpenSource, Source
from worker.trainer.data.transfer import empty_arrays, rows_of
from worker.trainer.errors import TrainerError

# An error that is sent is one packet, and a sentence.
MOST_ERROR_BYTES, MOST_ERROR_CHARACTERS = 2**14, 1000

Asked = list[int]
"""A batch's number, its slot in the room, and its samples."""


class RoomFiller(Dataset[None]):
    """Reads the rows that stand in a slot of the room into that slot, a batch at a time.

    A process that is started takes the room along, and opens the file for itself.
    """

    def __init__(self, open_source: OpenSource, room: BatchRoom) -> None:
        self._open_source = open_source
        self._room = room
        self._source: Source | None = None
        self._scratch: dict[str, Tensor] = {}

    def __getitems__(self, asked: Asked) -> Exception | None:
        """Fill a slot. An error is given back, since torch would raise it as a traceback."""
        number, slot, size = asked
        try:
            self._fill(slot, size)
        except TrainerError as error:
            return error
        except Exception as error:  # noqa: BLE001 - raised again in the loop
            traceback.print_exc()
            return _able_to_travel(error)
        self._room.filled[slot] = number
        return None

    def close(self) -> None:
        """Give the file back, where this process has read it."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def _fill(self, slot: int, size: int) -> None:
        if self._source is None:
            self._source = self._open_source()
        source, rows = self._source, self._room.rows(slot, size)
        ascending, positions = in_file_order(rows)
        if ascending is rows:
            read_rows(source, rows, self._room.numpy(slot, size))
        elif source.places_rows and self._room.sample_bytes >= LEAST_PLACED_BYTES:
            read_rows(source, ascending, self._room.numpy(slot, size), positions)
        else:
            scratch = self._scratch_for(source, size)
            read_rows(source, ascending, {name: array.numpy() for name, array in scratch.items()})
            places = torch.from_numpy(inverse(positions))
            for name, out in self._room.arrays(slot, size).items():
                torch.index_select(scratch[name], 0, places, out=out)

    def _scratch_for(self, source: Source, size: int) -> dict[str, Tensor]:
        """Memory of this process to read into in the order of the file, used again each time."""
        if not self._scratch or len(next(iter(self._scratch.values()))) < size:
            self._scratch = empty_arrays(source.fields, size, "cpu", pin_memory=False)
        return rows_of(self._scratch, 0, size)


def _able_to_travel(error: Exception) -> Exception:
    """The error, or one that says the same, where it cannot be sent to another process."""
    try:
        packet = pickle.dumps(error)
        pickle.loads(packet)  # noqa: S301 - of this very process
    except Exception:  # noqa: BLE001 - whatever its class does wrong
        packet = b""
    if 0 < len(packet) <= MOST_ERROR_BYTES:
        return error
    return RuntimeError(f"{type(error).__name__}: {str(error)[:MOST_ERROR_CHARACTERS]}")
