"""Where an attempt starts from: the newest good checkpoint among its candidates."""

from dataclasses import dataclass
from pathlib import Path

from app.lifecycle import Reason
from worker.trainer.attempt import Attempt, RestoreCandidate
from worker.trainer.checkpoint import PARTS, Snapshot, TornCheckpoint, load, quarantine
from worker.trainer.errors import TrainerError
from worker.trainer.eventlog import EventLog


@dataclass(frozen=True)
class Start:
    """A checkpoint to start from, and the torn ones on the way to it."""

    candidate: RestoreCandidate
    snapshot: Snapshot
    torn: tuple[Path, ...]

    @property
    def is_full(self) -> bool:
        return self.candidate.carry == "full"

    @property
    def best_folder(self) -> Path | None:
        relative = self.snapshot.body["best_folder"]
        return (self.candidate.path / relative).resolve() if relative else None


def find_start(attempt: Attempt, events: EventLog) -> Start | None:
    """None: start from scratch, which is said aloud when this run had checkpoints of its own.

    Raises TrainerError checkpoint_error when the run was to start from another run's checkpoint
    and none is good: training on from nothing would not be what was asked for.
    """
    torn: list[Path] = []
    unusable: list[Path] = []
    for candidate in attempt.restore:
        if not candidate.path.is_dir():
            unusable.append(candidate.path)
            continue
        try:
            parts = PARTS if candidate.carry == "full" else ("model",)
            snapshot = load(candidate.path, parts)
        except TornCheckpoint as error:
            unusable.append(candidate.path)
            torn.append(candidate.path)
            _put_aside(candidate, error, events)
            continue
        return Start(candidate, snapshot, tuple(torn))
    if attempt.restore:
        _none_is_good(attempt, unusable, events)
    return None


def _put_aside(candidate: RestoreCandidate, error: TornCheckpoint, events: EventLog) -> None:
    """Another run's folder is that run's, which may be under way: it is told of and left alone."""
    renamed_to = str(quarantine(candidate.path)) if candidate.own else None
    events.emit(
        "checkpoint",
        action="quarantined",
        path=str(candidate.path),
        own=candidate.own,
        renamed_to=renamed_to,
        message=str(error),
    )


def _none_is_good(attempt: Attempt, paths: list[Path], events: EventLog) -> None:
    listed = ", ".join(map(str, paths))
    if not all(candidate.own for candidate in attempt.restore):
        raise TrainerError(
            Reason.checkpoint_error,
            f"The checkpoint to start from is missing or damaged ({listed}). Restart from another "
            "checkpoint of that run, or from scratch.",
        )
    events.emit(
        "warning",
        code="checkpoints_lost",
        message=f"No checkpoint of this run can be used ({listed}): it starts from scratch.",
    )
