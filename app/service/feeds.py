"""What can be followed of a run: its events and its log. A feed reads briefly, from a cursor on.

The run's row is read before what follows the cursor: a run seen as over has nothing more to come.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from app.lifecycle import TERMINAL
from app.store.records import EventRecord, RunRecord
from app.store.store import Store
from stoker.models.base import rfc3339

EVENTS_AT_ONCE = 500
LOG_BYTES_AT_ONCE = 64 << 10
# A position in a run's log is one rising integer: the attempt, and the byte within its log.
POSITIONS_PER_ATTEMPT = 1 << 40


@dataclass(frozen=True)
class Message:
    """One message of a stream; without an id it is not replayed."""

    event: str
    data: Any
    id: int | None = None


@dataclass(frozen=True)
class FeedReading:
    """What a feed found after a cursor. `is_over`: nothing will ever follow."""

    run: RunRecord
    cursor: int
    messages: list[Message] = field(default_factory=list)
    has_more: bool = False

    @property
    def is_over(self) -> bool:
        return self.run.state in TERMINAL and not self.has_more


class Feed(Protocol):
    def read(self, cursor: int) -> FeedReading:
        """What there is after the cursor; NotFound when the run is gone."""


@dataclass
class EventFeed:
    """Stored events; between them, live, the progress on the run's row."""

    store: Store
    run_id: int
    limit: int = EVENTS_AT_ONCE
    kind: str | None = None
    """Only events of this kind; None: all."""
    _progress: dict[str, Any] | None = None

    def read(self, cursor: int) -> FeedReading:
        run, records = self.records_after(cursor)
        messages = [
            Message(record.kind, _told(record), record.seq)
            for record in records
            if record.kind != "end"  # an attempt's; the stream ends with the run's
        ]
        if run.progress is not None and run.progress != self._progress:
            self._progress = run.progress
            messages.append(Message("progress", run.progress))
        cursor = records[-1].seq if records else cursor
        return FeedReading(run, cursor, messages, has_more=len(records) == self.limit)

    def records_after(self, cursor: int) -> tuple[RunRecord, list[EventRecord]]:
        run = self.store.runs.get(self.run_id)
        return run, self.store.events.list(self.run_id, cursor, self.limit, self.kind)


def _told(record: EventRecord) -> dict[str, Any]:
    return {**record.data, "t": rfc3339(record.t), "attempt": record.attempt}


@dataclass(frozen=True)
class LogText:
    """A piece of one attempt's log, and the position after it."""

    attempt: int
    text: str
    next_offset: int
    dropped_bytes: int


@dataclass
class LogFeed:
    """Log text of all attempts in turn, or of one."""

    store: Store
    run_id: int
    attempt: int | None = None

    def read(self, cursor: int) -> FeedReading:
        run, piece = self.text_after(cursor)
        if not piece.text:
            return FeedReading(run, cursor)
        data = {"attempt": piece.attempt, "text": piece.text, "dropped_bytes": piece.dropped_bytes}
        return FeedReading(
            run, piece.next_offset, [Message("log", data, piece.next_offset)], has_more=True
        )

    def text_after(self, cursor: int) -> tuple[RunRecord, LogText]:
        run = self.store.runs.get(self.run_id)
        attempt, offset = divmod(cursor, POSITIONS_PER_ATTEMPT)
        if self.attempt is not None and attempt != self.attempt:
            attempt, offset = self.attempt, 0
        attempt, last = max(attempt, 1), self.attempt or run.attempt
        while True:
            chunk = self.store.logs.read(self.run_id, attempt, offset, LOG_BYTES_AT_ONCE)
            if chunk.text or attempt >= last:
                break
            attempt, offset = attempt + 1, 0
        position = attempt * POSITIONS_PER_ATTEMPT + chunk.next_offset
        return run, LogText(attempt, chunk.text, position, chunk.dropped_bytes)
