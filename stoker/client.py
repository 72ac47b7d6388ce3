"""The client of the service: who it talks to, and all calls in one."""

from pathlib import Path
from typing import Self

from stoker.address import Address, find_address
from stoker.calls.checkpoints import CheckpointCalls
from stoker.calls.documents import DocumentCalls
from stoker.calls.exports import ExportCalls
from stoker.calls.machine import MachineCalls
from stoker.calls.runs import RunCalls
from stoker.transport import Transport


class Client(RunCalls, DocumentCalls, CheckpointCalls, ExportCalls, MachineCalls):
    """The calls of the HTTP contract: a method for each, with all that it can be told.

    Answers are the documents of the service as they came; of a list, one page: `{data,
    next_cursor}`, and `every` goes through all. Who wants types puts an answer into its model:
    `stoker.models.Run.model_validate(client.run(7))`. A call that fails raises ClientError.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: Path | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        """Of the service at `url`; else at STOKER_URL, with STOKER_TOKEN; else of this machine's,
        by what it wrote into its `home` (STOKER_HOME unless given, else ~/.stoker).
        """
        address = Address(url, token) if url is not None else find_address(home)
        self.url = address.url
        super().__init__(Transport(address, timeout_seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()
