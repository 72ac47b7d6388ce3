"""The API's own socket: its answers leave at once."""

import asyncio
import socket

from app.api.server import _bind
from app.settings import Settings


def test_answers_do_not_wait_for_acknowledgements(tmp_path):
    """A connection without TCP_NODELAY holds the second part of an answer back for 40 ms."""
    listener = _bind(Settings(home=tmp_path, port=0))

    async def delay_is_off() -> int:
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            accepted.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(connected, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            answer = await accepted
            writer.close()
            await writer.wait_closed()
            return answer

    assert asyncio.run(delay_is_off())
