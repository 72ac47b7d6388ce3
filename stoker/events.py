"""Events of a text/event-stream (HTML standard, section 9.2)."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from stoker.errors import Document

# Each kind of event of a run: what has happened, and what its data says. Those without a number
# (`seq`) are only in a stream: they tell how things are, and are not kept.
KINDS = {
    "state": "The run's state changed: `from`, `to`, `reason`, `message`, `intent`.",
    "issue": "The guard found something: `code`, `severity`, `loc`, `message`, `why`, `fix`.",
    "phase": "The attempt went on to another phase: `phase`. `compiling` also has `shapes`, the "
    "number of shapes of batches by what is computed of them, and `earlier`: the `graphs` that it "
    "took before, and their `seconds`.",
    "applied": "What the attempt really uses: `applied`, `environment`.",
    "restored": "It goes on from a checkpoint: `step`, `carry`, `path`; of a script `by_stoker`.",
    "rollback": "With the weights of `from_step`, it continues after `step`, whose loss was not "
    "finite: `steps` and `samples` are left out, up to `position` in `epoch`.",
    "epoch": "An epoch is done: `epoch`, `epochs`, `step`, `train_loss`, the scores.",
    "checkpoint": "`action` is `saved` (`step`, `bytes`, `seconds`; of a script `by_stoker`: "
    "whether it saved by the calls of `stoker`, and `seen`: whether `step` is where the script was "
    "when the file was found; `of_run`: the run that it was taken over from, as the best) or "
    "`quarantined` (`message`).",
    "warning": "Something that you should know: `code`, `message`.",
    "code_changed": "A script's code is not what was submitted: `git_sha`, `was`, `diff`.",
    "retry": "The attempt failed and is tried again: `reason`, `message`, `delay_seconds`, "
    "`retries_used`; with less memory, or gone back, also `change`; `paused` where a pause comes "
    "first.",
    "progress": "How far it is, without a number: `phase`, `step`, `steps`, `loss`, `eta_seconds`.",
    "end": "The run is over, and the stream too, without a number: `state`, `reason`, `message`.",
}


@dataclass(frozen=True)
class Event:
    """One message of a run's event stream; `seq` is None where it is not a stored event."""

    seq: int | None
    kind: str
    data: Document


LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")


def lines_of(pieces: Iterable[str]) -> Iterator[str]:
    """Whole lines of a text that comes in pieces.

    They end where the standard says, and not at U+2028 and its like, which JSON may hold.
    """
    rest = ""
    for piece in pieces:
        *lines, rest = LINE_END.split(rest + piece)
        yield from lines


def parse_event_stream(lines: Iterable[str]) -> Iterator[Event]:
    """Events of the lines; comments are heartbeats."""
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
