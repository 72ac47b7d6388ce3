"""Streams and long polls over a feed: they wait on the tailer and hold nothing of the database."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from app.api.waiting import watching
from app.errors import NotFound, StokerError
from app.service.feeds import Feed, FeedReading, Message
from app.service.tailer import Tailer
from app.service.waiting import until

HEARTBEAT_SECONDS = 15.0
RECONNECT_MILLISECONDS = 1000
HEARTBEAT = b": still here\n\n"


def format_message(message: Message) -> bytes:
    """One event of a text/event-stream (HTML standard, section 9.2)."""
    lines = [] if message.id is None else [f"id: {message.id}"]
    lines += [f"event: {message.event}", f"data: {to_json(message.data).decode()}", "", ""]
    return "\n".join(lines).encode()


def stream(tailer: Tailer, feed: Feed, run_id: int, cursor: int) -> StreamingResponse:
    """The response that follows a feed until the run is over."""
    return StreamingResponse(
        _follow(tailer, feed, run_id, cursor),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _follow(tailer: Tailer, feed: Feed, run_id: int, cursor: int) -> AsyncIterator[bytes]:
    yield f"retry: {RECONNECT_MILLISECONDS}\n\n".encode()
    with tailer.watch(run_id) as watch:
        while not watch.is_over:
            try:
                reading = await until(watch, partial(feed.read, cursor), _tells, HEARTBEAT_SECONDS)
            except NotFound:
                yield format_message(Message("end", {"state": "deleted"}))
                return
            except StokerError as error:
                yield f": {error.problem_code}\n\n".encode()
                return  # the client comes back with Last-Event-ID
            for message in reading.messages:
                yield format_message(message)
            cursor = reading.cursor
            if reading.is_over:
                yield format_message(Message("end", _outcome(reading)))
                return
            if not reading.messages:
                yield HEARTBEAT


def _tells(reading: FeedReading) -> bool:
    return bool(reading.messages) or reading.is_over


def _outcome(reading: FeedReading) -> dict[str, Any]:
    run = reading.run
    return {"state": run.state, "reason": run.reason, "message": run.message}


async def wait_for_news(
    request: Request, tailer: Tailer, feed: Feed, run_id: int, cursor: int, wait_seconds: float
) -> None:
    """Return when something that keeps its place follows the cursor, or the time is over."""
    async with watching(request, tailer, run_id) as watch:
        await until(
            watch,
            lambda: feed.read(cursor),
            lambda reading: reading.cursor != cursor or reading.is_over,
            wait_seconds,
        )
