"""Requests that wait: until it is done, the time is over, the client leaves or the service ends.

An order (a verb, an export, an import, a registration) is stored before the wait, and stays when
the client leaves: `wait` is for the answer alone. A run, which is made once its data is ready, is
not made then.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from app.service.services import Services
from app.service.submit import Made, when_ready
from app.service.tailer import Tailer, Watch


@asynccontextmanager
async def watching(
    request: Request, tailer: Tailer, run_id: int | None = None
) -> AsyncIterator[Watch]:
    """Watch a run, or (None) every commit, for as long as the client is there.

    What is inside ends when it leaves, with ClientDisconnect; a thread that works for it at that
    moment is waited for. The body was read before.
    """
    with anyio.CancelScope() as scope:
        listener = asyncio.create_task(_listen(request, scope))
        try:
            with tailer.watch(run_id) as watch:
                yield watch
        finally:
            listener.cancel()
    if scope.cancelled_caught:
        raise ClientDisconnect


async def ordered(
    request: Request, services: Services, wait: float | None, order: Callable[[], Made]
) -> Made:
    """What `order` makes in a thread; with `wait`, tried again for so long while a dataset is still
    being inspected.
    """
    if not wait:
        return await run_in_threadpool(order)
    async with watching(request, services.tailer) as watch:
        return await when_ready(services, watch, wait, order)


async def _listen(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
