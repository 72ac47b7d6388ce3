"""Requests that wait: until it is done, the time is over, the client leaves or the service ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from app.service.tailer import Tailer

T = TypeVar("T")


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """End what is inside when the client leaves, with ClientDisconnect. The body was read before.

    A thread that works for it at that moment is waited for.
    """
    with anyio.CancelScope() as scope:
        listener = asyncio.create_task(_listen(request, scope))
        try:
            yield
        finally:
            listener.cancel()
    if scope.cancelled_caught:
        raise ClientDisconnect


async def _listen(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def until(
    tailer: Tailer,
    read: Callable[[], T],
    is_done: Callable[[T], bool],
    wait_seconds: float,
    run_id: int | None = None,
) -> T:
    """What `read` gives once it is done; or as it is when the time is over or the service ends.

    It is read in a thread, again after each change of the run, or (None) after each commit.
    """
    deadline = time.monotonic() + wait_seconds
    with tailer.watch(run_id) as watch:
        while True:
            found = await run_in_threadpool(read)
            if is_done(found) or tailer.draining:
                return found
            if not await watch.moved(deadline - time.monotonic()):
                return found
