"""Requests that wait: until it is done, the time is over, the client leaves or the service ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from fastapi import Request
from starlette.requests import ClientDisconnect

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


async def _listen(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
