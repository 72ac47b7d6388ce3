"""Follows what an attempt writes, piece by piece, into what the store is told next."""

from worker.attempt import PIECE_BYTES, AttemptDir
from worker.classify import Evidence
from worker.report import Report

# While the store is out of reach no more than this is held for it: the rest stays in the files.
UNTOLD_EVENT_BYTES = 4 * 2**20
UNTOLD_LOG_CHARACTERS = 2**20


class Follower:
    """One attempt's events and log. `is_through`: all that was there has been taken."""

    def __init__(self, attempt: AttemptDir, report: Report) -> None:
        self._attempt = attempt
        self._report = report
        self.is_through = False

    def read(self) -> None:
        """Take in one piece more, of each file that the store has not fallen behind with."""
        outbox = self._report.outbox
        piece = self._attempt.read(
            PIECE_BYTES if outbox.event_bytes < UNTOLD_EVENT_BYTES else 0,
            PIECE_BYTES if len(outbox.log_text) < UNTOLD_LOG_CHARACTERS else 0,
        )
        self._report.take(piece.events)
        outbox.event_bytes += piece.event_bytes
        outbox.log_text += piece.log_text
        self.is_through = piece.is_last

    def complete(self, seen: Evidence) -> None:
        """Add what the files say of the attempt's end."""
        seen.end = self._report.end
        exited = self._attempt.exit()
        if exited is not None:
            seen.returncode = exited["returncode"]
        seen.last_log_line = self._attempt.last_log_line()
