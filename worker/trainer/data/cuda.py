"""The way to a GPU: page-locked memory, a stream for copies, events between the two sides."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from app.lifecycle import Reason
from app.planning.residency import PIECE_BYTES
from worker.trainer.data.batch_room import BatchRoom
from worker.trainer.data.counters import Cause, Counters
from worker.trainer.data.group_source import as_groups
from worker.trainer.data.ragged import RaggedValues, one_behind_another
from worker.trainer.data.rows import in_file_order, inverse, read_rows
from worker.trainer.data.source import (
    Arrays,
    Field,
    Rows,
    Source,
    bytes_per_sample,
    lengths_of,
    not_ragged,
    ragged_of,
)
from worker.trainer.data.transfer import (
    Slot,
    empty_arrays,
    empty_ragged,
    piece_bounds,
    piece_samples,
)
from worker.trainer.errors import OutOfMemory


@dataclass
class CudaSlot(Slot):
    host_places: Tensor  # page-locked, so that the loop need not wait while they are copied
    filled: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    used: torch.cuda.Event = field(default_factory=torch.cuda.Event)


@contextmanager
def pinning(needed_bytes: int) -> Iterator[None]:
    """Within it, page-locked memory of the host is taken. Raises OutOfMemory host_oom."""
    try:
        yield
    except RuntimeError as error:
        # CUDA says the same of its own memory, so only here can it be told whose it was.
        if "out of memory" not in str(error):
            raise
        raise OutOfMemory(
            Reason.host_oom,
            f"The host gave no {needed_bytes / 2**20:,.0f} MiB of page-locked memory, through "
            "which the data goes to the GPU. Run fewer trainers on this host, or raise its limit "
            "of locked memory (ulimit -l, or the container's).",
            needed_bytes,
        ) from error


class _Flight:
    """Tells when the copies that leave a piece of the host's memory are done."""

    def __init__(self) -> None:
        # Whoever waits for a copy sleeps meanwhile: the cores are the training's.
        self._began, self._copied = (
            torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        self._in_flight = False

    @contextmanager
    def leaving(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Within it, copies out of this piece are queued on `stream`."""
        self._began.record(stream)
        yield
        self._copied.record(stream)
        self._in_flight = True

    def wait(self) -> float:
        """Until the piece may be written again; the seconds its copy took, 0 if there was none."""
        if not self._in_flight:
            return 0.0
        self._copied.synchronize()
        self._in_flight = False
        return float(self._began.elapsed_time(self._copied)) / 1e3


class _Staging(_Flight):
    """A page-locked piece that is reused: pinning costs more than copying.

    It has room for samples of plain arrays, and for values of each ragged one.
    """

    def __init__(self, fields: Mapping[str, Field], piece_bytes: int) -> None:
        super().__init__()
        plain, ragged = not_ragged(fields), ragged_of(fields)
        self.share_bytes = piece_bytes // (1 + len(ragged))
        samples = piece_samples(plain, self.share_bytes)
        wanted = dict.fromkeys(plain, samples)
        each = dict(plain)
        for name, array in ragged.items():
            each[name] = array.value
            wanted[name] = max(1, self.share_bytes // array.value.sample_bytes)
        self.arrays: dict[str, Tensor] = {}
        with pinning(sum(count * each[name].sample_bytes for name, count in wanted.items())):
            for name, count in wanted.items():
                self.arrays |= empty_arrays({name: each[name]}, count, "cpu", pin_memory=True)
        self.host: Arrays = {name: array.numpy() for name, array in self.arrays.items()}


class CudaBatchTransfer:
    """A batch of the room is copied to new memory of the device, on the stream of the training;
    where the room is `pinned`, which is page-locked, while the loop goes on.
    """

    def __init__(self, device: torch.device, room: BatchRoom, *, pinned: bool) -> None:
        self.room = room
        self.counters = Counters()
        self.copy_seconds = 0.0
        self._device = device
        self._pinned = pinned
        self._flights = [_Flight() for _ in range(room.slots)]
        if pinned:
            memory = room.memory.bytes
            with pinning(memory.nbytes):
                cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
                locked = cuda.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
                torch.cuda.check_error(int(locked))

    def bring(self, slot: int, size: int) -> dict[str, Tensor]:
        began, flight = time.perf_counter(), self._flights[slot]
        with flight.leaving(torch.cuda.current_stream(self._device)):
            arrays = {
                name: array.to(self._device, non_blocking=self._pinned)
                for name, array in self.room.arrays(slot, size).items()
            }
        if not self._pinned:  # it waited for all that the device had been given, and for the copy
            self._count(began, flight.wait())
        return arrays

    def wait_until_free(self, slot: int) -> None:
        began = time.perf_counter()
        self._count(began, self._flights[slot].wait())

    def _count(self, began: float, copied: float) -> None:
        """A wait of the loop since then, at the end of which a copy had taken so long."""
        waited = time.perf_counter() - began
        self.copy_seconds += copied
        self.counters.hold_up("h2d", min(copied, waited))
        self.counters.hold_up("sync", max(0.0, waited - copied))

    def close(self) -> None:
        for flight in self._flights:
            self.copy_seconds += flight.wait()
        if self._pinned:
            cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            cuda.cudaHostUnregister(self.room.memory.bytes.ctypes.data)
            self._pinned = False


class CudaTransfer:
    """Rows go through two page-locked pieces and a stream of their own into the slot."""

    def __init__(
        self, device: torch.device, fields: Mapping[str, Field], piece_bytes: int | None = None
    ) -> None:
        self._device = device
        self._piece_bytes = piece_bytes or PIECE_BYTES
        self._fields, self._plain = fields, not_ragged(fields)
        self._sample_bytes = bytes_per_sample(self._plain)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staging: tuple[_Staging, ...] = ()
        self._turn = 0
        self._awaits_copy = False
        self.copy_seconds = 0.0

    def new_slot(self, samples: int, places: int, room: Mapping[str, int] | None = None) -> Slot:
        arrays = empty_arrays(self._plain, samples, self._device, pin_memory=False)
        ragged = empty_ragged(self._fields, samples, room, self._device)
        on_device = torch.empty(places, dtype=torch.int64, device=self._device)
        with pinning(on_device.nbytes):
            on_host = torch.empty(places, dtype=torch.int64, pin_memory=True)
        slot = CudaSlot(arrays, on_device, on_host, ragged=ragged)
        # The memory may have been in use a moment ago by work that is queued on this stream.
        slot.used.record(torch.cuda.current_stream(self._device))
        return slot

    def new_batch(self, samples: int) -> dict[str, Tensor]:
        return empty_arrays(self._fields, samples, self._device, pin_memory=False)

    def load(self, source: Source, rows: Rows, slot: Slot) -> Iterator[int]:
        ascending, positions = in_file_order(rows)
        self._wait_until_used(slot)
        for start, stop in piece_bounds(self._plain, len(ascending), self._pieces[0].share_bytes):
            staging = self._next_piece()
            out = {name: staging.host[name][: stop - start] for name in self._plain}
            read_rows(source, ascending[start:stop], out)
            with torch.cuda.stream(self._stream), staging.leaving(self._stream):
                for name, array in slot.arrays.items():
                    from_host = staging.arrays[name][: stop - start]
                    array[start:stop].copy_(from_host, non_blocking=True)
            yield (stop - start) * self._sample_bytes
        for name, values in slot.ragged.items():
            yield from self._load_values(source, ascending, name, values)
            with torch.cuda.stream(self._stream):
                values.set_begins(slot.arrays[lengths_of(name)][: len(rows)])
        if ascending is rows:
            slot.arranged = False
            _own(slot).filled.record(self._stream)
        else:  # gathered on the device, which is many times as fast as they come
            self.arrange(slot, inverse(positions))

    def end_loading(self) -> None:
        for staging in self._staging:
            self.copy_seconds += staging.wait()
        self._staging = ()

    def arrange(self, slot: Slot, places: Rows) -> None:
        mine = _own(slot)
        mine.arranged = True
        mine.filled.synchronize()  # the copy before this one has left the host's places
        on_host = mine.host_places[: len(places)].copy_(torch.from_numpy(places))
        self._wait_until_used(slot)
        with torch.cuda.stream(self._stream):
            mine.places[: len(places)].copy_(on_host, non_blocking=True)
            mine.filled.record(self._stream)

    def why_waiting(self) -> Callable[[], Cause | None]:
        given = torch.cuda.Event()  # type: ignore[no-untyped-call]
        given.record(torch.cuda.current_stream(self._device))

        def why() -> Cause | None:
            if not given.query():  # type: ignore[no-untyped-call]
                return "sync"
            return "h2d" if self._awaits_copy else None

        return why

    def acquire(self, slot: Slot) -> None:
        torch.cuda.current_stream(self._device).wait_event(_own(slot).filled)

    def release(self, slot: Slot) -> None:
        _own(slot).used.record(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        self._stream.synchronize()

    def _load_values(
        self, source: Source, rows: Rows, name: str, values: RaggedValues
    ) -> Iterator[int]:
        """Of these samples, which ascend."""
        groups, most = as_groups(source), len(self._pieces[0].host[name])
        for places, extents in one_behind_another(groups.ragged[name], rows, most):
            staging, count = self._next_piece(), places.stop - places.start
            groups.read_values(name, extents, staging.host[name][:count])
            from_host = staging.arrays[name][:count]
            with torch.cuda.stream(self._stream), staging.leaving(self._stream):
                values.values[places].copy_(from_host, non_blocking=True)
            yield from_host.nbytes

    @property
    def _pieces(self) -> tuple[_Staging, ...]:
        """Two, which take turns; taken when they are first needed."""
        if not self._staging:
            self._staging = tuple(_Staging(self._fields, self._piece_bytes) for _ in range(2))
        return self._staging

    def _next_piece(self) -> _Staging:
        """One that may be written again."""
        self._turn = 1 - self._turn
        staging = self._pieces[self._turn]
        self._awaits_copy = True
        self.copy_seconds += staging.wait()
        self._awaits_copy = False
        return staging

    def _wait_until_used(self, slot: Slot) -> None:
        self._stream.wait_event(_own(slot).used)


def _own(slot: Slot) -> CudaSlot:
    if not isinstance(slot, CudaSlot):
        raise TypeError("this slot was made by another transfer")
    return slot
