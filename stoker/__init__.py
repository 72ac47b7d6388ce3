"""What people import: a client of the service, one method a call.

from stoker import Client

with Client() as client:
    run = client.submit({"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}})
    for event in client.watch(run["id"]):
        print(event.kind, event.data)

`import stoker` loads only the standard library; httpx comes with the client, pydantic with
`stoker.models`.
"""

from typing import TYPE_CHECKING

from stoker.address import Address, find_address, find_token, read_api_file
from stoker.errors import ClientError, Document, Problem, ServiceUnreachable
from stoker.events import Event
from stoker.lazy import lazily
from stoker.states import Intent, Reason, RunState

if TYPE_CHECKING:
    from stoker import models
    from stoker.calls.base import Which
    from stoker.client import Client

__all__ = [
    "Address",
    "Client",
    "ClientError",
    "Document",
    "Event",
    "Intent",
    "Problem",
    "Reason",
    "RunState",
    "ServiceUnreachable",
    "Which",
    "find_address",
    "find_token",
    "models",
    "read_api_file",
]

__getattr__ = lazily(__name__, ["client", "calls.base", "models"], __all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
