"""The way to a GPU: page-locked pieces, a stream for copies, events between the two sides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from app.lifecycle import Reason
from worker.trainer.data.rows import read_rows
from worker.trainer.data.source import Arrays, Field, Rows, Source, bytes_per_sample
from worker.trainer.data.transfer import Slot, empty_arrays, piece_bounds, piece_samples
from worker.trainer.errors import TrainerError


@dataclass
class CudaSlot(Slot):
    filled: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    used: torch.cuda.Event = field(default_factory=torch.cuda.Event)


def pinned_arrays(fields: Mapping[str, Field], samples: int) -> dict[str, Tensor]:
    """Page-locked memory of the host for so many samples. Raises TrainerError host_oom."""
    try:
        return empty_arrays(fields, samples, "cpu", pin_memory=True)
    except RuntimeError as error:
        # CUDA says the same of its own memory, so only here can it be told whose it was.
        if "out of memory" not in str(error):
            raise
        needed = samples * bytes_per_sample(fields)
        raise TrainerError(
            Reason.host_oom,
            f"The host gave no {needed / 2**20:,.0f} MiB of page-locked memory, through which the "
            "data goes to the GPU. Run fewer trainers on this host, or raise its limit of locked "
            "memory (ulimit -l, or the container's).",
        ) from error


class _Staging:
    """A page-locked piece that is reused: pinning costs more than copying."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.arrays = pinned_arrays(fields, piece_samples(fields))
        self.host: Arrays = {name: array.numpy() for name, array in self.arrays.items()}
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]


class CudaTransfer:
    """Rows go through two page-locked pieces and a stream of their own into the slot."""

    def __init__(self, device: torch.device, fields: Mapping[str, Field]) -> None:
        self._device = device
        self._fields = fields
        self._sample_bytes = bytes_per_sample(fields)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staging = (_Staging(fields), _Staging(fields))

    def new_slot(self, samples: int, places: int) -> Slot:
        arrays = empty_arrays(self._fields, samples, self._device, pin_memory=False)
        slot = CudaSlot(arrays, torch.empty(places, dtype=torch.int64, device=self._device))
        # The memory may have been in use a moment ago by work that is queued on this stream.
        slot.used.record(torch.cuda.current_stream(self._device))
        return slot

    def load(self, source: Source, ascending: Rows, slot: Slot) -> Iterator[int]:
        self._wait_until_used(slot)
        for number, (start, stop) in enumerate(piece_bounds(self._fields, len(ascending))):
            staging = self._staging[number % 2]
            staging.copied.synchronize()
            out = {name: array[: stop - start] for name, array in staging.host.items()}
            read_rows(source, ascending[start:stop], out)
            with torch.cuda.stream(self._stream):
                for name, array in staging.arrays.items():
                    slot.arrays[name][start:stop].copy_(array[: stop - start], non_blocking=True)
                staging.copied.record(self._stream)
            yield (stop - start) * self._sample_bytes

    def arrange(self, slot: Slot, places: Rows) -> None:
        self._wait_until_used(slot)
        with torch.cuda.stream(self._stream):
            slot.places[: len(places)].copy_(torch.from_numpy(places))
            _events(slot).filled.record(self._stream)

    def acquire(self, slot: Slot) -> None:
        torch.cuda.current_stream(self._device).wait_event(_events(slot).filled)

    def release(self, slot: Slot) -> None:
        _events(slot).used.record(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        self._stream.synchronize()

    def _wait_until_used(self, slot: Slot) -> None:
        self._stream.wait_event(_events(slot).used)


def _events(slot: Slot) -> CudaSlot:
    if not isinstance(slot, CudaSlot):
        raise TypeError("this slot was made by another transfer")
    return slot
