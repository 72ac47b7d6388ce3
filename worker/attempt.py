"""An attempt's directory as the agent sees it: spec.json in; events, log, pulse, exit.json out."""

import codecs
import json
import struct
from pathlib import Path
from typing import Any

from worker.launcher import write_atomically

Document = dict[str, Any]
PULSE = struct.Struct("<QQ")
READ_BYTES = 2**20
# The last progress and the end of a trainer lie within this much of its last events.
LAST_WORDS_BYTES = 2**20
# A log further behind than this is jumped over: the store would drop the middle anyway.
LOG_BACKLOG_BYTES = 4 * 2**20


class Tail:
    """What was appended to a file since the last read; a file that is not there yet is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def read(self, limit: int = READ_BYTES) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(limit)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        return data

    def backlog(self) -> int:
        """Bytes not read yet."""
        try:
            return self.path.stat().st_size - self.offset
        except FileNotFoundError:
            return 0


class EventTail:
    """The trainer's events, whole lines only: a killed trainer's torn last line never counts."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._rest = b""

    def read(self) -> list[Document]:
        data = self._tail.read()
        if not data:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for line in lines if (event := parse_event(line)) is not None]

    def read_all(self) -> list[Document]:
        """Everything up to the end of the file; nothing of one that a smaller one has replaced."""
        events: list[Document] = []
        before = -1
        while self._tail.backlog() > 0 and self._tail.offset > before:
            before = self._tail.offset
            events += self.read()
        return events


def parse_event(line: bytes) -> Document | None:
    """One line of events.jsonl; None when it is not an event. NaN and infinities become None."""
    try:
        event = json.loads(line, parse_constant=lambda _: None)
    except ValueError:
        return None
    if isinstance(event, dict) and isinstance(event.get("kind"), str):
        event.setdefault("t", 0.0)
        return event
    return None


class LogTail:
    """The trainer's log as text: undecodable bytes replaced, NUL characters shown as U+2400."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, limit: int = READ_BYTES) -> str:
        skipped = self._tail.backlog() - LOG_BACKLOG_BYTES
        note = ""
        if skipped > 0:
            self._tail.offset += skipped
            note = f"\n[{skipped} bytes left out: they came faster than they could be kept]\n"
        return note + self._decoder.decode(self._tail.read(limit)).replace("\0", "\u2400")

    def read_all(self) -> str:
        """Everything up to the end of the file."""
        return self.read(LOG_BACKLOG_BYTES)


class AttemptDir:
    """Paths and small documents of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = EventTail(path / "events.jsonl")
        self.log = LogTail(path / "trainer.log")

    def create(self, spec: Document) -> None:
        """Make the directory and write spec.json; OSError when the disk refuses.

        Below the run's folder alone: where that is not there, its disk has gone.
        """
        self.path.mkdir()
        write_atomically(self.path / "spec.json", spec)

    def pulse(self) -> tuple[int, int] | None:
        """(phase index, counter) as the trainer last wrote them; None before it has started."""
        try:
            data = (self.path / "pulse").read_bytes()
        except FileNotFoundError:
            return None
        if len(data) < PULSE.size:
            return None
        phase, counter = PULSE.unpack_from(data)
        return phase, counter

    def last_words(self) -> list[Document]:
        """The last progress event, if there is one, and the end; [] when no end was told."""
        try:
            with (self.path / "events.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - LAST_WORDS_BYTES))
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        last = {event["kind"]: event for line in lines if (event := parse_event(line)) is not None}
        if "end" not in last:
            return []
        return [last[kind] for kind in ("progress", "end") if kind in last]

    def exit(self) -> Document | None:
        """The launcher's account of the trainer's end; None when there is none."""
        try:
            document = json.loads((self.path / "exit.json").read_text())
        except (OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def last_log_line(self) -> str | None:
        """The last line with something on it, at most 300 characters."""
        try:
            with (self.path / "trainer.log").open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - 8192))
                lines = log.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return None
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), None)
