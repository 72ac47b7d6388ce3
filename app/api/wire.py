"""HTTP/1.1 as httptools reads it, with bounds on what a connection may keep, and for how long.

uvicorn bounds the time between two requests and, by `limit_concurrency`, how many are answered.
Here are bounds on a request's head, on the time until it is whole, and on the connections.
"""

from asyncio import BaseTransport, TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Of a request's head, or of what stands between the parts of its body and after them.
MOST_HEAD_BYTES = 64 << 10
# Until a request is whole, from the connection or its first byte on; and until a client that takes
# nothing more of its answer takes something again.
PATIENCE_SECONDS = 30.0
TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 43\r\nconnection: close\r\n\r\nThe request did not come to its end in time"
)


class BoundedHttp(HttpToolsProtocol):
    """Refuses a head that does not end, and drops the header fields that follow a body.

    Those come when the others have been looked at, so none of them may count. Where
    `limit_concurrency` connections are open, the one that has waited longest for its client goes.
    """

    _head_bytes = 0
    _has_head = False
    _has_begun = False
    waits_since = 0.0
    _reading: TimerHandle | None = None
    _writing: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait_for_request()
        self._make_place()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_there()
        self._answer_is_taken()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._reading is None and self.cycle is not None and self.cycle.response_complete:
            self._wait_for_request()  # bytes that begin no request end uvicorn's own limit
        if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        self._has_begun, self._has_head = True, False
        if self._reading is None:
            self._wait_for_request()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes, self._has_head = 0, True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes, self._has_begun = 0, False
        self._request_is_there()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._reading is not None:  # of one that could not be read before
            self._request_is_there()
            self._wait_for_request()
        self.waits_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(PATIENCE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._answer_is_taken()
        super().resume_writing()

    @property
    def waits_for_client(self) -> bool:
        """Whether no answer is owed: no request is whole, or the last one is answered."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return not self.transport.is_closing() and (is_answered or self._reading is not None)

    def _wait_for_request(self) -> None:
        self.waits_since = self.loop.time()
        self._reading = self.loop.call_later(PATIENCE_SECONDS, self._give_up)

    def _request_is_there(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _answer_is_taken(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _give_up(self) -> None:
        """Close; with an answer to a request that has begun and has none yet."""
        if self.flow.read_paused or self.pipeline:  # the one before is still being answered
            self._wait_for_request()
            return
        is_answered = self._has_head and self.cycle.response_started
        if self._has_begun and not is_answered:
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
