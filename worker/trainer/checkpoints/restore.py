"""Where an attempt starts from: the newest good checkpoint among its candidates."""

from dataclasses import dataclass
from pathlib import Path

from app.lifecycle import Reason
from app.spec.training import Checkpointing
from worker.reporting import EventLog
from worker.trainer.attempt import RestoreCandidate, TrainerAttempt
from worker.trainer.checkpoints.format import (
    PARTS,
    Snapshot,
    TornCheckpoint,
    load,
    quarantine,
    read_manifest,
)
from worker.trainer.errors import TrainerError
from worker.trainer.state import TrainState


@dataclass(frozen=True)
class PassedOver:
    """A checkpoint that was not started from, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class Start:
    """A checkpoint to start from, and the damaged ones on the way to it."""

    candidate: RestoreCandidate
    snapshot: Snapshot
    passed_over: tuple[PassedOver, ...]

    @property
    def is_full(self) -> bool:
        return self.candidate.carry == "full"


def find_start(attempt: TrainerAttempt, events: EventLog) -> Start | None:
    """None: there was nothing to start from, so the training begins.

    Raises TrainerError checkpoint_error when a checkpoint could not be read, since it may be whole;
    checkpoint_unusable when all were read and none is good: training on from nothing, or from an
    ancestor's, would throw away what this run has done.
    """
    passed_over: list[PassedOver] = []
    for candidate in attempt.restore:
        try:
            parts = PARTS if candidate.carry == "full" else ("model",)
            snapshot = load(candidate.path, parts)
        except TornCheckpoint as error:
            passed_over.append(PassedOver(candidate.path, str(error)))
            _put_aside(candidate, str(error), events)
        else:
            return Start(candidate, snapshot, tuple(passed_over))
    if passed_over:
        raise _none_is_good(attempt, passed_over)
    return None


def find_best(start: Start, state: TrainState, kept: Checkpointing) -> Path | None:
    """Where the weights of `state.best` are; None: nowhere.

    A stop writes its checkpoint first, and a best state that waited second. If there was no time
    for that, `state.best` becomes the best of those that are there, unless none are to be kept.
    Raises TrainerError checkpoint_error.
    """
    if state.best is None or state.best_by is None:
        return None
    path, relative = start.candidate.path, start.snapshot.body.get("best_folder")
    beside = path.with_name(f"step-{state.best.step}")
    if _state_in(beside):
        return beside
    named = (path / relative).resolve() if relative else None  # the best when this was copied
    before = _state_in(named) if named else None
    if before and before.step == state.best.step:
        return named
    if kept.keep_best == 0:
        return None
    if before:
        before.judge_by(state.best_by, None)
    state.best = before.best if before else None
    if state.evaluated_step == state.step and state.note_best(kept):
        return path
    return named if state.best else None


def _state_in(folder: Path) -> TrainState | None:
    """What a checkpoint says of the training; None when it is not there, or damaged."""
    try:
        return TrainState.from_json(read_manifest(folder)["state"])
    except TornCheckpoint:
        return None


def _put_aside(candidate: RestoreCandidate, why: str, events: EventLog) -> None:
    """Another run's folder is that run's, which may be under way: it is told of and left alone. So
    is what cannot be renamed, such as a folder that is gone.
    """
    renamed_to = None
    if candidate.own:
        try:
            renamed_to = str(quarantine(candidate.path))
        except OSError as error:
            why = f"{why}; it was not put aside ({error.strerror or error})"
    events.emit(
        "checkpoint",
        action="quarantined",
        path=str(candidate.path),
        own=candidate.own,
        renamed_to=renamed_to,
        message=why,
    )


def _none_is_good(attempt: TrainerAttempt, passed_over: list[PassedOver]) -> TrainerError:
    listed = "; ".join(f"{one.path.name}: {one.why}" for one in passed_over)
    is_own = all(candidate.own for candidate in attempt.restore)
    whose = "this run" if is_own else "the run to go on from"
    if all(candidate.carry == "init" for candidate in attempt.restore):
        return TrainerError(
            Reason.checkpoint_unusable,
            f"No checkpoint that init_from asks for can be used ({listed}), and nothing begins "
            "without its first weights by itself. Name another run or checkpoint in init_from: "
            f"`stoker restart {attempt.run_id} --from scratch --set init_from.run=ID`.",
        )
    return TrainerError(
        Reason.checkpoint_unusable,
        f"No checkpoint of {whose} can be used ({listed}), and nothing starts from scratch by "
        f"itself. `stoker checkpoints {attempt.run_id}` lists them. To begin anew: `stoker restart "
        f"{attempt.run_id} --from scratch`.",
    )
