"""An attempt's directory as the agent sees it: spec.json in; events, log, pulse, exit.json out."""

import codecs
import json
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.store.telemetry.logs import HEAD_BYTES, TAIL_BYTES
from worker.agent.event_lines import NotStorable, parse_event
from worker.agent.log_trimmer import LogTrimmer
from worker.launch.launcher import write_atomically
from worker.regular_files import NotReadable, open_regular, read_regular
from worker.reporting import PULSE_FORMAT, last_line

Document = dict[str, Any]
PIECE_BYTES = 2**20  # of a file, read at once
# A line that is longer is no event: nothing that a trainer tells comes near it.
LONGEST_EVENT_BYTES = 16 * 2**20
MOST_REFUSALS = 10  # lines that a warning names
# The last progress and the end of a trainer lie within this much of its last events.
LAST_WORDS_BYTES = 2**20


class Tail:
    """What was appended to a file since the last read; a file that is not there yet is empty."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.is_replaced = False
        """True if the last read found something else than a file in its place."""

    def read(self, limit: int) -> bytes:
        try:
            with open_regular(self.path) as file:
                file.seek(self.offset)
                data = file.read(limit)
        except (FileNotFoundError, NotReadable) as error:
            self.is_replaced = isinstance(error, NotReadable)
            return b""
        self.offset += len(data)
        return data

    def backlog(self) -> int:
        """Bytes not read yet; 0 if something smaller, or no file, has replaced the one read."""
        try:
            found = self.path.stat()
            return max(0, found.st_size - self.offset) if stat.S_ISREG(found.st_mode) else 0
        except FileNotFoundError:
            return 0


class EventTail:
    """The trainer's events, whole lines only: a killed trainer's torn last line never counts."""

    def __init__(self, path: Path) -> None:
        self.tail = Tail(path)
        self._refused = 0
        self._rest = b""  # of a line whose end is still to come
        self._dropped = 0  # bytes of one that is too long to be kept

    def read(self, limit: int = PIECE_BYTES) -> list[Document]:
        """The events of the next `limit` bytes: of the lines that end there."""
        *ends, rest = self.tail.read(limit).split(b"\n")
        events = []
        for end in ends:
            self._append(end)
            events.append(self._end_line())
        self._append(rest)
        return [event for event in events if event is not None]

    @property
    def taken(self) -> int:
        """Bytes of the file up to the end of the last whole line that was read."""
        return self.tail.offset - len(self._rest) - self._dropped

    def _append(self, part: bytes) -> None:
        length = len(self._rest) + len(part)
        if self._dropped or length > LONGEST_EVENT_BYTES:
            self._dropped += length
            self._rest = b""
        else:
            self._rest += part

    def _end_line(self) -> Document | None:
        line, dropped = self._rest, self._dropped
        self._rest, self._dropped = b"", 0
        if dropped:
            return _warning(
                "event_too_long",
                f"The trainer wrote a line of {dropped:,} bytes into events.jsonl, which is too "
                "long for an event. It is left out; the lines after it are read.",
            )
        try:
            return parse_event(line)
        except NotStorable as error:
            self._refused += 1
            if self._refused > MOST_REFUSALS:
                return None
            end = " Further ones are left out without a warning."
            return _warning(
                "event_refused",
                f"A line of events.jsonl cannot be stored ({error}). It is left out; the lines "
                f"after it are read.{end if self._refused == MOST_REFUSALS else ''}",
            )


def _warning(code: str, message: str) -> Document:
    return {"kind": "warning", "t": time.time(), "code": code, "message": message}


def _event_or_none(line: bytes) -> Document | None:
    try:
        return parse_event(line)
    except NotStorable:
        return None


class LogTail:
    """The trainer's log as text: undecodable bytes replaced, NUL characters shown as U+2400.

    The store keeps the begin and the end of a log, so the middle of one that is long is not read.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.tail = Tail(path, offset)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def taken(self) -> int:
        """Bytes of the file up to the last whole character that was read."""
        return self.tail.offset - len(self._decoder.getstate()[0])

    def read(self, limit: int = PIECE_BYTES) -> str:
        """The text of the next `limit` bytes that are not left out."""
        excess, note = self.tail.backlog() - TAIL_BYTES, ""
        if excess > 0 and self.tail.offset < HEAD_BYTES:
            limit = min(limit, HEAD_BYTES - self.tail.offset)
        elif excess > 0:
            self.tail.offset += excess
            self._decoder.reset()
            note = f"\n[{excess} bytes left out: they came faster than they could be kept]\n"
        return note + self._decoder.decode(self.tail.read(limit)).replace("\0", "\u2400")


