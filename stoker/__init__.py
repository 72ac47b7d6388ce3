"""What people import: a client of the service, one method a call.

from stoker import Client

with Client() as client:
    run = client.submit({"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}})
    for event in client.watch(run["id"]):
        print(event.kind, event.data)

and, for a script of your own that Stoker runs, `stoker.init` (see `stoker.script`).

`import stoker` loads only the standard library; httpx comes with the client, pydantic with
`stoker.models`.
"""

from stoker.lazy import lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker import models
    from stoker.address import Address, find_address, find_token, read_api_file
    from stoker.calls.base import Which
    from stoker.client import Client
    from stoker.errors import ClientError, Document, Problem, ServiceUnreachable
    from stoker.events import Event
    from stoker.script import ScriptRun, init
    from stoker.states import Intent, Reason, RunState

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
    "ScriptRun",
    "ServiceUnreachable",
    "Which",
    "find_address",
    "find_token",
    "init",
    "models",
    "read_api_file",
]

# Each is imported when a name is asked for that those before it do not have: the heavy ones last,
# and the one that a script needs, in whatever Python it runs, first.
MODULES = [
    *("script", "address", "errors", "events", "states"),
    *("client", "calls.base", "models"),
]
__getattr__ = lazily(__name__, MODULES, __all__)


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
