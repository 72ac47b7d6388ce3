"""What the service works with: settings, store, and briefly cached knowledge of the world."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.errors import Conflict
from app.guard.facts import DatasetFacts
from app.guard.presets.catalog import Catalog, load_catalog
from app.service.inventory import dataset_facts
from app.service.liveness import ObserverThread
from app.service.notify import Notifier
from app.service.tailer import Tailer
from app.settings import Settings
from app.store.artifact_root import ArtifactRoot
from app.store.engine.doorbell import Doorbell
from app.store.store import Store
from app.store.worker_records import WorkerRecord

CACHE_SECONDS = 2.0
MAX_KNOWN_DATASETS = 500

T = TypeVar("T")


class Cached(Generic[T]):
    """A value that is read again when it is older than a moment; errors are not kept."""

    def __init__(self, read: Callable[[], T], seconds: float = CACHE_SECONDS) -> None:
        self._read = read
        self._seconds = seconds
        self._lock = threading.Lock()
        self._value: tuple[float, T] | None = None

    def get(self) -> T:
        with self._lock:
            now = time.monotonic()
            if self._value is None or now - self._value[0] > self._seconds:
                self._value = (now, self._read())
            return self._value[1]


class LiveWorkers:
    """Workers as they are now: asked for their versions each time, and read when these changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: tuple[frozenset[tuple[int, int, str]], list[WorkerRecord]] | None = None

    def get(self) -> list[WorkerRecord]:
        with self._lock:
            versions = self._store.workers.versions()
            if self._known is None or self._known[0] != versions:
                self._known = versions, list(self._store.workers.list(alive_only=True))
            return self._known[1]


class InFlight:
    """Idempotency keys of requests that are being answered at this moment."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def only_one(self, scope: str, key: str | None) -> Iterator[None]:
        """Conflict (code `idempotency_in_flight`) while another request with the key runs."""
        if key is None:
            yield
            return
        mine = (scope, key)
        with self._lock:
            if mine in self._keys:
                raise Conflict(
                    "A request with this Idempotency-Key is being answered at this moment; "
                    "repeat it when that answer had time to arrive.",
                    code="idempotency_in_flight",
                )
            self._keys.add(mine)
        try:
            yield
        finally:
            with self._lock:
                self._keys.discard(mine)


@dataclass
class Services:
    """Everything that requests are answered with; one object a process."""

    settings: Settings
    store: Store
    artifacts: ArtifactRoot = field(init=False)
    tailer: Tailer = field(init=False)
    observer: ObserverThread = field(init=False)
    notifier: Notifier = field(init=False)
    catalog: Cached[Catalog] = field(init=False)
    workers: LiveWorkers = field(init=False)
    datasets: Cached[dict[str, DatasetFacts]] = field(init=False)
    in_flight: InFlight = field(default_factory=InFlight)

    def __post_init__(self) -> None:
        store, settings = self.store, self.settings
        self.artifacts = ArtifactRoot(store.database, settings.artifact_root)
        self.tailer = Tailer(store, Doorbell(settings))
        self.observer = ObserverThread(store, settings.beat_seconds)
        self.notifier = Notifier(settings, store)
        self.catalog = Cached(lambda: load_catalog(settings.presets_dir))
        self.workers = LiveWorkers(store)
        self.datasets = Cached(lambda: _dataset_facts(store))

    def start(self) -> None:
        """Begin to watch for those that wait, and those that beat no more; in the event loop."""
        self.tailer.start()
        self.observer.start()
        self.notifier.start()

    def stop(self) -> None:
        self.notifier.close()
        self.observer.stop()
        self.tailer.stop()


def _dataset_facts(store: Store) -> dict[str, DatasetFacts]:
    known = store.datasets.list(MAX_KNOWN_DATASETS).data
    return {record.name: dataset_facts(record) for record in known}
