"""A run's events as they happen, over as many connections as it takes."""

import time
from collections.abc import Iterator
from http import HTTPStatus

import httpx

from stoker.errors import ClientError, Problem
from stoker.events import Event, lines_of, parse_event_stream
from stoker.transport import Transport

# The service sends a heartbeat every 15 s; a longer silence means a lost connection.
SILENCE_SECONDS = 35.0
PATIENCE_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0


def watch(
    transport: Transport, run_id: int, after: int | None, patience_seconds: float | None
) -> Iterator[Event]:
    """Events until the run is over; as Client.watch."""
    last, pause = after, FIRST_PAUSE_SECONDS
    patience = PATIENCE_SECONDS if patience_seconds is None else patience_seconds
    failing_since: float | None = None
    why: ClientError | None = None
    while True:
        try:
            for event in _connection(transport, run_id, last):
                failing_since, why, pause = None, None, FIRST_PAUSE_SECONDS
                if event is None:
                    continue
                last = last if event.seq is None else event.seq
                yield event
                if event.kind == "end":
                    return
        except httpx.TransportError as error:
            why = transport.unreachable(error)
        except Problem as problem:
            if problem.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            why = problem  # it starts or ends
        now = time.monotonic()
        if failing_since is None:
            failing_since = now
            yield Event(None, "connection_lost", {"message": why.detail if why else None})
        elif why is not None and now - failing_since > patience:
            raise why
        time.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _connection(transport: Transport, run_id: int, last: int | None) -> Iterator[Event | None]:
    """The events of one connection, after a None for that it was made."""
    headers = {"Accept": "text/event-stream"}
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    path = f"/runs/{run_id}/events"
    with transport.stream(path, headers, SILENCE_SECONDS) as response:
        yield None
        yield from parse_event_stream(lines_of(response.iter_text()))
