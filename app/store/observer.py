"""The observer: declares lease holders and workers lost that beat no more.

It counts beats in its own reads and looks at no clock, so that neither a wrong clock nor a database
that is away for a while makes a living worker look dead.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from app.lifecycle import LEASE_BEATS
from app.store.identity import ProcessIdentity, is_known_dead
from app.store.records import Holder
from app.store.store import Store
from app.store.worker_records import Pulse


@dataclass(frozen=True)
class _Sighting:
    beat: int
    reads: int  # successful reads in a row that saw this beat, the first not counted


class Observer:
    """One process's view; call `observe` once a beat. API and agents each have one."""

    def __init__(self, store: Store, reads: int = LEASE_BEATS) -> None:
        self._store = store
        self._reads = reads
        self._seen: dict[Hashable, _Sighting] = {}

    def observe(self) -> list[int]:
        """Read every beat counter once; the ids of the runs declared lost by this."""
        holders = self._store.leases.holders()
        workers = self._store.workers.pulses()
        before, self._seen = self._seen, {}
        lost = [
            holder.run_id
            for holder in holders
            if self._is_dead(before, holder.token, holder)
            and self._store.leases.declare_lost(holder.token, holder.beat)
        ]
        for worker in workers:
            if self._is_dead(before, worker.id, worker):
                self._store.workers.declare_lost(worker.id, worker.beat)
        return lost

    def _is_dead(
        self, before: dict[Hashable, _Sighting], key: Hashable, who: Holder | Pulse
    ) -> bool:
        last = before.get(key)
        reads = last.reads + 1 if last is not None and last.beat == who.beat else 0
        self._seen[key] = _Sighting(who.beat, reads)
        return reads >= self._reads or is_known_dead(
            ProcessIdentity(who.host, who.boot_id, who.pid, who.start_time)
        )
