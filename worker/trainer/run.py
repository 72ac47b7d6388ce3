"""One attempt from spec.json to its end: prepare, train, test, tell."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.lifecycle import Reason
from app.spec.optimization import StochasticAveraging
from worker.reporting import EventLog, Pulse
from worker.trainer.attempt import TrainerAttempt
from worker.trainer.build import prepare
from worker.trainer.errors import Diverged
from worker.trainer.evaluate import test
from worker.trainer.loop import train
from worker.trainer.out_of_memory import out_of_memory
from worker.trainer.report.baselines import Baseline, best_of, measure_baselines, no_better
from worker.trainer.report.preparing import StopRequested
from worker.trainer.state import Scores
from worker.trainer.stop import StopFlag
from worker.trainer.trainer import Trainer

NOTHING_AVERAGED = "; it ended before an epoch entered the average, so weights are as trained"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class End:
    """How an attempt ended without an error; `result` is {last, best, test}, and for recipes that
    have baselines {naive, baselines}, the best score by metric and all of them.

    `step` and `result` are None when the training was not even built.
    """

    reason: Reason
    message: str
    step: int | None
    result: dict[str, Any] | None


def execute(folder: Path, stop: StopFlag, events: EventLog, pulse: Pulse) -> End:
    """Raises whatever ended the attempt otherwise: OutOfMemory where it was that, and what else
    `worker.trainer.failure` explains.
    """
    trainer = None
    with ExitStack() as resources:
        try:
            trainer = prepare(TrainerAttempt.read(folder), stop, events, pulse, resources)
            return _to_its_end(trainer)
        except StopRequested:
            told = f"Stopped while {pulse.phase}, before a step was made: nothing was to be saved."
            return End(Reason.interrupted, told, None, None)
        except Exception as error:
            # Here, where data and model are still there: what is free then is what was lacking.
            ran_out = out_of_memory(error, pulse.phase)
            if trainer is not None:
                _rescue(trainer, pulse)
            if ran_out is not None:
                raise ran_out from error
            if isinstance(error, Diverged) and trainer is not None:
                error.reached = trainer.state.place()
            raise


def _rescue(trainer: Trainer, pulse: Pulse) -> None:
    """What fails here is logged: the error that ends the attempt is told, with its own phase."""
    phase = pulse.phase
    try:
        trainer.saver.rescue()
    except Exception:
        logger.exception("the state could not be saved before the end")
    if pulse.phase != phase:
        pulse.enter(phase)


def _to_its_end(trainer: Trainer) -> End:
    reason = train(trainer)
    trainer.saver.finish()
    scores = None
    if reason is not Reason.interrupted and trainer.data.test is not None:
        scores = test(trainer, trainer.data.test)
        reason = reason if scores is not None else Reason.interrupted
    baselines = [] if reason is Reason.interrupted else measure_baselines(trainer)
    modes = trainer.spec.recipe.metric_modes
    best = best_of(baselines, modes)
    trainer.log.progress()
    result = _result(trainer, scores, baselines, best)
    reached = {**(result["best"] or {}), **(scores or {})}
    told = _sentence(trainer, reason) + no_better(reached, best, modes)
    return End(reason, told, trainer.state.step, result)


def _result(
    trainer: Trainer,
    test_scores: Scores | None,
    baselines: list[Baseline],
    best: Mapping[str, Baseline],
) -> dict[str, Any]:
    state, naive = trainer.state, {metric: one["value"] for metric, one in best.items()}
    return {
        "last": {"step": state.step, "epoch": state.running_epoch(), **state.last},
        "best": state.best.document() if state.best else None,
        "test": test_scores or None,
        **({"naive": naive, "baselines": baselines} if baselines else {}),
    }


def _sentence(trainer: Trainer, reason: Reason) -> str:
    state, agenda, spec = trainer.state, trainer.agenda, trainer.spec
    done = f"{state.step} of {agenda.total_steps} steps"
    if state.left_out_steps:
        done += f", of which {state.left_out_steps} were left out after a loss that was not finite"
    if reason is Reason.interrupted:
        saved = "the state is saved" if state.step else "nothing was to be saved"
        return f"Stopped at a step boundary after {done}; {saved}."
    told = f"Trained {done}"
    if reason is Reason.early_stopped and spec.early_stopping is not None:
        told += (
            f", then stopped early: {spec.early_stopping.monitor} had not improved for "
            f"{state.patience_used} evaluations"
        )
    if reason is Reason.max_duration:
        told += f", which took the {spec.policy.max_duration_seconds:g} seconds that were allowed"
    if isinstance(spec.averaging, StochasticAveraging) and trainer.step.average:
        averaged = trainer.step.average.count
        epochs = f"; {averaged} {'epoch' if averaged == 1 else 'epochs'} entered the average"
        told += epochs if averaged else NOTHING_AVERAGED
    if state.best is not None:
        told += f"; best {spec.checkpoint.monitor} {state.best.value:.6g} at step {state.best.step}"
    return told + "."
