"""The way to a GPU: page-locked memory, a stream for copies, events between the two sides."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from app.lifecycle import Reason
from app.planning.residency import PIECE_BYTES
from worker.trainer.data.counters import Cause, Counters
from worker.trainer.data.source import Arrays, Rows
from worker.trainer.errors import OutOfMemory


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
            "which data goes to the GPU and checkpoints come from it. Run fewer trainers on this "
            "host, or raise its limit of locked memory (ulimit -l, or the container's).",
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

    def is_over(self) -> bool:
        """Whether `wait` would not."""
        return bool(self._copied.query())  # type: ignore[no-untyped-call]

    def wait(self) -> float:
        """Until the piece may be written again; the seconds its copy took, 0 if there was none."""
        if not self._in_flight:
            return 0.0
        self._copied.synchronize()
        self._in_flight = False
        return float(self._began.elapsed_time(self._copied)) / 1e3


class _Staging(_Flight):
    """A page-locked piece that is reused: pinning costs more than copying.

    It has room for one piece of each kind of arrays.
    """

    def __init__(self) -> None:
        super().__init__()
        self._arrays: dict[str, Tensor] = {}

    def make_room(self, into: Mapping[str, Tensor], most: int) -> None:
        """For `most` rows of each of these, where there is none yet."""
        missing = {name: array for name, array in into.items() if name not in self._arrays}
        with pinning(sum(most * array[0].nbytes for array in missing.values())):
            for name, array in missing.items():
                shape = (most, *array.shape[1:])
                self._arrays[name] = torch.empty(shape, dtype=array.dtype, pin_memory=True)

    def arrays(self, into: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What will be copied into these, as long as they are."""
        return {name: self._arrays[name][: len(array)] for name, array in into.items()}


class CudaBatches:
    """Each batch is copied to new memory of the device, on the stream of the training; where it is
    `pinned`, which is page-locked, while the loop goes on.
    """

    def __init__(self, device: torch.device, *, pinned: bool) -> None:
        self.copy_seconds = 0.0
        self._device = device
        self._pinned = pinned
        self._flights: deque[_Flight] = deque()

    def bring(self, arrays: dict[str, Tensor], counters: Counters) -> dict[str, Tensor]:
        began, flight = time.perf_counter(), _Flight()
        with flight.leaving(torch.cuda.current_stream(self._device)):
            brought = {
                name: array.to(self._device, non_blocking=self._pinned)
                for name, array in arrays.items()
            }
        self._flights.append(flight)
        if not self._pinned:  # it waited for all that the device had been given, and for the copy
            copied = self._flights.pop().wait()
            waited = time.perf_counter() - began
            self.copy_seconds += copied
            counters.hold_up("h2d", min(copied, waited))
            counters.hold_up("sync", max(0.0, waited - copied))
        while self._flights and self._flights[0].is_over():
            self.copy_seconds += self._flights.popleft().wait()
        return brought

    def close(self) -> None:
        while self._flights:
            self.copy_seconds += self._flights.popleft().wait()


class CudaDevice:
    """Pieces go through two page-locked ones and a stream of their own into the slot."""

    stages_in_place = False

    def __init__(self, device: torch.device, piece_bytes: int | None = None) -> None:
        self.memory = device
        self.copy_seconds: float = 0.0
        self._piece_bytes = piece_bytes or PIECE_BYTES
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staging: tuple[_Staging, ...] = ()
        self._turn = 0
        self._awaits_copy = False

    def piece_bytes(self, kinds: int) -> int:
        return self._piece_bytes // kinds

    def stage(self, into: Mapping[str, Tensor], most: int) -> Arrays:
        if not self._staging:
            self._staging = (_Staging(), _Staging())
        self._turn = 1 - self._turn
        self._awaits_copy = True
        self.copy_seconds += self._staging[self._turn].wait()
        self._awaits_copy = False
        for staging in self._staging:
            staging.make_room(into, most)
        return {name: one.numpy() for name, one in self._staging[self._turn].arrays(into).items()}

    def copy(self, into: Mapping[str, Tensor]) -> None:
        staging = self._staging[self._turn]
        with torch.cuda.stream(self._stream), staging.leaving(self._stream):
            for name, from_host in staging.arrays(into).items():
                into[name].copy_(from_host, non_blocking=True)

    def sync(self) -> None:
        for staging in self._staging:
            self.copy_seconds += staging.wait()
        self._staging = ()

    def loading(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def new_fence(self, places: Tensor) -> "CudaFence":
        return CudaFence(places, self._stream)

    def why_waiting(self) -> Callable[[], Cause | None]:
        given = torch.cuda.Event()  # type: ignore[no-untyped-call]
        given.record(torch.cuda.current_stream(self.memory))

        def why() -> Cause | None:
            if not given.query():  # type: ignore[no-untyped-call]
                return "sync"
            return "h2d" if self._awaits_copy else None

        return why

    def close(self) -> None:
        self._stream.synchronize()


class CudaFence:
    """Two events, between the stream that loads and that of the training, which is the current one
    of whoever calls.
    """

    def __init__(self, places: Tensor, stream: torch.cuda.Stream) -> None:
        self._places, self._stream = places, stream
        with pinning(places.nbytes):  # so that the loop need not wait while they are copied
            self._host_places = torch.empty(len(places), dtype=places.dtype, pin_memory=True)
        self._loaded = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._used = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # The memory may have been in use a moment ago by work that is queued on this stream.
        self.release()

    def wait_until_used(self) -> None:
        self._stream.wait_event(self._used)

    def mark_loaded(self) -> None:
        self._loaded.record(self._stream)

    def set_places(self, places: Rows) -> None:
        self._loaded.synchronize()  # the copy before this one has left the host's places
        on_host = self._host_places[: len(places)].copy_(torch.from_numpy(places))
        self.wait_until_used()
        with torch.cuda.stream(self._stream):
            self._places[: len(places)].copy_(on_host, non_blocking=True)
            self.mark_loaded()

    def acquire(self) -> None:
        torch.cuda.current_stream(self._places.device).wait_event(self._loaded)

    def release(self) -> None:
        self._used.record(torch.cuda.current_stream(self._places.device))
