"""HTTP/1.1 as httptools reads it, with a bound on what httptools would keep without one."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Of a request's head, or of what stands between the parts of its body and after them.
MOST_HEAD_BYTES = 64 << 10


class BoundedHttp(HttpToolsProtocol):
    """Refuses a head that does not end, and drops the header fields that follow a body.

    Those come when the others have been looked at, so none of them may count.
    """

    _head_bytes = 0
    _has_head = False

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        self._has_head = False
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
        self._head_bytes = 0
        super().on_message_complete()
