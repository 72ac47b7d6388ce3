"""HTTP client of the service, for the CLI, the tests and notebooks: one method a call.

with StokerClient() as stoker:
    run = stoker.submit({"recipe": {"kind": "sequence"}, "data": {"dataset": "weather"}})
    for event in stoker.events(run["id"]):
        print(event.kind, event.data)
"""

from app.client.address import Address, find_address, find_token, read_api_file
from app.client.client import StokerClient, Which
from app.client.errors import ClientError, Document, Problem, ServiceUnreachable
from app.client.events import Event

__all__ = [
    "Address",
    "ClientError",
    "Document",
    "Event",
    "Problem",
    "ServiceUnreachable",
    "StokerClient",
    "Which",
    "find_address",
    "find_token",
    "read_api_file",
]
