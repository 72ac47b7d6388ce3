"""What came with commands: their environments, and copies of their code, in the agent's home.

Both are kept as long as a run that has them can start again, which is until all of these have been
deleted: a run that is over can be restarted, and a restart has what its parent has. What no run of
this database ever had, as one of another database with the same home, is not touched.
"""

import threading

import structlog

from app.codestate import KEY, remove_snapshot
from app.errors import Unavailable
from app.settings import Settings
from app.store.store import Store
from worker.kept import forget

log = structlog.get_logger("stoker.worker")

BEATS = 30  # between two looks
AT_ONCE = 500  # keys that are asked for in one statement


class Submissions:
    """Removes what nobody needs any more, in a thread of its own: a disk, or git, may be slow."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._over = threading.Event()
        self._failed: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="submissions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, which is not waited for where a disk hangs."""
        self._over.set()
        self._thread.join(timeout=1.0)

    def _work(self) -> None:
        while not self._over.wait(BEATS * self._settings.beat_seconds):
            try:
                self._look()
            except Unavailable:
                continue  # the agent says so already
            except Exception:  # the thread must outlive a disk that is away for a while
                log.exception("what came with commands cannot be looked at")

    def _look(self) -> None:
        settings = self._settings
        kept = {path.stem for path in settings.environments_dir.glob("*.json")}
        kept |= {path.name for path in settings.snapshots_dir.glob("*")}
        keys = sorted(key for key in kept if KEY.fullmatch(key))  # not what others have put there
        for start in range(0, len(keys), AT_ONCE):
            for key in sorted(self._store.runs.gone(keys[start : start + AT_ONCE])):
                self._remove(key)

    def _remove(self, key: str) -> None:
        try:
            remove_snapshot(self._settings.snapshots_dir / key)
            forget(self._settings.environments_dir / f"{key}.json")
        except OSError as error:
            if key not in self._failed:
                self._failed.add(key)
                log.warning("what came with a deleted run stays", key=key, why=str(error))
        else:
            log.info("what came with a deleted run is removed", key=key)
