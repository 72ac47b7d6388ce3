"""Follows what an attempt writes, piece by piece, into what the store is told next."""

from collections.abc import Callable
from functools import partial

from worker.agent.attempt_folder import PIECE_BYTES, AttemptDir, Piece
from worker.agent.beat_report import BeatReport
from worker.agent.classify import Evidence
from worker.agent.errand import Errand

# While the store is out of reach no more than this is held for it: the rest stays in the files.
UNTOLD_EVENT_BYTES = 4 * 2**20
UNTOLD_LOG_CHARACTERS = 2**20


class Follower:
    """One attempt's events, log and pulse, read beside the agent's loop: a disk that hangs holds up
    nobody. `is_through`: all that was there has been taken; `is_waiting`: the disk has yet to
    answer; `pulse`: as it was read last.
    """

    def __init__(self, attempt: AttemptDir, report: BeatReport) -> None:
        self._attempt = attempt
        self._report = report
        self._errand: Errand[Piece] | None = None
        self.pulse: tuple[int, int] | None = None
        self.is_through = False

    @property
    def is_waiting(self) -> bool:
        return self._errand is not None

    @property
    def has_untold(self) -> bool:
        """Whether the trainer may have left more than was taken: it was cut off, or what it wrote
        last could not be read.
        """
        return self._report.end is None or not self.is_through

    def read(self) -> None:
        """Take in one piece more, of each file that the store has not fallen behind with."""
        self.is_through = False
        self._errand = errand = self._errand or Errand(self._next_piece())
        if not errand.is_done():
            return
        self._errand = None
        piece = errand.result()
        self._report.take(piece.events)
        outbox = self._report.outbox
        outbox.event_bytes += piece.event_bytes
        outbox.log_text += piece.log_text
        outbox.events_read, outbox.log_read = piece.events_read, piece.log_read
        self.pulse = piece.pulse
        self.is_through = piece.is_last

    def _next_piece(self) -> Callable[[], Piece]:
        outbox = self._report.outbox
        events = PIECE_BYTES if outbox.event_bytes < UNTOLD_EVENT_BYTES else 0
        text = PIECE_BYTES if len(outbox.log_text) < UNTOLD_LOG_CHARACTERS else 0
        return partial(self._attempt.read, events, text)

    def complete(self, seen: Evidence, *, is_here: bool) -> None:
        """Add what is known of the attempt's end, and what files say of it, if they are here."""
        self._report.keep_ends()
        seen.end = self._report.end
        if not is_here:
            return
        exited = self._attempt.exit()
        if exited is not None:
            seen.returncode = exited["returncode"]
        seen.last_log_line = self._attempt.last_log_line()
