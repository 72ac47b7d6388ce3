"""Lines of an attempt's file of events, checked before anything of them is stored.

The folder of a run can be written to by its script, so a line may say anything. A line that cannot
be stored or shown is left out alone.
"""

import json
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app.store.columns import storable
from stoker.models.runs import Progress, Result

Document = dict[str, Any]
MOST_DEPTH = 20


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if ".." in parts or "\0" in path:
        raise ValueError("leads out of the attempt's folder")
    return path


Count = Annotated[int, Field(ge=0, lt=2**63)]
Numbers = dict[str, float | None]


class Line(BaseModel):
    """Any event; what its kind does not name may follow."""

    model_config = ConfigDict(extra="allow", strict=True)

    kind: Annotated[str, Field(max_length=64)]
    t: Annotated[float, Field(ge=0, le=1e11)]
    """Unix seconds."""


class Phase(Line):
    phase: Annotated[str, Field(max_length=64)]


class PeakMemory(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    device_bytes: Count | None
    host_bytes: Count | None


class ProgressLine(Line, Progress):
    model_config = ConfigDict(extra="allow", strict=True)

    step: Count | None = None
    steps: Count | None = None
    epoch: Count | None = None
    epochs: Count | None = None
    totals: Numbers | None = None
    phase_seconds: Numbers | None = None
    peak_memory: PeakMemory | None = None
    host_memory_bytes: Count | None = None


class Metrics(Line):
    step: Count | None = None
    values: Numbers | None = None


class Checkpoint(Line):
    action: str
    path: Annotated[str, AfterValidator(_inside)]
    step: Count | None = None
    epoch: Count | None = None
    bytes: Count | None = None
    seconds: Annotated[float, Field(ge=0)] | None = None
    metrics: Numbers | None = None
    message: str | None = None


class Applied(Line):
    applied: Document | None = None
    environment: Document | None = None


class Restored(Line):
    step: Count | None = None
    carry: str | None = None


class Warned(Line):
    code: Annotated[str, Field(max_length=64)]
    message: str


class NonFinite(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    what: str
    step: Count
    epoch: Count
    position: Count


class End(Line):
    reason: str
    message: str
    step: Count | None = None
    result: Result | None = None
    nonfinite: NonFinite | None = None
    memory: dict[str, Count | None] | None = None


LINES: dict[str, type[Line]] = {
    "phase": Phase,
    "progress": ProgressLine,
    "metrics": Metrics,
    "checkpoint": Checkpoint,
    "applied": Applied,
    "restored": Restored,
    "warning": Warned,
    "end": End,
}


class NotStorable(Exception):
    """A line that is an event by its kind, and cannot be stored. Its text says why."""


def parse_event(line: bytes) -> Document | None:
    """Returns the event of a line; None if it is none. NaN and infinities become None, NUL and half
    a surrogate pair U+FFFD. Raises NotStorable.
    """
    try:
        event = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    event = {"t": 0.0, **event}
    event = {storable(name): _plain(value, MOST_DEPTH) for name, value in event.items()}
    try:
        LINES.get(event["kind"], Line).model_validate(event)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or event["kind"]
        raise NotStorable(f"{place}: {first['msg']}") from error
    return event


def _plain(value: Any, depth: int) -> Any:
    """Returns the value with texts that can be stored. Raises NotStorable if it nests deeper."""
    if isinstance(value, str):
        return storable(value)
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        raise NotStorable(f"values are nested more than {MOST_DEPTH} deep")
    if isinstance(value, list):
        return [_plain(one, depth - 1) for one in value]
    return {storable(name): _plain(one, depth - 1) for name, one in value.items()}
