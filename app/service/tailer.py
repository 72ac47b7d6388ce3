"""One thread that watches the database for everybody who waits: streams, long polls, ?wait.

The doorbell wakes it after each commit; polling is the fallback. It only reads, the marks of the
runs that are watched in one cheap query, and tells the event loop which of them moved.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import structlog

from app.errors import Unavailable
from app.store.engine.doorbell import BellListener, Doorbell
from app.store.store import Store

POLL_SECONDS = 0.5
# Rings closer together than this are answered by one read.
GAP_SECONDS = 0.02
AFTER_ERROR_SECONDS = 1.0

log = structlog.get_logger("stoker.service")


class Watch:
    """One waiter's view of the tailer; belongs to the event loop."""

    def __init__(self, run_id: int | None, is_over: bool) -> None:
        self.run_id = run_id
        self.is_over = is_over
        """The service ends: nobody is to wait any longer."""
        self.mark: Any = None
        self._moved = asyncio.Event()

    async def moved(self, timeout_seconds: float) -> bool:
        """Wait until something may have changed since the last call; False after the time."""
        try:
            async with asyncio.timeout(max(timeout_seconds, 0.0)):
                await self._moved.wait()
        except TimeoutError:
            return False
        self._moved.clear()
        return True

    def wake(self) -> None:
        self._moved.set()


class Tailer:
    """Owns the thread; `start` and `stop` belong to the application's lifespan."""

    def __init__(self, store: Store, doorbell: Doorbell) -> None:
        self._store = store
        self._doorbell = doorbell
        self._watches: set[Watch] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._is_draining = False

    def start(self) -> None:
        self._over.clear()
        self._is_draining = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="tailer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and join it."""
        self.drain()
        self._over.set()
        if self._thread is not None:
            self._doorbell.ring()
            self._thread.join()
            self._thread = None

    def drain(self) -> None:
        """Send all waiters home: the service is about to end."""
        self._is_draining = True
        for watch in self._watches:
            watch.is_over = True
            watch.wake()

    @property
    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @contextmanager
    def watch(self, run_id: int | None = None) -> Iterator[Watch]:
        """Watch one run, or (None) every commit. Begin the watch first, then read."""
        watch = Watch(run_id, self._is_draining)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                with closing(self._doorbell.listener()) as listener:
                    self._follow(listener)
            except Unavailable as error:
                log.warning("the tailer could not read; it tries again", why=error.detail)
                self._over.wait(AFTER_ERROR_SECONDS)
            except Exception:  # the thread must outlive a database that is away for a while
                log.exception("the tailer could not read; it tries again")
                self._over.wait(AFTER_ERROR_SECONDS)

    def _follow(self, listener: BellListener) -> None:
        while not self._over.is_set():
            listener.wait(POLL_SECONDS)
            listener.drain()
            self._tell()
            self._over.wait(GAP_SECONDS)

    def _tell(self) -> None:
        watches = list(self._watches)
        ids = {watch.run_id for watch in watches if watch.run_id is not None}
        marks = self._store.runs.watch_marks(sorted(ids)) if ids else {}
        moved = [watch for watch in watches if _has_moved(watch, marks)]
        if moved and self._loop is not None:
            self._loop.call_soon_threadsafe(_wake_all, moved)


def _has_moved(watch: Watch, marks: dict[int, Any]) -> bool:
    if watch.run_id is None:
        return True
    mark = marks.get(watch.run_id)
    if mark == watch.mark:
        return False
    watch.mark = mark
    return True


def _wake_all(watches: list[Watch]) -> None:
    for watch in watches:
        watch.wake()
