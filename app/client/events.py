"""Events of a text/event-stream (HTML standard, section 9.2)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from app.client.errors import Document


@dataclass(frozen=True)
class Event:
    """One message of a run's event stream; `seq` is None where it is not a stored event."""

    seq: int | None
    kind: str
    data: Document


def parse_event_stream(lines: Iterable[str]) -> Iterator[Event]:
    """Events of a text/event-stream (HTML standard, §9.2); comments are heartbeats."""
    fields: dict[str, list[str]] = {}
    for line in lines:
        if line == "":
            if "data" in fields:
                yield _event_of(fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))


def _event_of(fields: Mapping[str, list[str]]) -> Event:
    identity = fields.get("id", [""])[-1]
    return Event(
        seq=int(identity) if identity.isdecimal() else None,
        kind=fields.get("event", ["message"])[-1],
        data=json.loads("\n".join(fields["data"])),
    )
