"""Calls that may hang, as into a disk that is away: in threads beside the agent's loop."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from app.store.artifact_root import MEANWHILE, ArtifactRoot

log = structlog.get_logger("stoker.worker")

T = TypeVar("T")

# What a disk that is well takes far less than; a loop that waits so long still serves all others.
PATIENCE_SECONDS = 0.2
# A disk that has answered counts as there for so long while it is asked anew: one that is always
# slow would else be away at every second look.
FRESH_SECONDS = 2.0


class Errand(Generic[T]):
    """One call in a thread of its own. The owner looks whether it is done, and takes the result.

    The thread is not joined: one that hangs in the kernel ends with the disk, or with the process.
    One that this host has no room for now is started when the owner looks again.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._result: list[T] = []
        self._is_started = self._was_asked = False
        self._start()

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="errand", daemon=True).start()
        except RuntimeError as error:
            log.warning("a thread cannot be started, it is tried again", why=str(error))
        else:
            self._is_started = True

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is taken
            self._error = error
        self._done.set()

    def is_done(self, patience_seconds: float | None = None) -> bool:
        """Waits so long for it; None: PATIENCE_SECONDS when it is asked for the first time, and
        after that not at all.
        """
        if patience_seconds is None:
            patience_seconds = 0.0 if self._was_asked else PATIENCE_SECONDS
        self._was_asked = True
        if not self._is_started:
            self._start()
        return self._is_started and self._done.wait(patience_seconds)

    def result(self) -> T:
        """What the call gave, once it is done; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]


class WatchedRoot:
    """The artifact root as the agent's loop may ask for it: it answers at once, also while the disk
    below does not; then the root counts as away, once its last answer is no longer fresh.
    """

    def __init__(self, root: ArtifactRoot) -> None:
        self._root = root
        self._hanging: Errand[str | None] | None = None
        self._answered_at = -FRESH_SECONDS

    @property
    def path(self) -> Path:
        return self._root.path

    @property
    def database_id(self) -> str:
        """The id that its marker names."""
        return self._root.database_id

    @property
    def away(self) -> str | None:
        """Why it was not there when it was last looked at; None: it was."""
        is_fresh = time.monotonic() < self._answered_at + FRESH_SECONDS
        if self._hanging is not None and not self._hanging.is_done() and not is_fresh:
            return (
                f"The artifact root {self.path} does not answer: the disk or the server below it "
                f"may be down. Have it back, or mount it anew. {MEANWHILE}"
            )
        return self._root.away

    def is_here_in_the_end(self) -> bool:
        """As `ArtifactRoot.is_here`, for a thread that may wait for the disk."""
        return self._root.is_here()

    def begin_look(self) -> Errand[bool]:
        """As `ArtifactRoot.is_here`, for who waits until the disk answers, however slow it is."""
        return Errand(self._root.is_here)

    def look(self) -> str | None:
        """As `ArtifactRoot.look`."""
        if self._hanging is not None and self._hanging.is_done():
            self._take_answer()  # the disk is slow, not away: what it has answered counts
        elif self._hanging is None:
            errand = self._hanging = Errand(self._root.look)
            if errand.is_done():
                self._take_answer()
                errand.result()
        return self.away

    def _take_answer(self) -> None:
        self._hanging, self._answered_at = None, time.monotonic()


class PatientLook:
    """Looks at an artifact root, one after the other, for who waits until the disk answers, however
    slow it is. `was_away`: one has proved that the root was not there.
    """

    def __init__(self, root: WatchedRoot) -> None:
        self._root = root
        self._errand: Errand[bool] | None = None
        self.was_away = False

    @property
    def is_under_way(self) -> bool:
        return self._errand is not None

    def is_here(self) -> bool:
        """False also until the disk has answered."""
        self._errand = errand = self._errand or self._root.begin_look()
        if not errand.is_done():
            return False
        self._errand = None
        is_here = errand.result()
        self.was_away |= not is_here
        return is_here
