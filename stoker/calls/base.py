"""What the calls of every topic stand on."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, ParamSpec

from stoker.errors import Document
from stoker.transport import Transport

Which = Literal["latest", "best"]
Call = ParamSpec("Call")

LARGEST_PAGE = 500


class Calls:
    """A service, and how all of one of its lists is read."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def every(
        self,
        page: Callable[Call, Document],
        *args: Call.args,
        **options: Call.kwargs,
    ) -> Iterator[Document]:
        """All rows of a list that comes in pages: `client.every(client.runs, state="failed")`."""
        options.setdefault("limit", LARGEST_PAGE)
        while True:
            document = page(*args, **options)
            yield from document["data"]
            if document["next_cursor"] is None:
                return
            options["after"] = document["next_cursor"]

    def _get(
        self, path: str, params: Mapping[str, Any], wait_seconds: float | None = None
    ) -> Document:
        return self._transport.json("GET", path, params=params, wait_seconds=wait_seconds)
