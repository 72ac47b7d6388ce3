"""Reads what earlier attempts of a run wrote and their agent, which was killed, did not send."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from app.store.records import AttemptRecord, Unsent
from worker.agent.attempt_folder import PIECE_BYTES, AttemptDir
from worker.agent.beat_report import BeatReport, Outbox


def unsent_of(
    run_dir: Path, attempts: Sequence[AttemptRecord], artifact_root: Path
) -> Iterator[Unsent]:
    """Yields pieces in the order in which the store has to take them.

    The attempts must have ended, and no process of theirs may be alive. Those whose folder is not
    here are left out: they ran on a worker with another artifact root. Raises OSError.
    """
    for attempt in attempts:
        folder = run_dir / f"attempt-{attempt.number}"
        if attempt.log_read is not None and attempt.events_read is not None and folder.is_dir():
            yield from _unsent(folder, attempt, artifact_root)


def _unsent(folder: Path, attempt: AttemptRecord, artifact_root: Path) -> Iterator[Unsent]:
    log_from, events_from = attempt.log_read or 0, attempt.events_read or 0
    files, report = AttemptDir(folder, log_from), BeatReport(artifact_root, folder)
    # Events that were sent are read again: which phase is news depends on the phases before it.
    while (ahead := events_from - files.events.tail.offset) > 0 and files.events.tail.backlog():
        report.take(files.read(min(ahead, PIECE_BYTES), 0).events)
    is_last = files.events.taken < events_from  # somebody has cut the file short
    while not is_last:
        report.outbox = Outbox()
        piece = files.read(PIECE_BYTES, PIECE_BYTES)
        is_last = piece.is_last
        report.take(piece.events)
        if is_last:
            report.keep_ends()
        if (piece.log_read, piece.events_read) == (log_from, events_from):
            continue
        yield Unsent(
            attempt=attempt.number,
            log_from=log_from,
            log_to=piece.log_read,
            events_from=events_from,
            events_to=piece.events_read,
            log_text=piece.log_text,
            events=report.outbox.events,
            metric_points=list(report.outbox.points.values()),
        )
        log_from, events_from = piece.log_read, piece.events_read