@dataclass(frozen=True)
class Piece:
    """What was read at once; `is_last`: both files have been read to their ends."""

    events: list[Document]
    event_bytes: int
    log_text: str
    events_read: int
    """Bytes of the file of events that all pieces so far have taken in."""
    log_read: int
    """The same of the log."""
    pulse: tuple[int, int] | None
    is_last: bool


class AttemptDir:
    """Paths and small documents of one attempt. `log_read`: bytes of its log to skip."""

    def __init__(self, path: Path, log_read: int = 0) -> None:
        self.path = path
        self.events = EventTail(path / "events.jsonl")
        self.log = LogTail(path / "trainer.log", log_read)
        self._trimmer = LogTrimmer(self.log.tail.path)
        self._may_warn = True

    def create(self, spec: Document) -> None:
        """Make the directory and write spec.json; OSError when the disk refuses.

        Below the run's folder alone: where that is not there, its disk has gone.
        """
        self.path.mkdir()
        write_atomically(self.path / "spec.json", spec)

    def read(self, event_bytes: int, log_bytes: int) -> Piece:
        """So much more, at most, of events and log; 0: nothing of that file. Of a log that has
        become too long the middle is cut out, which has been read or will not be.
        """
        before = self.events.tail.offset
        events = self.events.read(event_bytes) if event_bytes else []
        log_text = self.log.read(log_bytes) if log_bytes else ""
        events += self._warnings()
        self._trimmer.trim()
        is_last = not self.events.tail.backlog() and not self.log.tail.backlog()
        size = self.events.tail.offset - before
        taken = self.events.taken, self.log.taken
        return Piece(events, size, log_text, *taken, self.pulse(), is_last)

    def _warnings(self) -> list[Document]:
        """Says once if the script has put something else in the place of a file."""
        replaced = [t.path for t in (self.events.tail, self.log.tail) if t.is_replaced]
        if not replaced or not self._may_warn:
            return []
        self._may_warn = False
        return [
            _warning(
                "file_replaced",
                f"{replaced[0]} is no regular file any more, so nothing of it is read. The run "
                "goes on; what it tells by this file is missing.",
            )
        ]

    def pulse(self) -> tuple[int, int] | None:
        """(phase index, counter) as the trainer last wrote them; None before it has started."""
        try:
            data = read_regular(self.path / "pulse")
        except (FileNotFoundError, NotReadable):
            return None
        if len(data) < PULSE_FORMAT.size:
            return None
        phase, counter = PULSE_FORMAT.unpack_from(data)
        return phase, counter

    def last_words(self) -> list[Document]:
        """The last progress event, if there is one, and the end; [] when no end was told."""
        try:
            with open_regular(self.path / "events.jsonl") as file:
                file.seek(max(0, file.seek(0, 2) - LAST_WORDS_BYTES))
                lines = file.read(LAST_WORDS_BYTES).split(b"\n")
        except (FileNotFoundError, NotReadable):
            return []
        events = map(_event_or_none, lines)
        last = {event["kind"]: event for event in events if event is not None}
        if "end" not in last:
            return []
        return [last[kind] for kind in ("progress", "end") if kind in last]

    def exit(self) -> Document | None:
        """The launcher's account of the trainer's end; None when there is none."""
        try:
            document = json.loads(read_regular(self.path / "exit.json"))
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def last_log_line(self) -> str | None:
        """See `last_line`; None where there is none."""
        try:
            with open_regular(self.path / "trainer.log") as log:
                log.seek(max(0, log.seek(0, 2) - 8192))
                return last_line(log.read(8192)) or None
        except OSError:
            return None
