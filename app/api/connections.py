"""What is asked of uvicorn beyond its documentation: bounds on connections, and two moments.

uvicorn bounds the size of a request's head and the time between two requests. It has no bound on
the time until a request is whole, nor on the number of connections: silent ones would take all of
the process's descriptors, without a token. Its protocol class is one of its settings (`http`).
Nor does it tell which port it was given, or that it is about to wait for its connections.

`BEYOND_DOCUMENTATION` in the tests has each name; nothing else of uvicorn is read elsewhere.
"""

import socket
from asyncio import BaseTransport, TimerHandle

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_HEAD_BYTES = 64 << 10
# Until a request is whole, from the connection or its first byte on; and until a client that takes
# nothing more of its answer takes something again.
PATIENCE_SECONDS = 30.0
PROBLEM = (
    b'{"type":"urn:stoker:problem:request_timeout","title":"Request Timeout","status":408,'
    b'"detail":"The request did not come to its end in 30 seconds. Send it again.",'
    b'"code":"request_timeout"}'
)
TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/problem+json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(PROBLEM), PROBLEM)
)


class BoundedHttp(H11Protocol):
    """Where `limit_concurrency` connections are open, the one that has waited longest goes."""

    waits_since = 0.0
    _reading: TimerHandle | None = None
    _writing: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # asyncio gives a Transport
        self._wait_for_request()
        self._make_place()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._reading, self._writing)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.waits_for_client:
            self._stop(self._reading)
            self._reading = None
        elif self._reading is None:
            self._wait_for_request()

    def on_response_complete(self) -> None:
        self._stop(self._reading)
        self._wait_for_request()
        super().on_response_complete()
        if not self.waits_for_client:  # the next request was there already
            self._stop(self._reading)
            self._reading = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(PATIENCE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop(self._writing)
        super().resume_writing()

    @property
    def waits_for_client(self) -> bool:
        """Whether no request is whole whose answer is still owed."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _wait_for_request(self) -> None:
        self.waits_since = self.loop.time()
        self._reading = self.loop.call_later(PATIENCE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Close; with an answer to a request that has begun and has none yet."""
        has_begun = self.conn.their_state is h11.SEND_BODY or bool(
            self.conn.trailing_data[0].strip()
        )
        if has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(TOO_SLOW)
        self.transport.close()

    def _make_place(self) -> None:
        limit = self.limit_concurrency
        if limit is None or len(self.connections) < limit:
            return
        waiting = [
            one
            for one in self.connections
            if isinstance(one, BoundedHttp) and one is not self and one.waits_for_client
        ]
        if waiting:
            oldest = min(waiting, key=lambda one: one.waits_since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    @staticmethod
    def _stop(*timers: TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()


class AnnouncingServer(uvicorn.Server):
    """Calls `listens` once it is bound, and `ends` before it waits for what is under way."""

    def listens(self, port: int) -> None: ...

    def ends(self) -> None: ...

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:  # else the lifespan failed
            self.listens(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.ends()
        await super().shutdown(sockets)
