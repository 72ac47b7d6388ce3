"""The observer: declares lease holders and workers lost that beat no more.

It counts its own reads in which a beat counter stood still, and compares no clocks of hosts. A read
counts only if the holder could have beaten: one that failed or came late, or a database that cannot
be written, begins every count anew, for holders wait for the same lock.
"""

import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import structlog

from app.errors import Unavailable
from app.lifecycle import LEASE_BEATS
from app.store.identity import ProcessIdentity, is_known_dead
from app.store.records import Holder
from app.store.store import Store
from app.store.worker_records import WorkerPulse

# After so many reads without a beat it is asked at each read whether a beat could be stored.
SILENT_READS = 2
# A read may come later than its interval by as much again, on a busy host by this much.
LATE_SECONDS = 1.0

Key = str | int  # a lease's token, or a worker's id

log = structlog.get_logger("stoker.service")


@dataclass(frozen=True)
class _Sighting:
    beat: int
    reads: int  # reads in a row that saw this beat, the first not counted


class Observer:
    """One process's view; call `observe` every `beat_seconds`. API and agents each have one.

    A holder is dead after LEASE_BEATS intervals, its own or the observer's, whichever is longer.
    """

    def __init__(
        self, store: Store, beat_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._beat_seconds = beat_seconds
        self._clock = clock
        self._read_at = -math.inf
        self._seen: dict[Key, _Sighting] = {}

    def observe(self) -> list[int]:
        """Read every beat counter once; the ids of the runs declared lost by this. Unavailable."""
        before, self._seen = self._seen, {}  # nothing is known any more if a call below fails
        holders = {holder.token: holder for holder in self._store.leases.holders()}
        workers = {worker.id: worker for worker in self._store.workers.pulses()}
        if self._is_late():
            before = {}
        beats: dict[Key, int] = {token: holder.beat for token, holder in holders.items()}
        beats.update({worker_id: worker.beat for worker_id, worker in workers.items()})
        seen = {key: _sight(before.get(key), beat) for key, beat in beats.items()}
        for key in self._locked(seen, holders, workers):
            seen[key] = _Sighting(seen[key].beat, 0)
        lost = [
            holder.run_id
            for token, holder in holders.items()
            if self._is_dead(seen[token], holder)
            and self._store.leases.declare_lost(token, holder.beat)
        ]
        for worker_id, worker in workers.items():
            if self._is_dead(seen[worker_id], worker):
                self._store.workers.declare_lost(worker_id, worker.beat)
        self._seen = seen
        return lost

    def _is_late(self) -> bool:
        """Whether so much time has passed since the read before that holders may have been held up
        by the same: a suspended host, a stopped process, a database that did not answer.
        """
        before, self._read_at = self._read_at, self._clock()
        allowed = self._beat_seconds + max(self._beat_seconds, LATE_SECONDS)
        return self._read_at - before > allowed

    def _locked(
        self,
        seen: dict[Key, _Sighting],
        holders: Collection[str],
        workers: Collection[int],
    ) -> list[Key]:
        """Those that are silent, but whose beat could not be stored now. Unavailable when nothing
        can be stored.
        """
        tokens = [token for token in holders if seen[token].reads >= SILENT_READS]
        ids = [worker_id for worker_id in workers if seen[worker_id].reads >= SILENT_READS]
        free: set[Key] = {*self._store.leases.unlocked(tokens), *self._store.workers.unlocked(ids)}
        silent: list[Key] = [*tokens, *ids]
        return [key for key in silent if key not in free]

    def _is_dead(self, sighting: _Sighting, who: Holder | WorkerPulse) -> bool:
        interval = max(self._beat_seconds, who.beat_seconds or 0.0)
        needed = math.ceil(LEASE_BEATS * interval / self._beat_seconds)
        return sighting.reads >= needed or is_known_dead(
            ProcessIdentity(who.host, who.boot_id, who.pid, who.start_time)
        )


def _sight(last: _Sighting | None, beat: int) -> _Sighting:
    if last is None or last.beat != beat:
        return _Sighting(beat, 0)
    return _Sighting(beat, last.reads + 1)


class ObserverThread:
    """The API's observer, in a thread of its own: it writes, and nobody is to wait for it."""

    def __init__(self, store: Store, beat_seconds: float) -> None:
        self._observer = Observer(store, beat_seconds)
        self._beat_seconds = beat_seconds
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self._work, name="observer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and join it."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _work(self) -> None:
        while not self._over.wait(self._beat_seconds):
            try:
                self._observer.observe()
            except Unavailable as error:
                log.warning("the observer could not read; it tries again", why=error.detail)
            except Exception:  # the thread must outlive a database that is away for a while
                log.exception("the observer could not read; it tries again")
