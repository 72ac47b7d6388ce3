"""The loop of all that wait: until it is done, the time is over or the service ends."""

import time
from collections.abc import Callable
from typing import TypeVar

from anyio.to_thread import run_sync

from app.service.tailer import Watch

T = TypeVar("T")


async def until(
    watch: Watch, read: Callable[[], T], is_done: Callable[[T], bool], wait_seconds: float
) -> T:
    """What `read` gives once it is done; or as it is when the time is over or the service ends.

    It is read in a thread, again after each change of what is watched.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        found = await run_sync(read)
        if is_done(found) or watch.is_over:
            return found
        if not await watch.moved(deadline - time.monotonic()):
            return found
